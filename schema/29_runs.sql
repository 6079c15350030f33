-- Runs: tables, start, tasks added later.
--
-- Status: 36_run_status.sql.
--
-- A job is a named set of tasks with edges. A run is a frozen copy of one or more jobs, merged when
-- the run starts. The queue does not know about graphs: a task of a run is inserted into mill.tasks
-- when it becomes ready (31_run_advance.sql). Events of finished tasks: mill.run_events, 19_finish.sql.

-- Tables ------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS mill.runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    jobs text[] NOT NULL,
    params jsonb NOT NULL,
    tags text[],
    metadata jsonb,
    schedule_id bigint,
    fire_at timestamptz,
    reason text,
    backfill_id bigint,
    state mill.run_state NOT NULL DEFAULT 'running',
    tasks integer NOT NULL DEFAULT 0,
    open integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    ignored integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    upstream_failed integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    restarts integer NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_by text NOT NULL DEFAULT session_user,
    restarted_at timestamptz,
    finished_at timestamptz,
    cancelled_at timestamptz,
    cancelled_by text,
    cancel_reason text,
    kill boolean NOT NULL DEFAULT false,
    expected_duration interval,
    late_at timestamptz,
    late_since timestamptz,
    timeout_at timestamptz,
    needs_rescan boolean NOT NULL DEFAULT false,
    dropped text[],
    CONSTRAINT fired_by_a_schedule CHECK (num_nonnulls(schedule_id, fire_at, reason) IN (0, 3)),
    CONSTRAINT finished_has_time CHECK ((state = 'running') = (finished_at IS NULL)),
    CONSTRAINT every_task_counts CHECK (state = 'running'
        OR tasks = succeeded + failed + ignored + cancelled + upstream_failed + skipped)
);
COMMENT ON TABLE mill.runs IS 'Runs: frozen, merged copies of jobs. Kept as long as mill.attempts';
COMMENT ON COLUMN mill.runs.jobs IS 'Names of the jobs, in the order in which they were given';
COMMENT ON COLUMN mill.runs.open IS 'Number of unfinished tasks, as counted by the last mill.advance_run';
COMMENT ON COLUMN mill.runs.needs_rescan IS
    'Whether mill.advance_run must search the run for ready tasks and for completions to propagate, because '
    'mill.run_events need not have an event for each of them';
COMMENT ON COLUMN mill.runs.succeeded IS
    'Number of succeeded tasks. Like failed, ignored, cancelled, upstream_failed and skipped, it is set when the run '
    'finishes. For a run in progress, mill.run_status counts the tasks';
COMMENT ON COLUMN mill.runs.failed IS 'Number of failed tasks without ignore_failure';
COMMENT ON COLUMN mill.runs.ignored IS 'Number of failed tasks with ignore_failure';
COMMENT ON COLUMN mill.runs.upstream_failed IS
    'Number of tasks that did not run because a task before them failed or was cancelled';
COMMENT ON COLUMN mill.runs.skipped IS 'Number of tasks that did not run although no parent failed';
COMMENT ON COLUMN mill.runs.kill IS 'Whether the run was cancelled together with its running tasks';
COMMENT ON COLUMN mill.runs.schedule_id IS 'Schedule that fired the run; null: started directly';
COMMENT ON COLUMN mill.runs.fire_at IS 'Time of the fire that started the run; null: no schedule fired the run';
COMMENT ON COLUMN mill.runs.tags IS
    'Tags of the jobs, of the schedule and of the call that started the run, sorted; null: none';
COMMENT ON COLUMN mill.runs.metadata IS
    'Metadata of the jobs, of the schedule and of the call that started the run, in ascending precedence; null: none';
COMMENT ON COLUMN mill.runs.restarted_at IS
    'Time at which the run, having ended, was restarted last; null: never. Its duration counts from then';
COMMENT ON COLUMN mill.runs.reason IS
    'Reason of the fire: schedule, manual, backfill, or the trigger condition that was met';
COMMENT ON COLUMN mill.runs.backfill_id IS 'Backfill that started the run; null: none';
COMMENT ON COLUMN mill.runs.dropped IS
    'Edges that the run leaves out because none of its jobs contains their parent: parent > child';

