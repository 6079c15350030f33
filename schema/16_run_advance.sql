-- Advance of runs: a task goes waiting -> ready -> released -> finished. Cancel, retry, rerun by operators.
--
-- mill.advance_run locks the row of the run, removes the events of finished tasks from mill.run_events,
-- updates the counters of each child, and releases the tasks that are ready. All of this happens in one
-- transaction, so each event is processed exactly once, even if several workers try or a worker crashes.

-- Advance -----------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.satisfies(state mill.run_task_state, expected mill.expected) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN expected::text = 'always' THEN state NOT IN ('waiting', 'ready', 'released')
        WHEN state = 'succeeded' THEN expected IN ('succeeded', 'finished')
        WHEN state = 'failed' THEN expected IN ('failed', 'finished')
        WHEN state = 'cancelled' THEN expected = 'finished' ELSE false END
$$;
COMMENT ON FUNCTION mill.satisfies IS
    'Returns whether the state of a parent satisfies an edge. upstream_failed satisfies only always';

CREATE OR REPLACE FUNCTION mill.evaluate_join(join_mode mill.join_mode, parents integer,
    satisfied integer, unsatisfied integer)
RETURNS mill.run_task_state
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN parents = 0 THEN 'ready'
        WHEN join_mode = 'all' THEN CASE WHEN unsatisfied > 0 THEN 'upstream_failed'
            WHEN satisfied = parents THEN 'ready' ELSE 'waiting' END
        ELSE CASE WHEN satisfied > 0 THEN 'ready' WHEN unsatisfied = parents THEN 'upstream_failed' ELSE 'waiting' END
    END::mill.run_task_state
$$;
COMMENT ON FUNCTION mill.evaluate_join IS
    'Returns the new state of a waiting task of a run from its number of parents, satisfied edges and unsatisfied '
    'edges';

CREATE OR REPLACE FUNCTION mill.recount_dependencies(run_id bigint, nodes bigint[]) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_nestloop = off SET jit = off AS $$
DECLARE
    upstream_failed integer;
BEGIN
    WITH counted AS MATERIALIZED (
        SELECT c.node, c.join_mode, count(e.parent)::integer AS parents,
            count(*) FILTER (WHERE mill.satisfies(p.state, e.expected))::integer AS satisfied,
            count(*) FILTER (WHERE p.node IS NOT NULL AND NOT mill.satisfies(p.state, e.expected))::integer
                AS unsatisfied
        FROM mill.run_tasks c LEFT JOIN mill.run_edges e ON e.run_id = c.run_id AND e.child = c.node
            -- Joins only finished parents whose completion will not be propagated to this child again.
            LEFT JOIN mill.run_tasks p ON p.run_id = e.run_id AND p.node = e.parent
                AND p.state NOT IN ('waiting', 'ready', 'released')
                AND (NOT p.pending_propagation OR p.propagated_to >= c.node)
        WHERE c.run_id = recount_dependencies.run_id AND c.state = 'waiting' AND (nodes IS NULL OR c.node = ANY (nodes))
        GROUP BY c.node, c.join_mode
    ), evaluated AS (
        UPDATE mill.run_tasks t SET parents = c.parents, satisfied = c.satisfied, unsatisfied = c.unsatisfied,
            state = mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied),
            pending_propagation = mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied)
                = 'upstream_failed',
            finished_at = CASE WHEN mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied)
                = 'upstream_failed'
                THEN clock_timestamp() END
        FROM counted c WHERE t.run_id = recount_dependencies.run_id AND t.node = c.node
        RETURNING t.state
    )
    SELECT count(*) INTO upstream_failed FROM evaluated j WHERE j.state = 'upstream_failed';
    RETURN upstream_failed;
END
$$;
COMMENT ON FUNCTION mill.recount_dependencies IS
    'Recomputes the counters and states of waiting tasks from their edges (nodes null: of all waiting tasks). '
    'mill.advance_run maintains these counters incrementally. Returns the number of tasks that became upstream_failed';

