-- $1 name, $2 owner. Ends the owner's lease; if the row is not the owner's,
-- remembers the owner as dead, so that its request to acquire is refused if it
-- arrives later. That must be in this row: a request that waits for the row's
-- lock looks at nothing but the row anew. The last 64 are remembered.
--
-- Comes back with whether a lease was ended that had not run out.
UPDATE lockkit_lock AS l
SET owner = CASE WHEN l.owner = $2 THEN NULL ELSE l.owner END,
	note = CASE WHEN l.owner = $2 THEN NULL ELSE l.note END,
	dead = CASE WHEN l.owner = $2 THEN l.dead
		ELSE (l.dead || $2::text)[greatest(1, cardinality(l.dead) - 62):] END,
	dead_until = CASE WHEN l.owner = $2 THEN l.dead_until
		ELSE clock_timestamp() + interval '10 minutes' END
WHERE l.name = $1 AND l.mode = 'cas'
RETURNING $2::text <> ALL (l.dead) AND l.expires > clock_timestamp()
