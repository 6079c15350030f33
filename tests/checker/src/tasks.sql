/* checker.install_tasks */
-- What the SQL of tasks writes, and the limits that it counts towards; reads nothing of pgmill's. A target needs this part, too.
CREATE SCHEMA chaos;
GRANT USAGE ON SCHEMA chaos TO PUBLIC;

CREATE TABLE chaos.start (
    task bigint NOT NULL DEFAULT current_setting('mill.task_id')::bigint,
    attempt integer NOT NULL DEFAULT current_setting('mill.attempt')::integer,
    pid integer NOT NULL DEFAULT pg_backend_pid(),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE chaos.start IS 'Autocommit only: committed before the work starts, so the row remains whatever the outcome';
CREATE INDEX ON chaos.start (task);

CREATE TABLE chaos.effect (
    task bigint NOT NULL DEFAULT current_setting('mill.task_id')::bigint,
    attempt integer NOT NULL DEFAULT current_setting('mill.attempt')::integer,
    mode text NOT NULL DEFAULT 'transaction',
    limits text[] NOT NULL DEFAULT '{}',
    pid integer NOT NULL DEFAULT pg_backend_pid(),
    xact xid8 NOT NULL DEFAULT pg_current_xact_id(),
    started_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE chaos.effect IS 'Written by the task''s own SQL: a task leaves one row for each success';
COMMENT ON COLUMN chaos.effect.limits IS 'Limits that the task counted towards while it ran: chaos.limits.name';
CREATE INDEX ON chaos.effect (task);
CREATE TABLE chaos.limits (
    name text PRIMARY KEY,
    max_running integer NOT NULL
);
COMMENT ON TABLE chaos.limits IS 'The highest value that each limit ever had: a lowered limit lets running tasks continue';

GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA chaos TO PUBLIC;

CREATE FUNCTION chaos.work(pause double precision DEFAULT 0, limits text[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
BEGIN
    -- For checker::Monitor.
    PERFORM pg_advisory_xact_lock_shared(4711, current_setting('mill.task_id')::integer);
    PERFORM pg_advisory_xact_lock_shared(4712, hashtext(l.name)) FROM unnest(work.limits) AS l(name);
    IF pause > 0 THEN
        PERFORM pg_sleep(pause);
    END IF;
    INSERT INTO chaos.effect (started_at, limits) VALUES (began, work.limits);
END
$$;
COMMENT ON FUNCTION chaos.work IS 'The body of a task in transaction mode; pause in seconds';

CREATE FUNCTION chaos.begin_work() RETURNS void
LANGUAGE sql AS $$ INSERT INTO chaos.start DEFAULT VALUES $$;
COMMENT ON FUNCTION chaos.begin_work IS 'The first statement of a task in autocommit mode';

CREATE FUNCTION chaos.end_work(limits text[] DEFAULT '{}') RETURNS void
LANGUAGE sql AS $$
    INSERT INTO chaos.effect (mode, started_at, limits)
        SELECT 'autocommit', max(s.started_at), end_work.limits FROM chaos.start s
        WHERE s.task = current_setting('mill.task_id')::bigint AND s.pid = pg_backend_pid()
$$;
COMMENT ON FUNCTION chaos.end_work IS 'The last statement of a task in autocommit mode';