CREATE OR REPLACE FUNCTION mill.propagate_completion(run_id bigint, parents bigint[], search boolean, max_count integer,
    OUT edges_propagated integer, OUT ready bigint[], OUT upstream_failed bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    last_parent bigint;
    last_child bigint;
BEGIN
    -- A finished parent is not waiting, so this statement updates no row twice. The edges are in the
    -- order of their parents, because a LATERAL subquery with LIMIT can only be run as a nested loop.
    --
    -- A run may be larger than the statistics suggest, and plans may be older than the run. Therefore
    -- rows are looked up by primary key inside a LATERAL join, whose sides the planner cannot swap. They
    -- are updated by ctid, which no other session changes while the row of the run is locked. The cast
    -- of state to text keeps the planner from using the index on state.
    WITH source AS MATERIALIZED (
        SELECT w.place, n.node, w.state, w.propagated_to FROM (
            SELECT p.node FROM unnest(parents) AS p(node)
            UNION
            (SELECT t.node FROM mill.run_tasks t
            WHERE search AND t.run_id = propagate_completion.run_id AND t.pending_propagation
            ORDER BY t.node LIMIT max_count)) AS n
        CROSS JOIN LATERAL (SELECT t.ctid AS place, t.state, t.propagated_to FROM mill.run_tasks t
            WHERE t.run_id = propagate_completion.run_id AND t.node = n.node LIMIT 1) AS w
        ORDER BY n.node
    ), edge AS MATERIALIZED (
        SELECT t.node AS parent, e.child, mill.satisfies(t.state, e.expected) AS is_satisfied
        FROM source t CROSS JOIN LATERAL (SELECT x.child, x.expected FROM mill.run_edges x
            WHERE x.run_id = propagate_completion.run_id AND x.parent = t.node AND x.child > t.propagated_to
            ORDER BY x.child LIMIT max_count) AS e
        LIMIT max_count
    ), counted AS MATERIALIZED (
        SELECT w.place, n.satisfied, n.unsatisfied FROM (
            SELECT e.child, count(*) FILTER (WHERE e.is_satisfied)::integer AS satisfied,
                count(*) FILTER (WHERE NOT e.is_satisfied)::integer AS unsatisfied
            FROM edge e GROUP BY e.child) AS n
        CROSS JOIN LATERAL (SELECT c.ctid AS place FROM mill.run_tasks c
            WHERE c.run_id = propagate_completion.run_id AND c.node = n.child
                AND c.state::text = 'waiting' LIMIT 1) AS w
    ), evaluated AS (
        UPDATE mill.run_tasks c SET satisfied = c.satisfied + n.satisfied, unsatisfied = c.unsatisfied + n.unsatisfied,
            state = mill.evaluate_join(c.join_mode, c.parents, c.satisfied + n.satisfied,
                c.unsatisfied + n.unsatisfied),
            pending_propagation = mill.evaluate_join(c.join_mode, c.parents, c.satisfied + n.satisfied,
                c.unsatisfied + n.unsatisfied) = 'upstream_failed',
            finished_at = CASE WHEN mill.evaluate_join(c.join_mode, c.parents, c.satisfied + n.satisfied,
                c.unsatisfied + n.unsatisfied)
                = 'upstream_failed' THEN clock_timestamp() END
        FROM counted n WHERE c.ctid = n.place
        RETURNING c.node, c.state
    ), last AS MATERIALIZED (
        SELECT count(*) AS edges, max(e.parent) AS parent,
            (SELECT max(x.child) FROM edge x WHERE x.parent = max(e.parent)) AS child
        FROM edge e
    ), done AS (
        UPDATE mill.run_tasks p SET pending_propagation = false, propagated_to = 0
        FROM source t, last l WHERE p.ctid = t.place AND (l.edges < max_count OR t.node < l.parent)
    )
    SELECT l.edges, l.parent, l.child,
            (SELECT array_agg(j.node) FILTER (WHERE j.state = 'ready') FROM evaluated j),
            (SELECT array_agg(j.node) FILTER (WHERE j.state = 'upstream_failed') FROM evaluated j)
        INTO edges_propagated, last_parent, last_child, ready, upstream_failed FROM last l;
    IF edges_propagated = max_count THEN
        UPDATE mill.run_tasks p SET propagated_to = last_child
            WHERE p.run_id = propagate_completion.run_id AND p.node = last_parent;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.propagate_completion IS
    'For mill.advance_run: propagates the completion of these parents to their children, over up to max_count edges. '
    'search: also of other tasks with pending_propagation. edges_propagated: number of edges; if it equals max_count, '
    'there may be more. ready, upstream_failed: nodes of the children that changed to these states';

CREATE OR REPLACE FUNCTION mill.release_ready(run_id bigint, nodes bigint[], search boolean, max_count integer)
RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    released integer;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT w.* FROM (
            SELECT r.node FROM unnest(nodes) AS r(node)
            UNION
            (SELECT t.node FROM mill.run_tasks t
            WHERE search AND t.run_id = release_ready.run_id AND t.state = 'ready' ORDER BY t.node LIMIT max_count)
            ORDER BY node LIMIT max_count) AS n
        CROSS JOIN LATERAL (SELECT t.ctid AS place, t.* FROM mill.run_tasks t
            WHERE t.run_id = release_ready.run_id AND t.node = n.node AND t.state::text = 'ready' LIMIT 1) AS w
        ORDER BY n.node
    ), task AS MATERIALIZED (
        SELECT p.*, coalesce(p.task_id, nextval('mill.tasks_id_seq')) AS id,
            CASE WHEN num_nonnulls(p.group_name, p.concurrency_key) > 0
                OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = p.queue)
                THEN mill.required_limits(p.queue, p.group_name, p.run_id, p.concurrency_key) END AS limits
        FROM picked p
    ), put AS (
        INSERT INTO mill.tasks (id, name, run_id, node, statement, params, queue, priority, group_name,
            concurrency_key, limits, state, blocking_limit_id, attempt, max_attempts, retry_interval, backoff, jitter,
            timeout, mode, at_most_once, external, run_as, options)
        SELECT t.id, t.name, t.run_id, t.node, t.statement,
            CASE WHEN t.takes_results THEN mill.substitute_results(t.run_id, t.params) ELSE t.params END, t.queue,
            coalesce(t.priority, 'normal'), t.group_name, t.concurrency_key, t.limits,
            mill.initial_state(NULL, t.limits), t.limits[1], t.attempts, t.max_attempts, t.retry_interval,
            t.backoff, t.jitter, t.timeout, t.mode, t.at_most_once, t.external, t.run_as, t.options
        FROM task t
    ), moved AS (
        UPDATE mill.run_tasks r SET state = 'released', task_id = t.id
        FROM task t WHERE r.ctid = t.place RETURNING 1
    )
    SELECT count(*) INTO released FROM moved;
    RETURN released;
