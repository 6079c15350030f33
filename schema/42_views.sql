-- Monitoring: running tasks, status, history, failures, run times.
--
-- Also priorities, limits and groups, and the number of readers that could be busy. The views of runs
-- and of schedules are in 36_run_status.sql and 41_schedule_views.sql.
--
-- Statements and messages are read from mill.visible_tasks and mill.visible_attempts, which hide them if
-- settings.hide_statements is set.

-- Running tasks -----------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.command_progress() RETURNS TABLE (pid integer, message text,
    percent double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.pid, format('%s: %s%s', p.command, p.phase, ' ' || floor(d.percent) || ' %'), d.percent
    FROM (
        SELECT v.pid, 'vacuum' AS command, v.phase,
            CASE v.phase WHEN 'scanning heap' THEN v.heap_blks_scanned
                WHEN 'vacuuming heap' THEN v.heap_blks_vacuumed END AS done,
            v.heap_blks_total AS total
        FROM pg_stat_progress_vacuum v
        UNION ALL
        SELECT a.pid, 'analyze', a.phase, a.sample_blks_scanned, a.sample_blks_total
        FROM pg_stat_progress_analyze a
        UNION ALL
        -- Scan phases count blocks, sort and merge phases count tuples, and wait phases of CONCURRENTLY count lockers.
        SELECT i.pid, lower(i.command), i.phase,
            CASE WHEN i.phase LIKE 'waiting %' THEN i.lockers_done WHEN i.blocks_total > 0 THEN i.blocks_done
                ELSE i.tuples_done END,
            CASE WHEN i.phase LIKE 'waiting %' THEN i.lockers_total WHEN i.blocks_total > 0 THEN i.blocks_total
                ELSE i.tuples_total END
        FROM pg_stat_progress_create_index i
        UNION ALL
        SELECT c.pid, lower(c.command), c.phase, CASE c.phase WHEN 'seq scanning heap' THEN c.heap_blks_scanned END,
            c.heap_blks_total
        FROM pg_stat_progress_cluster c
        UNION ALL
        SELECT c.pid, lower(c.command), c.tuples_processed || ' rows', c.bytes_processed, c.bytes_total
        FROM pg_stat_progress_copy c) AS p
        CROSS JOIN LATERAL (SELECT least(100, 100.0 * p.done / nullif(p.total, 0))::double precision AS percent) AS d
$$;
COMMENT ON FUNCTION mill.command_progress IS
    'Returns the progress that the server reports for VACUUM, ANALYZE, CREATE INDEX, REINDEX, CLUSTER and COPY, by '
    'backend, for mill.backends. percent: of the current phase';

CREATE OR REPLACE FUNCTION mill.backends() RETURNS TABLE (pid integer, backend_start timestamptz,
    state text, wait_event_type text, wait_event text, query text, blocked_by integer[], blockers jsonb,
    message text, percent double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH activity AS MATERIALIZED (
        SELECT a.pid, a.backend_start, a.state, a.wait_event_type, a.wait_event, a.query, a.usename,
            a.application_name, a.xact_start
        FROM pg_stat_activity a
    ), own AS MATERIALIZED (
        -- One row per backend: tasks in a shared commit have the same backend.
        SELECT a.*, pg_blocking_pids(a.pid) AS blocked_by FROM activity a
        WHERE (a.pid, a.backend_start) IN (SELECT t.session_pid, t.session_started_at FROM mill.tasks t
            WHERE t.state = 'running')
    )
    SELECT o.pid, o.backend_start, o.state, o.wait_event_type, o.wait_event,
        CASE WHEN (SELECT mill.caller_sees_statements()) THEN o.query END, o.blocked_by,
        (SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('pid', b.pid, 'task_id', t.id, 'name', t.name,
                'application', CASE WHEN b.pid = 0 THEN 'a prepared transaction' ELSE a.application_name END,
                'user', a.usename, 'state', a.state, 'transaction_started_at', a.xact_start)) ORDER BY b.pid)
            FROM (SELECT DISTINCT u.pid FROM unnest(o.blocked_by) AS u(pid)) AS b
                LEFT JOIN activity a ON a.pid = b.pid
                LEFT JOIN LATERAL (SELECT r.id, r.name FROM mill.tasks r WHERE r.state = 'running'
                    AND r.session_pid = b.pid AND r.session_started_at = a.backend_start
                    ORDER BY r.id LIMIT 1) AS t ON true),
        p.message, p.percent
    FROM own o LEFT JOIN mill.command_progress() p ON p.pid = o.pid
