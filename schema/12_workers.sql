-- Workers: live ones with their heartbeats, cancel requests, progress.
--
-- Also the reserved readers of each worker, and the process behind each worker id.
--
-- mill.workers and mill.progress are unlogged: they describe the present, and are empty after a crash.

CREATE UNLOGGED TABLE IF NOT EXISTS mill.workers (
    id uuid PRIMARY KEY,
    session_pid integer NOT NULL,
    session_started_at timestamptz NOT NULL,
    heartbeat bigint NOT NULL DEFAULT 0,
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    heartbeat_interval interval NOT NULL CHECK (heartbeat_interval > '0'),
    orphan_timeout interval NOT NULL CHECK (orphan_timeout > '0'),
    readers integer NOT NULL CHECK (readers > 0),
    busy integer NOT NULL DEFAULT 0 CHECK (busy >= 0),
    draining boolean NOT NULL DEFAULT false,
    queues text[],
    profiles jsonb NOT NULL DEFAULT '{"": 1}',
    destinations text[],
    unconnected jsonb,
    error text,
    error_since timestamptz,
    CHECK ((error IS NULL) = (error_since IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.workers IS
    'Live workers. Unlogged: a heartbeat writes no WAL, and after a crash of the server the table is empty';
COMMENT ON COLUMN mill.workers.id IS 'Random identifier, new at each process start';
COMMENT ON COLUMN mill.workers.session_pid IS
    'Backend of the control session. If it has ended, the worker is probably dead';
COMMENT ON COLUMN mill.workers.session_started_at IS
    'backend_start of session_pid, which distinguishes that backend from a later one with the same pid';
COMMENT ON COLUMN mill.workers.draining IS 'Whether the worker has stopped claiming tasks';
COMMENT ON COLUMN mill.workers.profiles IS 'Number of readers per profile: {"profile": readers}';
COMMENT ON COLUMN mill.workers.error IS
    'Error that an operation of the worker meets again and again, such as recording the end of a task; null: none';
COMMENT ON COLUMN mill.workers.error_since IS 'Time of the first heartbeat that reported an error; null: none';
COMMENT ON COLUMN mill.workers.unconnected IS
    'Logins with readers that cannot open a session: profile, login, numbers of readers and the last error; null: none';
COMMENT ON COLUMN mill.workers.destinations IS 'Destinations of notifications that the worker is configured for';
COMMENT ON COLUMN mill.workers.queues IS 'Queues that the worker serves; null: all queues';
GRANT SELECT, INSERT, UPDATE, DELETE ON mill.workers TO mill_worker;

CREATE OR REPLACE FUNCTION mill.reserved_by_profile()
RETURNS TABLE (worker_id uuid, profile text, reserved integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    percent integer;
BEGIN
    SELECT CASE s.reserved_capacity WHEN 'none' THEN 0 WHEN 'low' THEN 10 WHEN 'medium' THEN 15 ELSE 25 END
        INTO percent FROM mill.settings s;
    IF percent = 0 THEN
        RETURN;
    END IF;
    -- The last worker keeps a reader. Otherwise no task of another priority might run in its queues. Profiles get parts
    -- of the share in proportion to the readers that they can spare. In the order of their ids, workers contribute
    -- these readers until the part of the profile is complete.
    RETURN QUERY SELECT f.id, f.profile, greatest(0, least(f.spare, round(f.share * f.sum_up_to / f.sum_of_all)
            - round(f.share * (f.sum_up_to - f.sum_of_profile) / f.sum_of_all) - f.contributed))::integer
        FROM (SELECT e.*, sum(e.spare) OVER () AS sum_of_all, sum(e.spare) OVER (ORDER BY e.profile) AS sum_up_to,
                sum(e.spare) OVER (PARTITION BY e.profile) AS sum_of_profile,
                sum(e.spare) OVER (PARTITION BY e.profile ORDER BY e.id) - e.spare AS contributed,
                least(sum(e.spare) OVER (), ceil(sum(e.readers) OVER () * percent / 100.0)) AS share
            FROM (SELECT w.id, p.key COLLATE "C" AS profile, p.value::integer AS readers,
                    p.value::integer - (lead(w.id) OVER (PARTITION BY p.key COLLATE "C", w.queues ORDER BY w.id)
                        IS NULL)::integer AS spare
                FROM mill.workers w, jsonb_each_text(w.profiles) AS p WHERE NOT w.draining) AS e) AS f
        WHERE f.spare > 0;
END
$$;
COMMENT ON FUNCTION mill.reserved_by_profile IS
    'Returns how many readers of each profile of each worker run only tasks of priority reserved. All workers compute '
    'these numbers from the same table and therefore agree. Of the workers that serve the same queues, the last one '
    'keeps one reader of each of its profiles for other tasks';
GRANT EXECUTE ON FUNCTION mill.reserved_by_profile TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.reserved_readers(worker_id uuid) RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(sum(r.reserved), 0)::integer FROM mill.reserved_by_profile() r
    WHERE r.worker_id = reserved_readers.worker_id
$$;
COMMENT ON FUNCTION mill.reserved_readers IS
    'Returns how many readers of a worker run only tasks of priority reserved, see mill.reserved_by_profile';
GRANT EXECUTE ON FUNCTION mill.reserved_readers TO mill_worker, mill_viewer;

-- Returns all backends at once, so that a query over any number of workers reads pg_stat_activity once.
CREATE OR REPLACE FUNCTION mill.live_backends() RETURNS TABLE (pid integer, started_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.pid, a.backend_start FROM pg_stat_activity a WHERE a.datname = current_database()
$$;
COMMENT ON FUNCTION mill.live_backends IS
    'Returns the backends of this database: a worker whose control session is not among them has lost it. started_at: '
    'null if the server hides it from mill_owner';
GRANT EXECUTE ON FUNCTION mill.live_backends TO mill_worker, mill_viewer;

CREATE TABLE IF NOT EXISTS mill.worker_starts (
    id uuid PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now(),
    pid integer NOT NULL,
    host text NOT NULL,
    version text NOT NULL,
    schema_version integer NOT NULL
);
COMMENT ON TABLE mill.worker_starts IS
    'One row per worker process. Rows outlive their process, so that history can name the worker of an attempt';
COMMENT ON COLUMN mill.worker_starts.version IS 'Version of pgmill';
COMMENT ON COLUMN mill.worker_starts.schema_version IS 'Version of the schema that the worker was built for';
GRANT SELECT, INSERT ON mill.worker_starts TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.cancel_requests (
    task_id bigint PRIMARY KEY,
    requested_at timestamptz NOT NULL DEFAULT now(),
    requested_by text NOT NULL DEFAULT session_user
);
COMMENT ON TABLE mill.cancel_requests IS
    'Requests to cancel a running task. Separate from mill.tasks, because an update of a running task''s row would '
    'make the completion of a REPEATABLE READ task fail';
REVOKE INSERT, UPDATE, DELETE ON mill.cancel_requests FROM mill_worker;
GRANT SELECT ON mill.cancel_requests TO mill_worker;

CREATE UNLOGGED TABLE IF NOT EXISTS mill.progress (
    task_id bigint PRIMARY KEY,
    worker_id uuid NOT NULL,
    attempt integer NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    percent double precision CONSTRAINT percent_range CHECK (percent BETWEEN 0 AND 100),
    message text,
    notices jsonb
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.progress IS
    'Progress that running tasks report, written by their workers about once a second. Separate from mill.tasks, '
    'because an update of a running task''s row would make the completion of a REPEATABLE READ task fail. '
    'mill.running ignores rows of finished attempts';
COMMENT ON COLUMN mill.progress.percent IS 'Percentage from the last notice of the form progress: 40% loading';
COMMENT ON COLUMN mill.progress.message IS 'Text after the percentage of that notice';
COMMENT ON COLUMN mill.progress.notices IS 'Last notices of any other form, newest last';
GRANT SELECT, INSERT, UPDATE, DELETE ON mill.progress TO mill_worker;
