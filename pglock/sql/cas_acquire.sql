-- $1 name, $2 owner, $3 note, $4 microseconds.
--
-- Only the UPDATE decides: if it had to wait for another writer of the row it
-- looks at the row anew. The SELECT sees the row as it was before, and serves
-- to say who holds the lock. A refused attempt writes nothing.
WITH granted AS (
	UPDATE lockkit_lock AS l
	SET owner = $2, note = $3, token = l.token + 1,
		expires = clock_timestamp() + $4::float8 * interval '1 microsecond',
		dead = CASE WHEN l.dead_until < clock_timestamp() THEN '{}' ELSE l.dead END
	WHERE l.name = $1 AND l.mode = 'cas'
		AND (l.owner IS NULL OR l.expires IS NULL OR l.expires <= clock_timestamp())
		AND $2::text <> ALL (l.dead)
	RETURNING l.token
)
SELECT granted.token, l.mode, $2::text = ANY (l.dead),
	l.owner, l.note, l.token,
	(extract(epoch FROM l.expires - clock_timestamp()) * 1000000)::bigint
FROM lockkit_lock AS l LEFT JOIN granted ON true
WHERE l.name = $1