$$;
COMMENT ON FUNCTION mill.backends IS
    'Returns the backends of running tasks, and no other backends: activity, waits, blockers, and the progress that '
    'the server reports for the command. blockers: [{"pid", "task_id", "name", "application", "user", "state", '
    '"transaction_started_at"}]; only blockers that run a task have task_id and name. query: null if the caller may '
    'not read statements';
GRANT EXECUTE ON FUNCTION mill.backends TO mill_worker, mill_viewer;

CREATE OR REPLACE FUNCTION mill.sessions() RETURNS TABLE (pid integer, backend_start timestamptz, kind text,
    login text, application_name text, state text, xact_start timestamptz, age_xids integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.pid, a.backend_start, a.backend_type, a.usename::text, a.application_name, a.state, a.xact_start,
        greatest(age(a.backend_xmin), age(a.backend_xid))
    FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.usesysid IS NOT NULL OR a.backend_type = 'walsender'
$$;
COMMENT ON FUNCTION mill.sessions IS
    'Returns the sessions of this database and the standbys, without their statements. A role that is no member of '
    'pg_read_all_stats sees nothing else of the sessions of others. age_xids: age of the oldest transaction id that '
    'the session needs; null: none. state is null if the owner of this function may not see it either';
GRANT EXECUTE ON FUNCTION mill.sessions TO mill_worker, mill_viewer;

CREATE OR REPLACE VIEW mill.running AS
    SELECT t.id, t.queue, t.name, t.priority, t.mode, t.attempt, t.claimed_at AS started_at,
        now() - t.claimed_at AS running_duration, t.claimed_by AS worker_id, s.host, s.pid AS worker_pid,
        t.session_pid AS pid, b.state AS backend_state, b.wait_event_type, b.wait_event,
        b.blocked_by, r.requested_at AS cancel_requested_at, t.statement,
        -- Progress reported by the task takes precedence over the server's progress of one command.
        coalesce(CASE WHEN p.message IS NOT NULL AND (SELECT mill.sees_statements()) THEN p.message END,
            b.message) AS progress,
        CASE WHEN p.percent IS NOT NULL AND (SELECT mill.sees_statements()) THEN p.percent
            ELSE b.percent END AS percent,
        p.reported_at AS reported_at, CASE WHEN (SELECT mill.sees_statements()) THEN p.notices END AS notices,
        b.blockers, t.tags, t.metadata, t.options, t.run_id, nullif(t.run_as, '') AS run_as, l.login,
        CASE WHEN (SELECT mill.sees_statements()) THEN b.query END AS query
    FROM mill.visible_tasks t
        LEFT JOIN mill.backends() b ON b.pid = t.session_pid AND b.backend_start = t.session_started_at
        LEFT JOIN mill.sessions() l ON l.pid = t.session_pid AND l.backend_start = t.session_started_at
        LEFT JOIN mill.worker_starts s ON s.id = t.claimed_by
        LEFT JOIN mill.cancel_requests r ON r.task_id = t.id
        LEFT JOIN mill.progress p ON p.task_id = t.id AND p.worker_id = t.claimed_by AND p.attempt = t.attempt
    WHERE t.state = 'running';
COMMENT ON VIEW mill.running IS
    'Running tasks with worker, run, login, start time, wait events, blockers, progress and last notices. query: what '
    'the backend executes, which can be the statement of the task or one of the worker';
GRANT SELECT ON mill.running TO mill_worker;

-- Capacity ----------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW mill.queue_status AS
    SELECT name AS queue,
        coalesce(q.paused, false) AS paused,
        coalesce(t.pending, 0) AS pending,
        coalesce(t.running, 0) AS running,
        coalesce(t.scheduled, 0) AS scheduled,
        coalesce(t.blocked, 0) AS blocked,
        t.oldest_pending_at,
        now() - t.oldest_pending_at AS oldest_pending_age,
        now() - t.oldest_running_at AS longest_running,
        q.shared_commit,
        l.max_running,
        l.rate_starts,
        l.rate_period,
        coalesce(q.store_params, true) AS store_params,
        coalesce(q.store_output, true) AS store_output,
        q.max_replication_lag,
        q.max_snapshot_age,
        q.max_active_sessions,
        q.held_back
    FROM mill.queues q FULL JOIN (
        SELECT queue AS name,
            count(*) FILTER (WHERE state = 'pending') AS pending,
            count(*) FILTER (WHERE state = 'running') AS running,
            count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
            count(*) FILTER (WHERE state = 'blocked') AS blocked,
            min(due_at) FILTER (WHERE state = 'pending') AS oldest_pending_at,
            min(claimed_at) FILTER (WHERE state = 'running') AS oldest_running_at
        FROM mill.tasks GROUP BY queue) t USING (name)
        FULL JOIN (SELECT * FROM mill.limits WHERE kind = 'queue') l USING (name);
COMMENT ON VIEW mill.queue_status IS
    'Queues with the number of tasks by state, the age of the oldest pending task, and their settings';
GRANT SELECT ON mill.queue_status TO mill_worker;

CREATE OR REPLACE VIEW mill.priority_status AS
    SELECT p.priority, p.weight, coalesce(t.pending, 0) AS pending, coalesce(t.running, 0) AS running,
        now() - t.oldest_pending_at AS oldest_pending_age
    FROM mill.priorities p LEFT JOIN (
        SELECT priority, count(*) FILTER (WHERE state = 'pending') AS pending,
            count(*) FILTER (WHERE state = 'running') AS running,
            min(due_at) FILTER (WHERE state = 'pending') AS oldest_pending_at
        FROM mill.tasks GROUP BY priority) t USING (priority);
COMMENT ON VIEW mill.priority_status IS
    'Priorities with weight, number of pending and running tasks, and the age of the oldest pending task';
GRANT SELECT ON mill.priority_status TO mill_worker;

CREATE OR REPLACE VIEW mill.limit_status AS
    SELECT l.*, coalesce(p.running, 0) AS running, coalesce(t.waiting, 0) AS waiting
    FROM mill.effective_limits l
        -- A filter, not a condition: for one limit, a scan of the index permits_task may seem cheaper than a probe.
        LEFT JOIN (SELECT limit_id AS id, count(*) FILTER (WHERE counts_until IS NULL) AS running FROM mill.permits
            GROUP BY limit_id) p USING (id)
        LEFT JOIN (SELECT blocking_limit_id AS id, count(*) AS waiting FROM mill.tasks
            WHERE state = 'blocked' GROUP BY blocking_limit_id) t USING (id);
COMMENT ON VIEW mill.limit_status IS
    'Limits with their current values, the number of tasks that hold a permit (pending or running), and the number of '
    'tasks that wait for one';
GRANT SELECT ON mill.limit_status TO mill_worker;

CREATE OR REPLACE VIEW mill.group_status AS
    SELECT g.*, a.open, a.until AS next_change_at, coalesce(t.pending, 0) AS pending,
        coalesce(t.running, 0) AS running, coalesce(t.blocked, 0) AS blocked
    FROM mill.groups g
        CROSS JOIN LATERAL mill.active_period(g.opens, g.closes, g.zone, now()) AS a
        LEFT JOIN (SELECT group_name AS name, count(*) FILTER (WHERE state = 'pending') AS pending,
                count(*) FILTER (WHERE state = 'running') AS running,
                count(*) FILTER (WHERE state = 'blocked') AS blocked
            FROM mill.tasks WHERE group_name IS NOT NULL GROUP BY group_name) t USING (name);
COMMENT ON VIEW mill.group_status IS
    'Groups with their settings, whether the active period is open and until when, and the number of tasks by state';

-- Finds the distinct queues of the pending index with a loose index scan, one probe per queue, and then
-- counts up to 100000 entries. A paused queue of any size costs one probe. Includes scheduled tasks that
-- are due, because without a worker nothing promotes them to pending.
CREATE OR REPLACE FUNCTION mill.scale_hint(queues text[] DEFAULT NULL) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH RECURSIVE walk AS (
        (SELECT t.queue FROM mill.tasks t WHERE t.state = 'pending' ORDER BY t.queue LIMIT 1)
        UNION ALL
        SELECT (SELECT t.queue FROM mill.tasks t WHERE t.state = 'pending' AND t.queue > walk.queue
            ORDER BY t.queue LIMIT 1)
        FROM walk WHERE walk.queue IS NOT NULL
    ), paused AS MATERIALIZED (
        SELECT q.name FROM mill.queues q WHERE q.paused OR q.held_back IS NOT NULL
    ), waiting AS MATERIALIZED (
        SELECT FROM walk CROSS JOIN LATERAL (
            SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = walk.queue LIMIT 100000) AS task
        WHERE (scale_hint.queues IS NULL OR walk.queue = ANY (scale_hint.queues))
            AND walk.queue NOT IN (SELECT p.name FROM paused p) AND NOT (SELECT mill.fleet_paused())
        LIMIT 100000
    ), due AS MATERIALIZED (
        SELECT t.queue FROM mill.tasks t WHERE t.state = 'scheduled' AND t.due_at <= now() LIMIT 100000
    )
    SELECT (SELECT count(*) FROM waiting)
        + (SELECT count(*) FROM due d
            WHERE (scale_hint.queues IS NULL OR d.queue = ANY (scale_hint.queues))
                AND d.queue NOT IN (SELECT p.name FROM paused p) AND NOT (SELECT mill.fleet_paused()))
        + (SELECT count(*) FROM mill.tasks t WHERE t.state = 'running'
            AND (scale_hint.queues IS NULL OR t.queue = ANY (scale_hint.queues)))
$$;
COMMENT ON FUNCTION mill.scale_hint IS
    'Returns the number of readers that could be busy now, in all queues or in the given ones: tasks ready to run '
    '(pending, or scheduled and due) plus running tasks. Divide it by the readers per worker to get the number of '
    'workers. Excludes tasks of paused and held back queues, blocked tasks (more workers do not help them) and '
    'tasks that are not due; while the fleet is paused, excludes all tasks that wait. Includes running tasks of '
    'paused queues, so that a busy fleet is not scaled down. Counts at most 100000 pending and 100000 due tasks. '
    'Ignores profiles: a task whose profile no worker has is counted';
GRANT EXECUTE ON FUNCTION mill.scale_hint TO mill_viewer;

-- History -----------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW mill.history AS
    SELECT a.task_id, a.attempt, a.final, a.outcome, a.queue, a.name, a.priority, a.mode,
        a.enqueued_at, a.due_at, a.started_at, a.finished_at,
        coalesce(a.started_at, a.finished_at) - a.due_at AS wait_duration,
        a.finished_at - a.started_at AS duration,
        a.rows, a.sqlstate, a.message, a.detail, a.hint, a.context, a.position, a.notices, a.result,
        a.worker_id, s.host, s.pid AS worker_pid, a.session_pid, a.statement, a.params, a.run_id,
        -- Null for tasks without explain: the server has no such counters per backend.
        a.plan, (a.plan->'Plan'->>'WAL Bytes')::bigint AS wal_bytes,
        (a.plan->'Plan'->>'Shared Hit Blocks')::bigint AS blocks_hit,
        (a.plan->'Plan'->>'Shared Read Blocks')::bigint AS blocks_read,
        (a.plan->'Plan'->>'Temp Written Blocks')::bigint AS temp_blocks_written,
        a.tags, a.metadata, a.options
    FROM mill.visible_attempts a LEFT JOIN mill.worker_starts s ON s.id = a.worker_id;
COMMENT ON VIEW mill.history IS
    'Finished attempts with outcome, wait and run time, error, notices and first rows. For tasks with explain also '
    'the plan and its WAL and block counts';

CREATE OR REPLACE FUNCTION mill.durations_of(queue text, name text) RETURNS TABLE (attempts bigint,
    failures bigint, p50 interval, p95 interval, mean interval, last interval,
    last_at timestamptz, trend double precision)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*), count(*) FILTER (WHERE a.outcome::text NOT IN ('succeeded', 'cancelled', 'interrupted')),
        percentile_cont(0.5) WITHIN GROUP (ORDER BY a.run), percentile_cont(0.95) WITHIN GROUP (ORDER BY a.run),
        avg(a.run), min(a.run) FILTER (WHERE a.n = 1), max(a.finished_at),
        CASE WHEN count(a.run) >= 40 THEN
            extract(epoch FROM percentile_cont(0.5) WITHIN GROUP (ORDER BY a.run) FILTER (WHERE a.n <= 20))
            / nullif(extract(epoch FROM percentile_cont(0.5) WITHIN GROUP (ORDER BY a.run)
                FILTER (WHERE a.n BETWEEN 21 AND 220)), 0) END::double precision
    FROM (SELECT r.outcome, r.finished_at,
            CASE WHEN r.outcome = 'succeeded' THEN r.finished_at - r.started_at END AS run,
            CASE WHEN r.outcome = 'succeeded'
                THEN row_number() OVER (PARTITION BY r.outcome = 'succeeded' ORDER BY r.finished_at DESC) END AS n
        FROM (SELECT x.outcome, x.started_at, x.finished_at FROM mill.attempts x
            WHERE x.queue = durations_of.queue AND x.name = durations_of.name AND x.started_at IS NOT NULL
                AND x.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
                AND x.finished_at < now() + interval '1 hour'
            ORDER BY x.finished_at DESC LIMIT 500) AS r) AS a
