-- $1 name.
SELECT pg_advisory_unlock(l.tableoid::int4, l.id)
FROM lockkit_lock AS l
WHERE l.name = $1
