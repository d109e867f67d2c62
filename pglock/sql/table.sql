-- $1 the table's name, quoted.
SELECT c.relpersistence = 'p', current_user,
	has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
FROM pg_class AS c
WHERE c.oid = to_regclass($1)