$$;
COMMENT ON FUNCTION mill.durations_of IS
    'Returns run times of tasks with this name, from at most the last 500 attempts of the last seven days (UTC). p50, '
    'p95, mean and last cover successful attempts. trend: median of the last 20 successful attempts divided by the '
    'median of up to 200 before them; null if there are fewer than 40';
GRANT EXECUTE ON FUNCTION mill.durations_of TO mill_viewer;

-- Finds the distinct names with a loose index scan, one probe per name. The period is a number of whole
-- days. Otherwise each probe could have to skip up to a day of index entries that are too old.
CREATE OR REPLACE VIEW mill.durations AS
    WITH RECURSIVE named (queue, name) AS (
        (SELECT a.queue, a.name FROM mill.attempts a WHERE a.name IS NOT NULL
            AND a.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
            AND a.finished_at < now() + interval '1 hour' ORDER BY a.queue, a.name LIMIT 1)
        UNION ALL
        SELECT next.queue, next.name FROM named x CROSS JOIN LATERAL (
            SELECT a.queue, a.name FROM mill.attempts a
            WHERE a.name IS NOT NULL AND (a.queue, a.name) > (x.queue, x.name)
                AND a.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
                AND a.finished_at < now() + interval '1 hour' ORDER BY a.queue, a.name LIMIT 1) AS next
    )
    SELECT n.queue, n.name, d.* FROM (SELECT x.queue, x.name FROM named x LIMIT 1000) AS n
        CROSS JOIN LATERAL mill.durations_of(n.queue, n.name) AS d
    WHERE d.attempts > 0;
