-- The first grant of a name. $1 name, $2 owner, $3 note, $4 microseconds.
-- No row comes back if someone else has just added the name.
INSERT INTO lockkit_lock (name, mode, token, owner, note, expires)
VALUES ($1, 'cas', 1, $2, $3, clock_timestamp() + $4::float8 * interval '1 microsecond')
ON CONFLICT (name) DO NOTHING
RETURNING token
