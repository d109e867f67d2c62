-- $1 name, $2 owner, $3 note. First the lock, then the token, so that tokens
-- rise in the order of the grants: the UPDATE adds to the row's newest version,
-- also if that is younger than the statement. The token is on disk (as
-- synchronous_commit says) when this comes back.
WITH asked AS MATERIALIZED (
	SELECT l.tableoid::int4 AS oid, l.id, l.mode,
		CASE WHEN l.mode = 'advisory' THEN pg_try_advisory_lock(l.tableoid::int4, l.id) ELSE false END AS locked
	FROM lockkit_lock AS l
	WHERE l.name = $1
), raised AS (
	UPDATE lockkit_lock AS l
	SET token = l.token + 1, owner = $2, note = $3, pid = pg_backend_pid(), expires = NULL
	FROM asked
	WHERE l.id = asked.id AND asked.locked
	RETURNING l.token
)
SELECT asked.mode, asked.locked, raised.token, asked.oid, asked.id
FROM asked LEFT JOIN raised ON true