COMMENT ON VIEW mill.durations IS
    'Durations of tasks by queue and task name, for the first 1000 names, see mill.durations_of';

-- Slow tasks and runs -----------------------------------------------------------------------------

-- Looks up the attempts of at most 100 tasks, in the index on names; the limits keep the cost independent
-- of the size of the history.
CREATE OR REPLACE VIEW mill.slow_tasks AS
    SELECT t.id, t.queue, t.name, t.claimed_at AS started_at, now() - t.claimed_at AS duration, u.p95,
        d.expected_duration
    FROM (SELECT r.id, r.queue::text AS queue, r.name::text AS name, r.claimed_at, r.run_id, r.node FROM mill.tasks r
            WHERE r.state = 'running' AND r.name IS NOT NULL AND r.claimed_at < now() - interval '1 minute'
            ORDER BY r.claimed_at LIMIT 100) AS t
        CROSS JOIN mill.settings s
        LEFT JOIN mill.run_tasks d ON d.run_id = t.run_id AND d.node = t.node
        CROSS JOIN LATERAL (
            SELECT percentile_cont(0.95) WITHIN GROUP (ORDER BY x.run) AS p95, count(*) AS runs
            FROM (SELECT l.finished_at - l.started_at AS run FROM (
                    SELECT a.outcome, a.started_at, a.finished_at FROM mill.attempts a
                    WHERE a.queue = t.queue AND a.name = t.name
                        AND a.finished_at >= date_trunc('day', now(), 'UTC') - interval '144 hours'
                        AND a.finished_at < now() + interval '1 hour'
                    ORDER BY a.finished_at DESC LIMIT 200) AS l
                WHERE l.outcome = 'succeeded' ORDER BY l.finished_at DESC LIMIT 30) AS x) AS u
    WHERE now() - t.claimed_at > coalesce(d.expected_duration, CASE WHEN u.runs >= 5 THEN s.slow_factor * u.p95 END);
