-- Attempts: the history, in daily partitions.
--
-- Partitions are created in advance, and dropped as a whole.
--
-- Rows of mill.attempts are only inserted. 11_prune.sql drops old partitions.

CREATE TABLE IF NOT EXISTS mill.attempts (
    finished_at timestamptz NOT NULL,
    task_id bigint NOT NULL,
    enqueued_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    started_at timestamptz,
    worker_id uuid,
    token uuid,
    rows bigint,
    attempt integer NOT NULL,
    outcome mill.outcome NOT NULL,
    priority mill.priority NOT NULL,
    session_pid integer,
    position integer,
    final boolean NOT NULL,
    queue text NOT NULL,
    name text,
    key text,
    concurrency_key text,
    group_name text,
    run_id bigint,
    node bigint,
    sqlstate text,
    message text,
    detail text,
    hint text,
    context text,
    notices jsonb,
    result jsonb,
    plan jsonb,
    run_as text NOT NULL DEFAULT '',
    params jsonb,
    statement text NOT NULL,
    options mill.task_options,
    receipt uuid
) PARTITION BY RANGE (finished_at);
COMMENT ON TABLE mill.attempts IS
    'One row per finished attempt. Rows are never updated. Daily partitions (UTC) are created in advance, and '
    'dropped after settings.history_retention';
COMMENT ON COLUMN mill.attempts.final IS 'Whether the task ended with this attempt';
COMMENT ON COLUMN mill.attempts.started_at IS
    'Time at which the attempt was claimed; null if the task ended without being claimed';
COMMENT ON COLUMN mill.attempts.rows IS 'Rows returned or affected, summed over the statements of the task';
COMMENT ON COLUMN mill.attempts.position IS 'Position of the error in the statement, in characters from 1';
COMMENT ON COLUMN mill.attempts.notices IS
    'Messages that the statement raised below level ERROR, truncated: [{"severity", "message", …}]';
COMMENT ON COLUMN mill.attempts.receipt IS 'Tasks with a target: id of the receipt in the target';
COMMENT ON COLUMN mill.attempts.result IS
    'First rows that the statement returned, truncated: {"columns", "rows", "truncated"}. If values of the first row '
    'are truncated or placeholders, also {"unusable": {column: reason}}';
COMMENT ON COLUMN mill.attempts.plan IS
    'Tasks with explain: output of EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON), size-limited: {"Plan", "Planning '
    'Time", "Execution Time", …}';
-- Used by pgmill task show, mill.retry and crates/queue/src/transition/resolve_commit.rs.
CREATE INDEX IF NOT EXISTS attempts_task ON mill.attempts (task_id);
-- Used by crates/queue/src/read/history.rs to find the attempts of the last hours of a day. Rows are inserted
-- in chronological order, so a BRIN index is selective enough and costs almost nothing per insert.
CREATE INDEX IF NOT EXISTS attempts_finished ON mill.attempts USING brin (finished_at);
-- Used by mill.durations to find the distinct names, and the last attempts of each name. Tasks without a
-- name have no overhead.
CREATE INDEX IF NOT EXISTS attempts_named ON mill.attempts (queue, name, finished_at) WHERE name IS NOT NULL;
-- Used by mill.failure_groups.
CREATE INDEX IF NOT EXISTS attempts_failed ON mill.attempts (finished_at)
    WHERE outcome <> 'succeeded' AND outcome <> 'cancelled';
REVOKE INSERT ON mill.attempts FROM mill_worker;
GRANT SELECT ON mill.attempts TO mill_worker;

CREATE OR REPLACE VIEW mill.visible_attempts AS
    SELECT x.finished_at, x.task_id, x.enqueued_at, x.due_at, x.started_at, x.worker_id, x.rows,
        x.attempt, x.outcome, x.priority, x.session_pid, x.position, x.final, x.queue, x.name, x.key, x.concurrency_key,
        x.group_name, x.run_id, x.node, x.sqlstate, x.run_as,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.message END AS message,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.detail END AS detail,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.hint END AS hint,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.context END AS context,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.notices END AS notices,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.result END AS result,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.plan END AS plan,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement,
        (x.options).timeout, (x.options).tags, (x.options).metadata, x.options, (mill.effective(x.options)).*
    FROM mill.attempts x;
COMMENT ON VIEW mill.visible_attempts IS
    'mill.attempts without tokens, for mill_viewer. Hides statements and their output if settings.hide_statements is '
    'set';

CREATE TABLE IF NOT EXISTS mill.history_state (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    day date NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')::date,
    trusted_from timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE mill.history_state IS
    'What the maintenance of history has seen of the clock';
COMMENT ON COLUMN mill.history_state.day IS 'Last day (UTC) on which mill.clock_is_trusted was called';
COMMENT ON COLUMN mill.history_state.trusted_from IS
    'Until then, nothing is deleted because of its age: the clock has skipped a day, which may be an error';
INSERT INTO mill.history_state DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION mill.prepare_history(days_ahead integer DEFAULT 7) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
SET default_tablespace = '' SET default_table_access_method = 'heap' AS $$
DECLARE
    made integer := 0;
    day date;
    partition_name text;
    others text;
BEGIN
    -- The settings of the database or of the caller decide nothing about the partition, but a tablespace of the
    -- parent does.
    PERFORM set_config('default_tablespace', s.spcname, true)
        FROM pg_class c JOIN pg_tablespace s ON s.oid = c.reltablespace WHERE c.oid = 'mill.attempts'::regclass;
    FOR day IN SELECT generate_series(current_date, current_date + days_ahead, '1 day')::date LOOP
        partition_name := 'attempts_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('mill.' || partition_name) IS NOT NULL;
        -- The lock lets one session create the partition. Sessions that waited for the lock then find
        -- the partition.
        PERFORM mill.lock('history');
        CONTINUE WHEN to_regclass('mill.' || partition_name) IS NOT NULL;
        -- CREATE TABLE and ATTACH PARTITION take a lock that allows inserts into the other partitions.
        -- CREATE TABLE … PARTITION OF takes a lock that does not.
        EXECUTE format('CREATE TABLE mill.%I (LIKE mill.attempts INCLUDING DEFAULTS)', partition_name);
        -- Privileges on mill.attempts are enough to read its partitions. Default privileges can give others.
        SELECT string_agg(DISTINCT CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END, ', ')
            INTO others FROM pg_class c CROSS JOIN aclexplode(c.relacl) x
            WHERE c.oid = format('mill.%I', partition_name)::regclass AND x.grantee <> c.relowner;
        IF others IS NOT NULL THEN
            EXECUTE format('REVOKE ALL ON mill.%I FROM %s', partition_name, others);
        END IF;
        -- The partition has no key. If it is published for logical replication, the server rejects
        -- updates and deletes of its rows unless they have a replica identity.
        EXECUTE format('ALTER TABLE mill.%I REPLICA IDENTITY FULL', partition_name);
        EXECUTE format('ALTER TABLE mill.attempts ATTACH PARTITION mill.%I FOR VALUES FROM (%L) TO (%L)',
            partition_name, day::timestamptz, (day + 1)::timestamptz);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
COMMENT ON FUNCTION mill.prepare_history IS
    'Creates the missing partitions of mill.attempts for today and the given number of days ahead. Returns the number '
    'of partitions created';
GRANT EXECUTE ON FUNCTION mill.prepare_history TO mill_worker;
DO $$ BEGIN PERFORM mill.prepare_history(); END $$;