-- Used by mill.fire: a schedule fires once per fire time, even if several workers process the schedule. An
-- operator can start further runs for the same time.
CREATE UNIQUE INDEX IF NOT EXISTS runs_fired_once ON mill.runs
    (schedule_id, fire_at, (CASE WHEN reason IN ('manual', 'backfill') THEN id ELSE 0 END))
    WHERE schedule_id IS NOT NULL;
-- A backfill starts one run per instant.
CREATE UNIQUE INDEX IF NOT EXISTS runs_backfill ON mill.runs (backfill_id, fire_at) WHERE backfill_id IS NOT NULL;
-- For the history of one schedule, with keyset pagination.
CREATE INDEX IF NOT EXISTS runs_schedule ON mill.runs (schedule_id, id) WHERE schedule_id IS NOT NULL;
-- Used by mill.blocking_run, and by the fleet metrics, which count the runs in progress.
CREATE INDEX IF NOT EXISTS runs_in_progress ON mill.runs (schedule_id) WHERE state = 'running';
GRANT SELECT (id, state, cancelled_at) ON mill.runs TO mill_worker;

CREATE TABLE IF NOT EXISTS mill.run_tasks (
    run_id bigint NOT NULL,
    node bigint NOT NULL,
    task_id bigint,
    added_by bigint,
    propagated_to bigint NOT NULL DEFAULT 0,
    started_at timestamptz,
    finished_at timestamptz,
    approval_since timestamptz,
    rows bigint,
    expected_duration interval,
    state mill.run_task_state NOT NULL DEFAULT 'waiting',
    outcome mill.outcome,
    priority mill.priority,
    join_mode mill.join_mode NOT NULL DEFAULT 'all',
    parents integer NOT NULL DEFAULT 0,
    satisfied integer NOT NULL DEFAULT 0,
    unsatisfied integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    session_pid integer,
    parent_failed boolean NOT NULL DEFAULT false,
    pending_propagation boolean NOT NULL DEFAULT false,
    takes_results boolean NOT NULL DEFAULT false,
    ignore_failure boolean NOT NULL DEFAULT false,
    approval boolean NOT NULL DEFAULT false,
    approved boolean,
    queue mill.queue_name NOT NULL,
    name mill.label NOT NULL,
    job mill.label,
    group_name mill.label,
    concurrency_key mill.label,
    approval_note text,
    decided_by text,
    message text,
    result jsonb,
    run_as mill.profile_name NOT NULL DEFAULT '',
    params jsonb,
    statement mill.statement NOT NULL,
    options mill.task_options,
    PRIMARY KEY (run_id, node),
    CONSTRAINT run_tasks_name UNIQUE (name, run_id)
) WITH (fillfactor = 80, toast_tuple_target = 512, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.run_tasks IS 'Tasks of runs, frozen at the start of the run';
COMMENT ON COLUMN mill.run_tasks.task_id IS 'tasks.id and attempts.task_id; null until the task is released';
COMMENT ON COLUMN mill.run_tasks.parents IS
    'Number of edges to parents. satisfied and unsatisfied count the edges whose parent has finished';
COMMENT ON COLUMN mill.run_tasks.parent_failed IS
    'Whether the parent of an unsatisfied edge failed, was cancelled or is upstream_failed';
COMMENT ON COLUMN mill.run_tasks.added_by IS 'Node of the task that has added the task to the run; null: none';
COMMENT ON COLUMN mill.run_tasks.pending_propagation IS
    'Whether the task has finished and its completion is yet to be propagated to the children whose node is greater '
    'than propagated_to';
COMMENT ON COLUMN mill.run_tasks.propagated_to IS
    'Last child to which the completion was propagated; 0: none. -1: the task was added, and mill.advance_run has not '
    'counted it yet. Until then, the completion of a parent is not propagated to it, and it is not cancelled with its '
    'run: this would change the number of open tasks';
COMMENT ON COLUMN mill.run_tasks.takes_results IS 'Whether params refer to results of parents';
COMMENT ON COLUMN mill.run_tasks.job IS
    'Job that declares the task; null: the task was added while the run was in progress';
COMMENT ON COLUMN mill.run_tasks.result IS
    'First row that the task returned, as an object by column, from mill.first_row';
-- Used by mill.advance_run to find ready tasks and tasks still to cancel. Like run_tasks_name, the index
-- does not begin with run_id. Otherwise the planner, with statistics from when the table had few rows,
-- would consider the index as good as the primary key for looking up a node.
CREATE INDEX IF NOT EXISTS run_tasks_state ON mill.run_tasks (state, run_id, node);
CREATE INDEX IF NOT EXISTS run_tasks_pending_propagation ON mill.run_tasks (run_id, node) WHERE pending_propagation;

CREATE SEQUENCE IF NOT EXISTS mill.added_nodes START 1000000000000;
COMMENT ON SEQUENCE mill.added_nodes IS
    'Values of run_tasks.node for tasks that are added to a run in progress. Starts above the nodes of the tasks with '
    'which a run starts';

CREATE TABLE IF NOT EXISTS mill.run_edges (
    run_id bigint NOT NULL,
    parent bigint NOT NULL,
    child bigint NOT NULL,
    expected mill.expected NOT NULL,
    PRIMARY KEY (run_id, parent, child)
);
COMMENT ON TABLE mill.run_edges IS 'Edges of runs, by run_tasks.node';
CREATE INDEX IF NOT EXISTS run_edges_child ON mill.run_edges (run_id, child);

-- Start -------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.runnable_jobs(jobs text[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = on AS $$
DECLARE
    wanted text[];
    disabled text[];
    wrong text;
BEGIN
    SELECT array_agg(w.name ORDER BY w.place) INTO wanted FROM (
        SELECT lower(btrim(j.name)) AS name, min(j.place) AS place
        FROM unnest(jobs) WITH ORDINALITY AS j(name, place) WHERE btrim(j.name) <> '' GROUP BY 1) AS w;
    IF wanted IS NULL THEN
        RAISE EXCEPTION 'no job given' USING ERRCODE = '22023';
    END IF;
    SELECT w INTO wrong FROM unnest(wanted) AS w WHERE NOT EXISTS (SELECT FROM mill.jobs j WHERE lower(j.name) = w)
        LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is no job "%"', wrong USING ERRCODE = '22023',
            HINT = 'pgmill job list shows all jobs.';
    END IF;
    SELECT array_agg(j.name::text ORDER BY array_position(wanted, lower(j.name))) INTO disabled
        FROM mill.jobs j WHERE lower(j.name) = ANY (wanted) AND j.disabled_at IS NOT NULL;
    IF cardinality(disabled) = cardinality(wanted) THEN
        RAISE EXCEPTION 'job "%" is disabled', array_to_string(disabled, '", "') USING ERRCODE = '22023',
            HINT = 'Enable it with pgmill job enable.';
    ELSIF disabled IS NOT NULL THEN
        RAISE NOTICE 'the run leaves out disabled jobs: %', array_to_string(disabled, ', ');
    END IF;
    -- The names are returned in the spelling of their declaration.
    RETURN (SELECT array_agg(j.name::text ORDER BY array_position(wanted, lower(j.name)))
        FROM mill.jobs j WHERE lower(j.name) = ANY (wanted) AND j.disabled_at IS NULL);
END
$$;
COMMENT ON FUNCTION mill.runnable_jobs IS
    'Returns the declared spelling of these job names, matched without regard to case and without disabled jobs, for '
    'mill.create_run. Raises an error if a job does not exist or all are disabled. A separate function, because its '
    'query needs the nested loops that '
    'mill.create_run disables';

CREATE OR REPLACE FUNCTION mill.lock_groups(run_id bigint, nodes bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM mill.lock_group(g.group_name) FROM (SELECT DISTINCT t.group_name FROM mill.run_tasks t
        WHERE t.run_id = lock_groups.run_id AND (nodes IS NULL OR t.node = ANY (nodes))
            AND t.group_name IS NOT NULL ORDER BY t.group_name) AS g;
END
$$;
COMMENT ON FUNCTION mill.lock_groups IS
    'As mill.lock_group, for the groups of these tasks of a run (nodes null: of all). Without its group, a task could '
    'never be released, and no advance of its run could succeed';

CREATE OR REPLACE FUNCTION mill.insert_run(wanted text[], params jsonb, schedule mill.schedules, fire_at timestamptz,
    reason text, options jsonb) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    run_id bigint;
BEGIN
    WITH given (tags, metadata, precedence) AS (
        SELECT j.tags, j.metadata, array_position(wanted, j.name::text) FROM mill.jobs j WHERE j.name = ANY (wanted)
        UNION ALL SELECT schedule.tags, schedule.metadata, cardinality(wanted) + 1
        UNION ALL SELECT l.tags, l.metadata, cardinality(wanted) + 2 FROM mill.read_labels(options) AS l
    )
    INSERT INTO mill.runs (jobs, params, schedule_id, fire_at, reason, expected_duration, started_at, late_at,
            timeout_at, tags, metadata)
        SELECT wanted, params, schedule.id, fire_at, reason, d.expected_duration, c.now,
            CASE WHEN reason IN ('manual', 'backfill') THEN c.now ELSE coalesce(fire_at, c.now) END + d.deadline,
            c.now + coalesce((options->>'run_timeout')::interval, d.run_timeout),
            (SELECT array_agg(DISTINCT t COLLATE "C" ORDER BY t COLLATE "C") FROM given g, unnest(g.tags) AS t),
            (SELECT jsonb_object_agg(e.key, e.value ORDER BY g.precedence) FROM given g, jsonb_each(g.metadata) AS e)
        FROM mill.declared_durations(wanted, schedule) AS d, clock_timestamp() AS c(now)
        RETURNING runs.id INTO run_id;
    RETURN run_id;
END
$$;
COMMENT ON FUNCTION mill.insert_run IS 'Inserts the row of a run, for mill.create_run. Returns its id';

CREATE OR REPLACE FUNCTION mill.copy_jobs(run_id bigint, wanted text[], params jsonb, overrides jsonb,
    OUT count bigint, OUT dropped text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    default_group CONSTANT text := (SELECT s.default_group FROM mill.settings s);
BEGIN
    WITH chosen AS MATERIALIZED (
        -- A task that several jobs contain is included once, from the job that gives it the highest
        -- priority.
        SELECT DISTINCT ON (t.name) t.*, coalesce(t.priority, j.priority, g.priority) AS chosen_priority,
            coalesce(t.group_name, default_group) AS chosen_group
        FROM mill.jobs j JOIN mill.job_tasks t ON t.job = j.name
            LEFT JOIN mill.groups g ON g.name = coalesce(t.group_name, default_group)
        -- The condition is repeated for both tables, so that the query uses the index of each.
        WHERE j.name = ANY (wanted) AND t.job = ANY (wanted) AND t.disabled_at IS NULL AND t.enabled
        ORDER BY t.name, coalesce(t.priority, j.priority, g.priority, 'normal') DESC,
            array_position(wanted, j.name::text)
    ), numbered AS MATERIALIZED (
        SELECT row_number() OVER (ORDER BY c.name) AS node, c.* FROM chosen c
    ), edge AS MATERIALIZED (
        SELECT DISTINCT ON (e.child, e.parent) e.child AS child_name, e.parent AS parent_name, e.expected,
            c.node AS child, p.node AS parent
        FROM (SELECT e.child::text, e.parent::text, e.expected, array_position(wanted, e.job::text) AS place
                FROM mill.job_edges e WHERE e.job = ANY (wanted) AND e.disabled_at IS NULL
            UNION ALL SELECT d.child, d.parent, d.expected, NULL FROM mill.dependencies d
                WHERE d.disabled_at IS NULL) AS e
            JOIN numbered c ON c.name = e.child LEFT JOIN numbered p ON p.name = e.parent
        -- An edge of a job takes precedence over a dependency of all runs.
        ORDER BY e.child, e.parent, e.place
    ), edges AS (
        INSERT INTO mill.run_edges (run_id, parent, child, expected)
        SELECT run_id, e.parent, e.child, e.expected FROM edge e WHERE e.parent IS NOT NULL
    ), put AS (
        INSERT INTO mill.run_tasks (run_id, node, name, job, statement, params, takes_results, queue, priority,
            group_name, concurrency_key, ignore_failure, join_mode, run_as, parents, state, options,
            expected_duration, approval, approval_note)
        SELECT run_id, n.node, n.name, n.job, n.statement, mill.substitute_params(n.params, params),
            coalesce(n.params @? '$[*]."$result"', false), n.queue, n.chosen_priority, n.chosen_group,
            n.concurrency_key, n.ignore_failure, n.join_mode, n.run_as, coalesce(p.parents, 0),
            CASE WHEN p.parents > 0 THEN 'waiting' ELSE 'ready' END::mill.run_task_state,
            CASE WHEN NOT n.options IS NULL OR NOT (q.store_params AND q.store_output) OR overrides <> '{}'
                THEN mill.resolve_options(jsonb_populate_record(n.options,
                    CASE WHEN (n.options).at_most_once THEN overrides - 'max_attempts' ELSE overrides END),
                    n.queue, n.params) END,
            n.expected_duration, n.approval, n.approval_note
        FROM numbered n LEFT JOIN mill.queues q ON q.name = n.queue
            LEFT JOIN (SELECT e.child, count(e.parent)::integer AS parents FROM edge e GROUP BY e.child) AS p
                ON p.child = n.node
        ORDER BY n.node RETURNING 1
    )
    SELECT (SELECT count(*) FROM put), (SELECT array_agg(e.parent_name || ' > ' || e.child_name
            ORDER BY e.parent_name, e.child_name) FROM edge e WHERE e.parent IS NULL)
        INTO count, dropped;
END
$$;
COMMENT ON FUNCTION mill.copy_jobs IS
    'Copies the tasks and edges of these jobs into a run, for mill.create_run. overrides: options that take precedence '
    'over those of the tasks. Returns the number of tasks, and the edges that are left out';

CREATE OR REPLACE FUNCTION mill.create_run(jobs text[], params jsonb, schedule mill.schedules,
    fire_at timestamptz, reason text, options jsonb, OUT run_id bigint, OUT dropped text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    wanted text[];
    count bigint;
    offered jsonb := '{}';
BEGIN
    IF jsonb_typeof(params) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'params must be a JSON object' USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_size('params of the run are', params), mill.check_durations(options),
        mill.check_labels(options - '{run_timeout,traceparent}'::text[]), mill.check_traceparent(options);
    wanted := mill.runnable_jobs(jobs);
    IF schedule.id IS NOT NULL THEN
        offered := jsonb_build_object('schedule', schedule.name, 'reason', reason,
            'fire_at', to_char(fire_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
    END IF;
    run_id := mill.insert_run(wanted, params, schedule, fire_at, reason, options);
    SELECT c.count, c.dropped INTO count, dropped
        FROM mill.copy_jobs(run_id, wanted, offered || params, jsonb_strip_nulls(jsonb_build_object(
            'traceparent', options->'traceparent', 'max_attempts', schedule.max_attempts,
            'retry_interval', schedule.retry_interval))) AS c;
    IF count = 0 THEN
        RAISE EXCEPTION 'no enabled task in %', array_to_string(wanted, ', ') USING ERRCODE = '22023';
    END IF;
    PERFORM mill.check_run(run_id, params), mill.lock_groups(run_id, NULL);
    -- The routines of a profile can have changed since the job was declared.
    IF EXISTS (SELECT FROM mill.profiles p WHERE p.routines IS NOT NULL) THEN
        PERFORM mill.check_routine(t.run_as, t.statement, t.name) FROM mill.run_tasks t
            WHERE t.run_id = create_run.run_id AND t.run_as <> '';
    END IF;
    -- Releases ready tasks immediately, up to a bound; mill.advance_run releases the rest.
    UPDATE mill.runs r SET tasks = count, open = count, dropped = create_run.dropped,
        needs_rescan = mill.release_ready(run_id, NULL, true, 2000) = 2000 WHERE r.id = run_id;
    INSERT INTO mill.run_events (run_id) VALUES (run_id);
    PERFORM mill.wake_workers();
    IF dropped IS NOT NULL THEN
        RAISE NOTICE 'edges to tasks that are not in this run are left out: %', array_to_string(dropped, ', ');
    END IF;
END
$$;
COMMENT ON FUNCTION mill.create_run IS
    'Creates a run as a frozen, merged copy of these jobs, for mill.start_run and mill.fire';

CREATE OR REPLACE FUNCTION mill.start_run(jobs text[], params jsonb DEFAULT '{}', options jsonb DEFAULT NULL,
    OUT run_id bigint, OUT dropped text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT r.run_id, r.dropped INTO start_run.run_id, start_run.dropped
        FROM mill.create_run(start_run.jobs, start_run.params, NULL, NULL, NULL, start_run.options) AS r;
    -- Runs started by programs are not audited; runs started on behalf of a person are.
    IF current_setting('mill.actor', true) <> '' THEN
        PERFORM mill.record_audit('start_run', 'run ' || start_run.run_id, jsonb_build_object('jobs', start_run.jobs));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.start_run IS
    'Starts a run: a frozen, merged copy of these jobs. Case does not matter in the names of jobs. params: values of '
    '{"$param": …}. options: {"tags": […], "metadata": {…}, "run_timeout": "2 h", "traceparent": "00-…"}; the tasks of '
    'the run get the traceparent. dropped: edges that are left out because none of the jobs contains their parent';
GRANT EXECUTE ON FUNCTION mill.start_run TO mill_producer;

CREATE OR REPLACE FUNCTION mill.substitute_params(params jsonb, given jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    missing text;
    filled jsonb;
BEGIN
    IF params @? '$[*]."$param"' IS NOT TRUE THEN
        RETURN params;
    END IF;
    SELECT p.value->>'$param' INTO missing FROM jsonb_array_elements(params) AS p
        WHERE jsonb_typeof(p.value) = 'object' AND p.value ? '$param' AND NOT given ? (p.value->>'$param') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'parameter "%" has no value', missing USING ERRCODE = '22023',
            HINT = format('enqueue --job … --param %s=…', missing);
    END IF;
    SELECT jsonb_agg(CASE WHEN jsonb_typeof(p.value) = 'object' AND p.value ? '$param'
            THEN given->(p.value->>'$param') ELSE p.value END ORDER BY p.place) INTO filled
        FROM jsonb_array_elements(params) WITH ORDINALITY AS p(value, place);
    PERFORM mill.check_size('params with the values of the run are', filled);
    RETURN filled;
END
$$;
COMMENT ON FUNCTION mill.substitute_params IS 'Returns params with the values of {"$param": name} filled in';

CREATE OR REPLACE FUNCTION mill.substitute_results(run_id bigint, params jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_agg(CASE WHEN jsonb_typeof(p.value) = 'object' AND p.value ? '$result'
            THEN coalesce((SELECT t.result->(p.value->>'column') FROM mill.run_tasks t
                WHERE t.run_id = substitute_results.run_id AND t.name = p.value->>'$result'), 'null')
            ELSE p.value END ORDER BY p.place)
    FROM jsonb_array_elements(params) WITH ORDINALITY AS p(value, place)
$$;
COMMENT ON FUNCTION mill.substitute_results IS
    'Returns params with the values of {"$result": task, "column": name} filled in; null for a value that the task '
    'did not return';

CREATE OR REPLACE FUNCTION mill.check_run(run_id bigint, given jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    wrong record;
    round_trip text;
    names text[];
BEGIN
    SELECT g.name INTO wrong FROM jsonb_object_keys(given) AS g(name) WHERE NOT EXISTS (
        SELECT FROM mill.run_tasks t JOIN mill.job_tasks j ON j.job = t.job AND j.name = t.name
            CROSS JOIN LATERAL jsonb_array_elements(j.params) AS p
        WHERE t.run_id = check_run.run_id AND p.value->>'$param' = g.name)
        -- The caller need not know which tasks an operator has disabled.
        AND NOT EXISTS (SELECT FROM mill.job_tasks j CROSS JOIN LATERAL jsonb_array_elements(j.params) AS p
        WHERE j.job = ANY (SELECT unnest(r.jobs) FROM mill.runs r WHERE r.id = check_run.run_id)
            AND NOT j.enabled AND j.disabled_at IS NULL AND p.value->>'$param' = g.name) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'unknown parameter "%": no task of these jobs uses it', wrong.name USING ERRCODE = '22023';
    END IF;
    SELECT t.name, p.value->>'$result' AS parent INTO wrong
        FROM mill.run_tasks t CROSS JOIN LATERAL jsonb_array_elements(t.params) AS p
        WHERE t.run_id = check_run.run_id AND t.takes_results AND p.value ? '$result' AND NOT EXISTS (
            SELECT FROM mill.run_tasks p2 JOIN mill.run_edges e ON e.run_id = p2.run_id AND e.parent = p2.node
            WHERE p2.run_id = t.run_id AND p2.name = p.value->>'$result' AND e.child = t.node) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" uses a result of "%" but does not wait for it', wrong.name, wrong.parent
            USING ERRCODE = '22023', HINT = CASE WHEN EXISTS (SELECT FROM mill.run_tasks p
                    WHERE p.run_id = check_run.run_id AND p.name = wrong.parent)
                THEN 'Add it to the tasks that the task waits for.'
                ELSE format('Task "%s" is disabled, or in none of the jobs of the run.', wrong.parent) END;
    END IF;
    SELECT array_agg(t.name::text ORDER BY t.node) INTO names FROM mill.run_tasks t
        WHERE t.run_id = check_run.run_id;
    SELECT mill.find_cycle(names, array_agg(e.parent::integer), array_agg(e.child::integer)) INTO round_trip
        FROM mill.run_edges e WHERE e.run_id = check_run.run_id;
    IF round_trip IS NOT NULL THEN
        RAISE EXCEPTION 'dependency cycle: %', round_trip USING ERRCODE = '22023',
            HINT = 'pgmill lineage shows the job or dependency of each edge.';
    END IF;
END
$$;
COMMENT ON FUNCTION mill.check_run IS
    'Raises an error if the run could not finish or was given an unknown parameter, for mill.create_run';

-- Tasks added to a run in progress ----------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.is_upstream_of(run_id bigint, origin bigint, target bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE way (node) AS (
        SELECT origin UNION
        SELECT e.child FROM way w JOIN mill.run_edges e ON e.run_id = is_upstream_of.run_id AND e.parent = w.node
    )
    SELECT EXISTS (SELECT FROM way w WHERE w.node = target)
$$;
COMMENT ON FUNCTION mill.is_upstream_of IS
    'Returns whether target depends on origin in a run, directly or indirectly, or is the same task';

CREATE OR REPLACE FUNCTION mill.add_run_edges(run_id bigint, added mill.run_tasks, self mill.tasks, after text[],
    before text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    other mill.run_tasks;
    named text;
BEGIN
    FOREACH named IN ARRAY after || before LOOP
        SELECT t.* INTO other FROM mill.run_tasks t WHERE t.run_id = add_run_edges.run_id AND t.name = named;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'run % has no task "%"', run_id, named USING ERRCODE = '22023';
        ELSIF named = ANY (after) THEN
            INSERT INTO mill.run_edges (run_id, parent, child, expected)
                VALUES (run_id, other.node, added.node, 'succeeded');
        -- A task that waits for the calling task cannot start before the calling task commits, and the
        -- new task appears with that commit.
        ELSIF other.state <> 'waiting'
            OR self.node IS NOT NULL AND (other.node = self.node
                OR NOT mill.is_upstream_of(run_id, self.node, other.node))
        THEN
            RAISE EXCEPTION 'task "%" does not wait for the calling task and could start before "%" is added',
                named, added.name
                USING ERRCODE = '55000';
        ELSE
            INSERT INTO mill.run_edges (run_id, parent, child, expected)
                VALUES (run_id, added.node, other.node, 'succeeded');
            IF self.node IS NULL THEN
                -- The parents that the other task had so far may have ended. An advance that has not reached
                -- the event of the new task must not release it.
                UPDATE mill.run_tasks t SET parents = t.parents + 1
                    WHERE t.run_id = add_run_edges.run_id AND t.node = other.node;
            END IF;
            IF mill.is_upstream_of(run_id, other.node, added.node) THEN
                RAISE EXCEPTION 'task "%" would wait for itself', added.name USING ERRCODE = '22023';
            END IF;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.add_run_edges IS
    'Inserts the edges of a task that is added to a run, for mill.add_run_task. self: the calling task';

CREATE OR REPLACE FUNCTION mill.add_run_task(name text, statement text, params jsonb DEFAULT NULL,
    after text[] DEFAULT '{}', before text[] DEFAULT '{}', queue text DEFAULT NULL,
    priority mill.priority DEFAULT NULL, group_name text DEFAULT NULL, concurrency_key text DEFAULT NULL,
    max_attempts integer DEFAULT NULL, retry_interval interval DEFAULT NULL, backoff mill.backoff DEFAULT NULL,
    jitter boolean DEFAULT NULL, timeout interval DEFAULT NULL, mode mill.mode DEFAULT NULL,
    ignore_failure boolean DEFAULT false, run_id bigint DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    self mill.tasks;
    run mill.runs;
    task mill.tasks;
    added mill.run_tasks;
BEGIN
    SELECT t.* INTO self FROM mill.tasks t
        WHERE t.id = nullif(current_setting('mill.task_id', true), '')::bigint AND t.node IS NOT NULL;
    run_id := coalesce(run_id, self.run_id);
    IF run_id IS NULL THEN
        RAISE EXCEPTION 'run_id is required outside of a task of a run' USING ERRCODE = '22023', HINT = 'Pass run_id.';
    ELSIF run_id IS DISTINCT FROM self.run_id THEN
        self := NULL;
        -- The caller is not a task of this run, so without the lock the run could finish meanwhile.
        SELECT r.* INTO run FROM mill.runs r WHERE r.id = run_id FOR NO KEY UPDATE;
    ELSE
        SELECT r.* INTO run FROM mill.runs r WHERE r.id = run_id;
    END IF;
    IF run.state IS DISTINCT FROM 'running' OR run.cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'run % is not in progress', run_id USING ERRCODE = '55000';
    END IF;
    statement := mill.check_statement(statement, params);
    task := mill.read_task(jsonb_strip_nulls(jsonb_build_object('traceparent', (self.options).traceparent,
        'queue', queue, 'priority', priority, 'group_name', group_name, 'concurrency_key', concurrency_key,
        'max_attempts', max_attempts, 'retry_interval', retry_interval, 'backoff', backoff, 'jitter', jitter,
        'timeout', timeout, 'mode', mode)) || coalesce(options, '{}'), '{concurrency_key,group_name,priority,queue}');
    task.group_name := coalesce(task.group_name, (SELECT s.default_group FROM mill.settings s));
    PERFORM mill.lock_group(task.group_name) WHERE task.group_name IS NOT NULL;
    PERFORM mill.check_task(task, statement);
    INSERT INTO mill.run_tasks (run_id, node, name, statement, params, queue, priority, group_name,
        concurrency_key, ignore_failure, parents, options, propagated_to, added_by)
    VALUES (run_id, nextval('mill.added_nodes'), name, statement, params, task.queue,
        coalesce(task.priority, (SELECT g.priority FROM mill.groups g WHERE g.name = task.group_name)),
        task.group_name, task.concurrency_key, ignore_failure, cardinality(after),
        mill.resolve_options(task.options, task.queue, params), -1, self.node)
    ON CONFLICT ON CONSTRAINT run_tasks_name DO NOTHING RETURNING run_tasks.* INTO added;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % already has a task "%"', run_id, name USING ERRCODE = '23505';
    END IF;
    PERFORM mill.add_run_edges(run_id, added, self, after, before);
    INSERT INTO mill.run_events (run_id, node) VALUES (run_id, added.node);
END
$$;
COMMENT ON FUNCTION mill.add_run_task IS
    'Adds a task to a run in progress. If a task of the run calls it, the new task appears when the calling task '
    'commits. after: tasks of the run that the new task waits for. before: tasks that wait for the calling task, and '
    'from then on also for the new task. The other arguments are those of mill.enqueue';
GRANT EXECUTE ON FUNCTION mill.add_run_task TO mill_producer;