COMMENT ON VIEW mill.slow_tasks IS
    'Tasks that have run for more than a minute, and for more than their expected_duration, or without one, for more '
    'than settings.slow_factor times the usual duration of '
    'tasks with their queue and name. p95: the usual duration, the 95th percentile of the last 30 successful attempts '
    'of the last seven days. Only tasks with a name that has at least five such attempts; of the running tasks, the '
    '100 longest';

CREATE OR REPLACE FUNCTION mill.slow_tasks_unless_locked() RETURNS SETOF mill.slow_tasks
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT t.* FROM mill.slow_tasks t;
EXCEPTION WHEN lock_not_available THEN
    NULL;
END
$$;
COMMENT ON FUNCTION mill.slow_tasks_unless_locked IS
    'Returns mill.slow_tasks, or no rows if the history is locked for longer than lock_timeout. For overviews, which '
    'show everything else nevertheless';
GRANT EXECUTE ON FUNCTION mill.slow_tasks_unless_locked TO mill_viewer;

-- No index covers the jobs of runs, so the view learns from the newest 1000 runs.
CREATE OR REPLACE VIEW mill.slow_runs AS
    WITH learned AS MATERIALIZED (
        SELECT r.jobs, percentile_cont(0.95) WITHIN GROUP (ORDER BY r.run) AS p95
        FROM (SELECT n.jobs, n.finished_at - n.started_at AS run,
                row_number() OVER (PARTITION BY n.jobs ORDER BY n.id DESC) AS place
            FROM (SELECT o.* FROM mill.runs o ORDER BY o.id DESC LIMIT 1000) AS n
            WHERE n.state = 'succeeded' AND n.restarts = 0) AS r
        WHERE r.place <= 30 GROUP BY r.jobs HAVING count(*) >= 5
    )
    SELECT g.id, g.jobs, g.started_at, now() - g.began_at AS duration, u.p95, g.expected_duration
    FROM (SELECT r.id, r.jobs, r.started_at, coalesce(r.restarted_at, r.started_at) AS began_at, r.expected_duration
            FROM mill.runs r
            WHERE r.state = 'running' ORDER BY r.schedule_id LIMIT 500) AS g
        LEFT JOIN learned u ON u.jobs = g.jobs CROSS JOIN mill.settings s
    WHERE now() - g.began_at > coalesce(g.expected_duration,
        CASE WHEN u.p95 IS NOT NULL THEN greatest(interval '1 minute', s.slow_factor * u.p95) END);
