-- $1 the keys of the locks that the session is known to hold, as oid/id,oid/id.
-- Unlocks the others: a statement that failed does not tell what it had locked.
SELECT count(pg_advisory_unlock(k.classid::int4, k.objid::int4))
FROM pg_locks AS k
WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 2 AND k.pid = pg_backend_pid()
	AND k.classid::int4::text || '/' || k.objid::int4::text <> ALL (string_to_array($1::text, ','))
