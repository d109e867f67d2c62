-- $1 table's oid, $2 row's id, as the statement that locked told them. A row
-- that is gone, or a table that somebody keeps locked, must not keep a lock.
SELECT pg_advisory_unlock($1::int4, $2::int4)