COMMENT ON VIEW mill.slow_runs IS
    'Runs in progress for longer than their expected_duration. Of runs without one: those in progress for more than a '
    'minute, and for more than settings.slow_factor times the usual duration of runs '
    'of their jobs. p95: the usual duration, the 95th percentile of up to 30 successful runs of the same jobs without '
    'a restart, at least five, among the newest 1000 runs. Searches 500 runs in progress';

-- Failures ----------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.message_pattern(message text) RETURNS text
LANGUAGE sql IMMUTABLE COST 1000 SET search_path = pg_catalog, pg_temp AS $$
    -- The characters are listed, because what a class such as [:alnum:] has depends on the collation. A single quote
    -- behind a letter of an alphabet is an apostrophe; in Chinese and Japanese, a quote can follow a word directly.
    SELECT left(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(left(message, 1000),
        $re$\m[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\M$re$, '#', 'g'),
        '"[^"]*"', '"…"', 'g'),
        format('([%1$s])[^%1$s]*([%1$s])', $re$\u00ab\u00bb\u201c-\u201f\u2039\u203a\u275d-\u2760\u276e\u276f\u2e42$re$
            || $re$\u300c-\u300f\u301d-\u301f\ufe41-\ufe44\uff02\uff62\uff63$re$), $re$\1…\2$re$, 'g'),
        $re$(^|[^A-Za-z0-9\u00c0-\u058f])(['\u2018-\u201b])[^'\u2018-\u201b]*(['\u2018-\u201b])$re$,
            $re$\1\2…\3$re$, 'g'),
        format($re$0x[0-9a-fA-F]+|[%1$s]+([.,:\u00a0\u2009\u202f-][%1$s]+)*$re$,
            $re$0-9\u0660-\u0669\u06f0-\u06f9\u0966-\u096f\uff10-\uff19$re$), '#', 'g'), 300)