END
$$;
COMMENT ON FUNCTION mill.release_ready IS
    'For mill.advance_run: releases these tasks of a run (ready -> released), up to max_count. search: also other '
    'ready tasks of the run. Returns the number of released tasks';

CREATE OR REPLACE FUNCTION mill.cancel_open_tasks(run_id bigint, kill boolean, max_count integer, OUT waited integer,
    OUT more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live integer;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT t.node FROM mill.run_tasks t
        WHERE t.run_id = cancel_open_tasks.run_id AND t.state IN ('waiting', 'ready') LIMIT max_count
    )
    UPDATE mill.run_tasks t SET state = 'cancelled', finished_at = clock_timestamp()
        FROM picked p WHERE t.run_id = cancel_open_tasks.run_id AND t.node = p.node;
    GET DIAGNOSTICS waited = ROW_COUNT;
    -- SKIP LOCKED leaves out a task that is being claimed, and a task that is about to be attempted
    -- again and waits for the row of this run. The next pass handles such tasks. A cancelled task
    -- appends an event, as every task that finishes does.
    SELECT count(mill.cancel_task(s.id, running => false)) INTO live FROM (
        SELECT t.id FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
        WHERE r.run_id = cancel_open_tasks.run_id AND r.state = 'released' AND t.state <> 'running'
        ORDER BY t.id LIMIT max_count FOR NO KEY UPDATE OF t SKIP LOCKED) AS s;
    IF kill THEN
        INSERT INTO mill.cancel_requests (task_id)
            SELECT t.id FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
            WHERE r.run_id = cancel_open_tasks.run_id AND r.state = 'released' AND t.state = 'running'
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM pg_notify('mill', 'cancel');
        END IF;
    END IF;
    more := waited = max_count OR live > 0 OR EXISTS (
        SELECT FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
        WHERE r.run_id = cancel_open_tasks.run_id AND r.state = 'released' AND t.state <> 'running');
END
$$;
COMMENT ON FUNCTION mill.cancel_open_tasks IS
    'For mill.advance_run: cancels the tasks of a cancelled run that are not running; with kill, also requests the '
    'cancel of its running tasks. waited: number of cancelled tasks that were never released. more: whether to call '
    'it again';

