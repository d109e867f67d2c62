-- $1 name.
SELECT l.mode,
	CASE WHEN l.mode = 'advisory' THEN pg_try_advisory_lock(l.tableoid::int4, l.id) ELSE false END,
	NULL, l.tableoid::int4, l.id
FROM lockkit_lock AS l
WHERE l.name = $1