$$;
COMMENT ON FUNCTION mill.message_pattern IS
    'Returns an error message without its variable parts: quoted names and values, numbers, dates and UUIDs';
GRANT EXECUTE ON FUNCTION mill.message_pattern TO mill_viewer;

-- Has the rights of the caller, and reads the view that hides messages.
CREATE OR REPLACE FUNCTION mill.failure_groups(since interval DEFAULT '1 day') RETURNS TABLE (outcome mill.outcome,
    sqlstate text, message text, attempts bigint, tasks bigint, first_at timestamptz, last_at timestamptz,
    queues text[], names text[], examples bigint[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.outcome, f.sqlstate, mill.message_pattern(f.message), count(*), count(DISTINCT f.task_id),
        min(f.finished_at), max(f.finished_at), array_agg(DISTINCT f.queue),
        (array_agg(DISTINCT f.name) FILTER (WHERE f.name IS NOT NULL))[1:10],
        (array_agg(f.task_id ORDER BY f.finished_at DESC) FILTER (WHERE f.newest))[1:5]
    FROM (SELECT a.*, a.finished_at = max(a.finished_at) OVER (PARTITION BY a.task_id, a.outcome, a.sqlstate,
            mill.message_pattern(a.message)) AS newest
        FROM (SELECT a.outcome, a.sqlstate, a.message, a.task_id, a.finished_at, a.queue, a.name
            FROM mill.visible_attempts a
            WHERE a.finished_at > now() - since AND a.outcome <> 'succeeded' AND a.outcome <> 'cancelled'
                AND a.outcome::text <> 'interrupted'
            ORDER BY a.finished_at DESC LIMIT 10000) AS a) AS f
    GROUP BY f.outcome, f.sqlstate, mill.message_pattern(f.message)
    ORDER BY count(*) DESC, max(f.finished_at) DESC
$$;
COMMENT ON FUNCTION mill.failure_groups IS
    'Returns failed attempts of the given period, at most the last 10000, grouped by outcome, SQLSTATE and '
    'mill.message_pattern, most frequent first. names: up to 10. examples: ids of the last 5 tasks';
GRANT EXECUTE ON FUNCTION mill.failure_groups TO mill_viewer;

CREATE OR REPLACE VIEW mill.failures AS
    SELECT g.* FROM mill.failure_groups() AS g;
COMMENT ON VIEW mill.failures IS 'Failed attempts of the last day, grouped as by mill.failure_groups';
