-- $1 name.
SELECT owner, note, token, (extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint
FROM lockkit_lock
WHERE name = $1 AND mode = 'cas' AND owner IS NOT NULL AND expires > clock_timestamp()
