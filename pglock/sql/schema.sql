-- The table of lockkit's locks in Postgres. Run this as it stands, or open once
-- with lock_create=true. Rows are never deleted: they keep the last token of
-- their name, and a token must never be given twice.
CREATE TABLE IF NOT EXISTS lockkit_lock (
	name       bytea   PRIMARY KEY,                         -- prefix/name; encode(name, 'escape') shows it
	id         integer GENERATED ALWAYS AS IDENTITY UNIQUE, -- with the table's oid: the key of the advisory lock
	mode       text    NOT NULL,                            -- the one lock_mode in which the name is used
	token      bigint  NOT NULL DEFAULT 0,                  -- the last one given
	owner      text,                                        -- cas: the holder; advisory: the last holder that asked for a token
	note       bytea,                                       -- the holder's; convert_from(note, 'UTF8') shows it
	expires    timestamptz,                                 -- cas: when the holder's lease ends
	pid        integer,                                     -- advisory: the backend of owner
	dead       text[]  NOT NULL DEFAULT '{}',               -- cas: owners whose late requests are refused
	dead_until timestamptz                                  -- when dead may be emptied
) WITH (fillfactor = 50) -- leaves room for updates in place
