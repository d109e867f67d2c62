-- $1 name, $2 owner, $3 microseconds. A lease that has run out is not taken back.
UPDATE lockkit_lock
SET expires = clock_timestamp() + $3::float8 * interval '1 microsecond'
WHERE name = $1 AND mode = 'cas' AND owner = $2 AND expires > clock_timestamp()
