-- $1 name. The row tells about the holder only if it is of the same backend.
SELECT k.pid, l.pid IS NOT DISTINCT FROM k.pid, coalesce(l.owner, ''), l.note, l.token
FROM lockkit_lock AS l
JOIN pg_locks AS k ON k.locktype = 'advisory' AND k.granted
	AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND k.classid = l.tableoid AND k.objid = l.id::oid AND k.objsubid = 2
WHERE l.name = $1