CREATE OR REPLACE FUNCTION mill.finish_run(run_id bigint) RETURNS mill.run_state
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended mill.runs;
BEGIN
    UPDATE mill.runs r SET tasks = n.tasks, open = 0, succeeded = n.succeeded, failed = n.failed, ignored = n.ignored,
            cancelled = n.cancelled, upstream_failed = n.upstream_failed, finished_at = clock_timestamp(),
            state = CASE WHEN r.cancelled_at IS NOT NULL THEN 'cancelled' WHEN n.failed > 0 THEN 'failed'
                WHEN n.cancelled > 0 THEN 'cancelled' ELSE 'succeeded' END::mill.run_state
        FROM (SELECT count(*) AS tasks, count(*) FILTER (WHERE t.state = 'succeeded') AS succeeded,
                count(*) FILTER (WHERE t.state = 'failed' AND NOT t.ignore_failure) AS failed,
                count(*) FILTER (WHERE t.state = 'failed' AND t.ignore_failure) AS ignored,
                count(*) FILTER (WHERE t.state = 'cancelled') AS cancelled,
                count(*) FILTER (WHERE t.state = 'upstream_failed') AS upstream_failed
            FROM mill.run_tasks t WHERE t.run_id = finish_run.run_id) AS n
        WHERE r.id = finish_run.run_id RETURNING r.* INTO ended;
    DELETE FROM mill.limits l WHERE l.kind = 'group' AND l.run_id = finish_run.run_id;
    IF ended.schedule_id IS NOT NULL THEN
        PERFORM mill.log_completed(ended);
    END IF;
    RETURN ended.state;
END
$$;
COMMENT ON FUNCTION mill.finish_run IS
    'For mill.advance_run: finishes a run and returns its final state, cancelled, failed or succeeded';

