-- Attempts: the history, in daily partitions that are created in advance and dropped as a whole.
--
-- Rows of mill.attempts are only inserted. mill.prune drops old partitions, and also deletes rows of
-- other tables that are no longer needed, such as those of old runs.

CREATE TABLE IF NOT EXISTS mill.attempts (
    finished_at timestamptz NOT NULL,
    task_id bigint NOT NULL,
    enqueued_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    started_at timestamptz,
    worker_id uuid,
    token uuid,
    retry_interval interval NOT NULL,
    timeout interval,
    rows bigint,
    attempt integer NOT NULL,
    outcome mill.outcome NOT NULL,
    priority mill.priority NOT NULL,
    mode mill.mode NOT NULL,
    backoff mill.backoff NOT NULL,
    max_attempts integer NOT NULL,
    session_pid integer,
    position integer,
    final boolean NOT NULL,
    jitter boolean NOT NULL,
    at_most_once boolean NOT NULL,
    external boolean NOT NULL,
    explain boolean NOT NULL DEFAULT false,
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
-- Used by pgmill task show, mill.retry and queue/src/transition/resolve_commit.rs.
CREATE INDEX IF NOT EXISTS attempts_task ON mill.attempts (task_id);
-- Used by queue/src/read/history.rs to find the attempts of the last hours of a day. Rows are inserted
-- in chronological order, so a BRIN index is selective enough and costs almost nothing per insert.
CREATE INDEX IF NOT EXISTS attempts_finished ON mill.attempts USING brin (finished_at);
-- Used by mill.durations to find the distinct names, and the last attempts of each name. Tasks without a
-- name have no overhead.
CREATE INDEX IF NOT EXISTS attempts_named ON mill.attempts (queue, name, finished_at) WHERE name IS NOT NULL;
-- Used by mill.failure_groups.
CREATE INDEX IF NOT EXISTS attempts_failed ON mill.attempts (finished_at)
    WHERE outcome <> 'succeeded' AND outcome <> 'cancelled';
GRANT SELECT, INSERT ON mill.attempts TO mill_worker;

CREATE OR REPLACE VIEW mill.visible_attempts AS
    SELECT x.finished_at, x.task_id, x.enqueued_at, x.due_at, x.started_at, x.worker_id, x.retry_interval,
        x.timeout, x.rows, x.attempt, x.outcome, x.priority, x.mode, x.backoff, x.max_attempts,
        x.session_pid, x.position, x.final, x.jitter, x.at_most_once, x.external, x.explain, x.queue, x.name, x.key,
        x.concurrency_key, x.group_name, x.run_id, x.node, x.sqlstate, x.run_as,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.message END AS message,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.detail END AS detail,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.hint END AS hint,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.context END AS context,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.notices END AS notices,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.result END AS result,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.plan END AS plan,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN x.statement END AS statement,
        (x.options).tags, (x.options).metadata, x.options
    FROM mill.attempts x;
COMMENT ON VIEW mill.visible_attempts IS
    'mill.attempts without tokens, for mill_viewer. Hides statements and their output if settings.hide_statements is '
    'set';

CREATE OR REPLACE FUNCTION mill.prepare_history(days_ahead integer DEFAULT 7) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    made integer := 0;
    day date;
    partition_name text;
BEGIN
    FOR day IN SELECT generate_series(current_date, current_date + days_ahead, '1 day')::date LOOP
        partition_name := 'attempts_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('mill.' || partition_name) IS NOT NULL;
        -- The lock lets one session create the partition. Sessions that waited for the lock then find
        -- the partition.
        PERFORM pg_advisory_xact_lock(7236270912);
        CONTINUE WHEN to_regclass('mill.' || partition_name) IS NOT NULL;
        -- CREATE TABLE and ATTACH PARTITION take a lock that allows inserts into the other partitions.
        -- CREATE TABLE … PARTITION OF takes a lock that does not.
        EXECUTE format('CREATE TABLE mill.%I (LIKE mill.attempts INCLUDING DEFAULTS)', partition_name);
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

CREATE OR REPLACE FUNCTION mill.prune_runs() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    oldest date;
    old_runs bigint[];
BEGIN
    SELECT (now() - history_retention)::date INTO oldest FROM mill.settings;
    SELECT array_agg(r.id) INTO old_runs FROM (
        SELECT r.id FROM mill.runs r WHERE r.finished_at < oldest ORDER BY r.id LIMIT 1000
        FOR UPDATE SKIP LOCKED) AS r;
    DELETE FROM mill.run_edges e WHERE e.run_id = ANY (old_runs);
    DELETE FROM mill.run_tasks t WHERE t.run_id = ANY (old_runs);
    DELETE FROM mill.run_events e WHERE e.run_id = ANY (old_runs);
    DELETE FROM mill.runs r WHERE r.id = ANY (old_runs);
    RETURN coalesce(cardinality(old_runs), 0);
END
$$;
COMMENT ON FUNCTION mill.prune_runs IS
    'Deletes up to 1000 runs that finished before the days that settings.history_retention keeps, with their tasks. '
    'Returns the number of runs deleted. The caller repeats the call until it returns less than 1000';
GRANT EXECUTE ON FUNCTION mill.prune_runs TO mill_worker;

CREATE OR REPLACE FUNCTION mill.prune() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
SET lock_timeout = '2s' AS $$
DECLARE
    dropped integer := 0;
    oldest date;
    partition_name text;
    idle_limits bigint[];
BEGIN
    SELECT (now() - history_retention)::date INTO oldest FROM mill.settings;
    -- Ids are almost in chronological order, so it suffices to examine the lowest ids.
    DELETE FROM mill.audit a USING (SELECT o.id FROM mill.audit o ORDER BY o.id LIMIT 50000) AS first, mill.settings s
        WHERE a.id = first.id AND a.at < now() - s.audit_retention;
    DELETE FROM mill.cancel_requests r
        WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = r.task_id);
    DELETE FROM mill.progress p
        WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = p.task_id AND t.state = 'running');
    -- For workers of version 1. Others have deleted the old runs before, in calls of their own.
    PERFORM mill.prune_runs();
    DELETE FROM mill.worker_starts s
        WHERE s.started_at < oldest AND NOT EXISTS (SELECT FROM mill.workers w WHERE w.id = s.id);
    DELETE FROM mill.permits p
        WHERE p.counts_until < now() - interval '1 minute'
            OR p.counts_until IS NULL AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = p.task_id);
    -- Deletes default limits of unused concurrency keys, and limits of finished runs. An enqueue locks its limits until
    -- its tasks are visible. So the second statement, which looks for tasks again, sees those that were
    -- not yet visible to the first. EXCEPT reads the tasks once. With NOT IN, the planner compares each limit with
    -- each task if it expects too many tasks for a hash table, as it does without statistics.
    idle_limits := ARRAY(SELECT l.id FROM mill.limits l WHERE l.id = ANY (ARRAY(
        SELECT i.id FROM mill.limits i
        WHERE (i.kind = 'group' OR i.kind = 'key' AND i.max_running = 1 AND i.rate_starts IS NULL AND NOT i.explicit)
            AND NOT EXISTS (SELECT FROM mill.permits p WHERE p.limit_id = i.id)
        EXCEPT SELECT unnest(t.limits) FROM mill.tasks t WHERE t.limits IS NOT NULL)) FOR UPDATE OF l SKIP LOCKED);
    DELETE FROM mill.limits l WHERE l.id = ANY (ARRAY(
        SELECT unnest(idle_limits) EXCEPT SELECT unnest(t.limits) FROM mill.tasks t WHERE t.limits IS NOT NULL));
    -- Comes last, because no task can complete from here to the end of the transaction.
    FOR partition_name IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'mill.attempts'::regclass
            AND c.relname ~ '^attempts_[0-9]{8}$' AND right(c.relname, 8)::date < oldest
        ORDER BY c.relname
    LOOP
        EXECUTE format('DROP TABLE mill.%I', partition_name);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END
$$;
COMMENT ON FUNCTION mill.prune IS
    'Drops partitions of mill.attempts older than settings.history_retention and deletes up to 1000 runs, and other '
    'rows that are no longer needed. Returns the number of partitions dropped';
GRANT EXECUTE ON FUNCTION mill.prune TO mill_worker;
