-- Workers: live workers with their heartbeats, the process behind each worker id, requests to cancel running
-- tasks, and the progress that running tasks report.
--
-- mill.workers and mill.progress are unlogged: they describe the present, and are empty after a crash.

CREATE UNLOGGED TABLE IF NOT EXISTS mill.workers (
    id uuid PRIMARY KEY,
    heartbeat bigint NOT NULL DEFAULT 0,
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    heartbeat_interval interval NOT NULL,
    orphan_timeout interval NOT NULL,
    session_lock_key bigint NOT NULL,
    readers integer NOT NULL CHECK (readers > 0),
    busy integer NOT NULL DEFAULT 0,
    draining boolean NOT NULL DEFAULT false,
    queues text[],
    profiles jsonb NOT NULL DEFAULT '{"": 1}',
    error text,
    error_since timestamptz,
    destinations text[]
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.workers IS
    'Live workers. Unlogged: a heartbeat writes no WAL, and after a crash of the server the table is empty';
COMMENT ON COLUMN mill.workers.id IS 'Random identifier, new at each process start';
COMMENT ON COLUMN mill.workers.session_lock_key IS 'Key of the shared advisory lock that the control session holds';
COMMENT ON COLUMN mill.workers.draining IS 'Whether the worker has stopped claiming tasks';
COMMENT ON COLUMN mill.workers.profiles IS 'Number of readers per profile: {"profile": readers}';
COMMENT ON COLUMN mill.workers.error IS
    'Error that an operation of the worker meets again and again, such as recording the end of a task; null: none';
COMMENT ON COLUMN mill.workers.error_since IS 'Time of the first heartbeat that reported an error; null: none';
COMMENT ON COLUMN mill.workers.destinations IS 'Destinations of notifications that the worker is configured for';
COMMENT ON COLUMN mill.workers.queues IS 'Queues that the worker serves; null: all queues';
GRANT SELECT, INSERT, UPDATE, DELETE ON mill.workers TO mill_worker;

-- Returns all keys at once, so that a query over any number of workers reads pg_locks once.
CREATE OR REPLACE FUNCTION mill.live_sessions() RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.classid::bigint << 32 | l.objid::bigint FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;
COMMENT ON FUNCTION mill.live_sessions IS
    'Returns the keys of the advisory locks that control sessions of workers hold. A worker whose control session '
    'has ended holds no lock';
GRANT EXECUTE ON FUNCTION mill.live_sessions TO mill_worker, mill_viewer;

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
GRANT SELECT, INSERT, UPDATE, DELETE ON mill.cancel_requests TO mill_worker;

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
