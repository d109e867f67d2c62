SELECT name, id, mode, token, owner, note, expires, pid, dead, dead_until FROM lockkit_lock LIMIT 0
