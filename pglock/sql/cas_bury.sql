-- The owner is dead before the name has a row. $1 name, $2 owner. No row comes
-- back if someone else has just added the name.
INSERT INTO lockkit_lock (name, mode, dead, dead_until)
VALUES ($1, 'cas', ARRAY[$2::text], clock_timestamp() + interval '10 minutes')
ON CONFLICT (name) DO NOTHING
RETURNING true