CREATE OR REPLACE FUNCTION mill.advance_run(run_id bigint, OUT released integer, OUT ended mill.run_state,
    OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    -- Bounds the duration of each statement for runs of any size.
    max_count CONSTANT integer := 2000;
    run mill.runs;
    events mill.run_events[];
    added bigint[];
    to_propagate bigint[];
    ready bigint[];
    step record;
    unfinished boolean;
BEGIN
    released := 0;
    more := false;
    -- Asynchronous commit is safe here, as for a claim: WAL is written in order, so an effect of a
    -- released task survives a crash only if the release does.
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = advance_run.run_id FOR NO KEY UPDATE;
    -- The lock excludes other sessions that advance this run; each of the following statements sees the
    -- changes of the earlier ones.
    WITH taken AS (
        DELETE FROM mill.run_events e WHERE e.id = ANY (ARRAY(SELECT x.id FROM mill.run_events x
            WHERE x.run_id = advance_run.run_id ORDER BY x.id LIMIT max_count))
        RETURNING e AS event
    )
    SELECT array_agg(t.event), array_agg((t.event).node) FILTER (WHERE (t.event).outcome IS NULL
            AND (t.event).node IS NOT NULL) INTO events, added FROM taken t;
    IF run.state IS DISTINCT FROM 'running' THEN
        RETURN;
    END IF;
    WITH ended AS MATERIALIZED (
        SELECT e.*, w.place FROM unnest(events) AS e CROSS JOIN LATERAL (
            SELECT t.ctid AS place FROM mill.run_tasks t
            WHERE t.run_id = run.id AND t.node = e.node AND t.state::text = 'released' LIMIT 1) AS w
        WHERE e.outcome IS NOT NULL
    ), moved AS (
        UPDATE mill.run_tasks t SET
            state = CASE e.outcome WHEN 'succeeded' THEN 'succeeded' WHEN 'cancelled' THEN 'cancelled'
                ELSE 'failed' END::mill.run_task_state,
            outcome = e.outcome, pending_propagation = true, propagated_to = 0, attempts = e.attempts,
            started_at = e.started_at, finished_at = e.finished_at, rows = e.rows, session_pid = e.session_pid,
            message = e.message, result = e.result
        FROM ended e WHERE t.ctid = e.place
        RETURNING t.node
    )
    SELECT array_agg(m.node) INTO to_propagate FROM moved m;
    run.open := run.open - coalesce(cardinality(to_propagate), 0);
    IF added IS NOT NULL THEN
        run.tasks := run.tasks + cardinality(added);
        run.open := run.open + cardinality(added) - mill.recount_dependencies(run.id, added || ARRAY(
            SELECT e.child FROM mill.run_edges e WHERE e.run_id = run.id AND e.parent = ANY (added)));
        run.needs_rescan := true;
    END IF;
    IF run.cancelled_at IS NOT NULL THEN
        SELECT c.waited, c.more INTO step FROM mill.cancel_open_tasks(run.id, run.kill, max_count) AS c;
        run.open := run.open - step.waited;
        run.needs_rescan := true;
        more := step.more;
    ELSE
        LOOP
            SELECT t.* INTO step FROM mill.propagate_completion(run.id, to_propagate, run.needs_rescan, max_count) AS t;
            ready := ready || step.ready;
            to_propagate := step.upstream_failed;
            run.open := run.open - coalesce(cardinality(to_propagate), 0);
            unfinished := step.edges_propagated = max_count OR coalesce(cardinality(ready), 0) >= max_count;
            EXIT WHEN unfinished OR to_propagate IS NULL;
        END LOOP;
        released := mill.release_ready(run.id, ready, run.needs_rescan, max_count);
        run.needs_rescan := unfinished OR released = max_count;
        more := run.needs_rescan;
    END IF;
    more := more OR coalesce(cardinality(events), 0) = max_count;
    UPDATE mill.runs r SET tasks = run.tasks, open = run.open, needs_rescan = run.needs_rescan
        WHERE r.id = run.id AND (r.tasks, r.open, r.needs_rescan) <> (run.tasks, run.open, run.needs_rescan);
    IF more THEN
        -- With this event, another worker continues if the caller crashes before the next pass.
        INSERT INTO mill.run_events (run_id) VALUES (run.id);
    ELSIF run.open = 0 THEN
        ended := mill.finish_run(run.id);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.advance_run IS
    'Processes the events of finished tasks, propagates the completions to the children, releases ready tasks, and '
    'finishes the run when no task is open. Each call does a bounded amount of work. more: whether to call it again. '
    'ended: final state, if this call finished the run';
GRANT EXECUTE ON FUNCTION mill.advance_run TO mill_worker;

-- Cancel, retry, rerun ----------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION mill.cancel_run(run_id bigint, kill boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_state mill.run_state;
    unfinished boolean;
    durability text := current_setting('synchronous_commit');
BEGIN
    SELECT r.state INTO found_state FROM mill.runs r WHERE r.id = cancel_run.run_id FOR NO KEY UPDATE;
    IF found_state IS DISTINCT FROM 'running' THEN
        RETURN coalesce(found_state::text, 'not found');
    END IF;
    UPDATE mill.runs r SET cancelled_at = coalesce(r.cancelled_at, now()), kill = r.kill OR cancel_run.kill,
        cancelled_by = coalesce(r.cancelled_by, session_user) WHERE r.id = cancel_run.run_id;
    -- Cancels the tasks that are not running. If there are no others, the run ends here, also without a
    -- worker. The number of passes is limited; workers do the rest.
    INSERT INTO mill.run_events (run_id) VALUES (cancel_run.run_id);
    FOR pass IN 1..10 LOOP
        SELECT a.more INTO unfinished FROM mill.advance_run(cancel_run.run_id) AS a;
        EXIT WHEN NOT unfinished;
    END LOOP;
    -- An operator's action is durable, unlike an advance of a run.
    PERFORM set_config('synchronous_commit', durability, true);
    PERFORM mill.record_audit('cancel_run', 'run ' || run_id, jsonb_build_object('kill', kill));
    RETURN 'cancelling';
END
$$;
COMMENT ON FUNCTION mill.cancel_run IS
    'Cancels a run: no further task starts. Running tasks finish; with kill, they are cancelled too. Returns '
    'cancelling, or the state of a run that has finished, or not found';
GRANT EXECUTE ON FUNCTION mill.cancel_run TO mill_operator;

CREATE OR REPLACE FUNCTION mill.run_again(run mill.runs, nodes bigint[], action text, details jsonb) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    busy text;
    names text[];
    step record;
BEGIN
    IF run.state = 'running' AND run.cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'run % is being cancelled', run.id USING ERRCODE = '55000',
            HINT = 'Wait until its running tasks have ended, or cancel them with pgmill run cancel --kill.';
    END IF;
    SELECT t.name INTO busy FROM mill.run_tasks t WHERE t.run_id = run.id AND t.node = ANY (nodes)
        AND t.state IN ('ready', 'released') ORDER BY t.node LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" of run % has not ended', busy, run.id USING ERRCODE = '55000',
            HINT = 'Wait until it has ended, or cancel it.';
    END IF;
    UPDATE mill.runs r SET state = 'running', finished_at = NULL, cancelled_at = NULL, cancelled_by = NULL,
            kill = false, restarts = r.restarts + 1, restarted_at = clock_timestamp()
        WHERE r.id = run.id AND r.state <> 'running';
    DELETE FROM mill.cancel_requests c USING mill.run_tasks t
        WHERE t.run_id = run.id AND t.node = ANY (nodes) AND c.task_id = t.task_id;
    UPDATE mill.run_tasks t SET state = 'waiting', outcome = NULL, pending_propagation = false, propagated_to = 0,
            started_at = NULL, finished_at = NULL, rows = NULL, session_pid = NULL, message = NULL, result = NULL
        WHERE t.run_id = run.id AND t.node = ANY (nodes);
    PERFORM mill.recount_dependencies(run.id, NULL);
    -- Also tells the tasks that can never run because of their parents, so that the answer leaves them
    -- out.
    LOOP
        SELECT p.* INTO step FROM mill.propagate_completion(run.id, NULL, true, 2000) AS p;
        EXIT WHEN step.edges_propagated < 2000 AND step.upstream_failed IS NULL;
    END LOOP;
    SELECT array_agg(t.name::text ORDER BY t.node) INTO names FROM mill.run_tasks t
        WHERE t.run_id = run.id AND t.node = ANY (nodes) AND t.state <> 'upstream_failed';
    IF names IS NULL THEN
        RAISE EXCEPTION 'none of these tasks of run % can run: tasks before them have failed', run.id
            USING ERRCODE = '55000', HINT = format('pgmill run restart %s runs the failed tasks as well.', run.id);
    END IF;
    PERFORM mill.release_ready(run.id, NULL, true, 2000);
    UPDATE mill.runs r SET needs_rescan = true, open = (SELECT count(*) FROM mill.run_tasks t
            WHERE t.run_id = r.id AND t.state IN ('waiting', 'ready', 'released'))
        WHERE r.id = run.id;
    INSERT INTO mill.run_events (run_id) VALUES (run.id);
    PERFORM mill.record_audit(action, 'run ' || run.id, details || jsonb_build_object('tasks', cardinality(names))
        || CASE WHEN run.state = 'running' THEN '{}' ELSE jsonb_build_object('state', run.state,
            'started_at', run.started_at, 'finished_at', run.finished_at) END);
    RETURN QUERY SELECT unnest(names);
END
$$;
COMMENT ON FUNCTION mill.run_again IS
    'Runs these tasks of a locked run again, for mill.restart_run, mill.rerun_run and mill.retry_run_task. A run that '
    'has ended is in progress again. Returns the names of the tasks, except those that cannot run because of tasks '
    'before them. Raises an error if that leaves none, or if a task has not ended';

CREATE OR REPLACE FUNCTION mill.restart_run(run_id bigint, failed boolean DEFAULT true,
    never_run boolean DEFAULT true, downstream boolean DEFAULT false, force boolean DEFAULT false)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    nodes bigint[];
BEGIN
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = restart_run.run_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %', run_id USING ERRCODE = '22023';
    ELSIF run.state = 'running' THEN
        RAISE EXCEPTION 'run % is still running', run_id USING ERRCODE = '55000',
            HINT = 'To retry one of its tasks, use pgmill run retry; to stop the run, use pgmill run cancel.';
    ELSIF run.state = 'cancelled' AND NOT force THEN
        RAISE EXCEPTION 'run % is cancelled, not failed', run_id USING ERRCODE = '55000',
            HINT = 'pgmill run restart --force runs the tasks that did not succeed.';
    END IF;
    WITH RECURSIVE chosen (node) AS (
        -- Tasks that started and did not succeed, and tasks that never started.
        SELECT t.node FROM mill.run_tasks t WHERE t.run_id = run.id
            AND ((failed OR downstream) AND t.state IN ('failed', 'cancelled') AND t.started_at IS NOT NULL
                OR never_run AND t.state IN ('cancelled', 'upstream_failed') AND t.started_at IS NULL)
        UNION
        -- A task that could not run because of a task before it waits for that task again.
        SELECT c.node FROM chosen p JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = p.node
            JOIN mill.run_tasks c ON c.run_id = run.id AND c.node = e.child
        WHERE downstream OR c.state = 'upstream_failed'
    )
    SELECT array_agg(c.node) INTO nodes FROM chosen c;
    IF nodes IS NULL THEN
        RAISE EXCEPTION 'run % has no such task: % of % tasks succeeded', run_id, run.succeeded, run.tasks
            USING ERRCODE = '55000', HINT = format('pgmill run rerun %s runs all its tasks again.', run_id);
    END IF;
    RETURN QUERY SELECT mill.run_again(run, nodes, 'restart_run', jsonb_build_object('failed', failed,
        'never_run', never_run, 'downstream', downstream, 'force', force));
END
$$;
COMMENT ON FUNCTION mill.restart_run IS
    'Runs those tasks of a run that did not succeed again. The run has failed (force: or was cancelled). failed: tasks '
    'that started and did not succeed, and the tasks that became upstream_failed because of them. never_run: tasks '
    'that never started. downstream: the tasks of failed, and all tasks after the selected ones. Returns the names of '
    'the tasks';
GRANT EXECUTE ON FUNCTION mill.restart_run TO mill_operator;

CREATE OR REPLACE FUNCTION mill.rerun_run(run_id bigint, tasks text[] DEFAULT NULL, downstream boolean DEFAULT true)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    unknown text;
    nodes bigint[];
BEGIN
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = rerun_run.run_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %', run_id USING ERRCODE = '22023';
    END IF;
    SELECT n INTO unknown FROM unnest(rerun_run.tasks) AS n
        WHERE NOT EXISTS (SELECT FROM mill.run_tasks t WHERE t.run_id = run.id AND t.name = n) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'run % has no task "%"', run_id, unknown USING ERRCODE = '22023',
            HINT = format('pgmill run show %s --all lists its tasks.', run_id);
    END IF;
    WITH RECURSIVE chosen (node) AS (
        SELECT t.node FROM mill.run_tasks t WHERE t.run_id = run.id
            AND (rerun_run.tasks IS NULL OR t.name = ANY (rerun_run.tasks))
        UNION
        SELECT e.child FROM chosen p JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = p.node WHERE downstream
    )
    SELECT array_agg(c.node) INTO nodes FROM chosen c;
    RETURN QUERY SELECT mill.run_again(run, nodes, 'rerun_run',
        jsonb_build_object('names', to_jsonb(rerun_run.tasks), 'downstream', downstream));
END
$$;
COMMENT ON FUNCTION mill.rerun_run IS
    'Runs tasks of a run again, whatever their outcome was: all tasks, or the given ones and (downstream) all tasks '
    'after them. Returns their names. Raises an error if one of them has not ended';
GRANT EXECUTE ON FUNCTION mill.rerun_run TO mill_operator;

CREATE OR REPLACE FUNCTION mill.retry_run_task(run_id bigint, task text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    found_task mill.run_tasks;
    nodes bigint[];
BEGIN
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = retry_run_task.run_id FOR NO KEY UPDATE;
    SELECT t.* INTO found_task FROM mill.run_tasks t WHERE t.run_id = run.id AND t.name = task;
    IF NOT FOUND THEN
        RETURN 'not found';
    ELSIF found_task.state NOT IN ('failed', 'cancelled') THEN
        RETURN found_task.state::text;
    END IF;
    -- All later tasks that are upstream_failed are evaluated again, even if another task made them
    -- upstream_failed.
    WITH RECURSIVE after (node) AS (
        SELECT found_task.node
        UNION
        SELECT c.node FROM after a JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = a.node
            JOIN mill.run_tasks c ON c.run_id = run.id AND c.node = e.child AND c.state = 'upstream_failed'
    )
    SELECT array_agg(a.node) INTO nodes FROM after a;
    PERFORM mill.run_again(run, nodes, 'retry_run_task', jsonb_build_object('task', task));
    RETURN 'retried';
END
$$;
COMMENT ON FUNCTION mill.retry_run_task IS
    'Runs a failed or cancelled task of a run again, and the tasks that became upstream_failed because of it. If the '
    'run has ended, it is in progress again. Returns retried, or the state of a task that is in another state, or not '
    'found';
GRANT EXECUTE ON FUNCTION mill.retry_run_task TO mill_operator;
