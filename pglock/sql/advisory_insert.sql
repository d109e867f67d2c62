-- $1 name. Gives a new name its row and with it its key.
INSERT INTO lockkit_lock (name, mode) VALUES ($1, 'advisory')
ON CONFLICT (name) DO NOTHING
