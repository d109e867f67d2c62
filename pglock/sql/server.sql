SELECT pg_backend_pid(), current_setting('server_version_num'), pg_is_in_recovery(),
	(extract(epoch FROM current_setting('idle_session_timeout', true)::interval) * 1000)::bigint
