-- Advance of runs: waiting -> ready -> released -> finished.
--
-- Cancel and restart: 33_run_control.sql.
--
-- mill.advance_run locks the row of the run, removes the events of finished tasks from mill.run_events,
-- updates the counters of each child, and releases the tasks that are ready. All of this happens in one
-- transaction, so each event is processed exactly once, even if several workers try or a worker crashes.

CREATE OR REPLACE FUNCTION mill.satisfies(state mill.run_task_state, expected mill.expected) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN expected = 'always' THEN state NOT IN ('waiting', 'ready', 'released')
        WHEN state = 'succeeded' THEN expected IN ('succeeded', 'finished')
        WHEN state = 'failed' THEN expected IN ('failed', 'finished')
        WHEN state = 'cancelled' THEN expected = 'finished' ELSE false END
$$;
COMMENT ON FUNCTION mill.satisfies IS
    'Returns whether the state of a parent satisfies an edge. upstream_failed and skipped satisfy only always';

CREATE OR REPLACE FUNCTION mill.is_failure(state mill.run_task_state) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT state IN ('failed', 'cancelled', 'upstream_failed')
$$;
COMMENT ON FUNCTION mill.is_failure IS
    'Returns whether a child that cannot run because of a parent in this state is upstream_failed. Otherwise the child '
    'is skipped';

CREATE OR REPLACE FUNCTION mill.evaluate_join(join_mode mill.join_mode, parents integer,
    satisfied integer, unsatisfied integer, parent_failed boolean)
RETURNS mill.run_task_state
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN satisfied = parents OR join_mode = 'any' AND satisfied > 0 THEN 'ready'
        WHEN unsatisfied = parents OR join_mode = 'all' AND unsatisfied > 0
            THEN CASE WHEN parent_failed THEN 'upstream_failed' ELSE 'skipped' END
        ELSE 'waiting'
    END::mill.run_task_state
$$;
COMMENT ON FUNCTION mill.evaluate_join IS
    'Returns the new state of a waiting task of a run from its number of parents, satisfied edges and unsatisfied '
    'edges. parent_failed: whether the parent of an unsatisfied edge failed, was cancelled or is upstream_failed';

CREATE OR REPLACE FUNCTION mill.recount_dependencies(run_id bigint, nodes bigint[]) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_custom_plan SET enable_nestloop = off SET jit = off AS $$
DECLARE
    never_run integer;
BEGIN
    WITH counted AS MATERIALIZED (
        SELECT c.node, c.join_mode, count(e.parent)::integer AS parents,
            count(*) FILTER (WHERE mill.satisfies(p.state, e.expected))::integer AS satisfied,
            count(*) FILTER (WHERE p.node IS NOT NULL AND NOT mill.satisfies(p.state, e.expected))::integer
                AS unsatisfied,
            coalesce(bool_or(mill.is_failure(p.state) AND NOT mill.satisfies(p.state, e.expected)), false)
                AS parent_failed
        FROM mill.run_tasks c LEFT JOIN mill.run_edges e ON e.run_id = c.run_id AND e.child = c.node
            -- Joins only finished parents whose completion will not be propagated to this child again.
            LEFT JOIN mill.run_tasks p ON p.run_id = e.run_id AND p.node = e.parent
                AND p.state NOT IN ('waiting', 'ready', 'released')
                AND (NOT p.pending_propagation OR p.propagated_to >= c.node)
        WHERE c.run_id = recount_dependencies.run_id AND c.state = 'waiting'
            AND (nodes IS NULL AND c.propagated_to >= 0 OR c.node = ANY (nodes))
        GROUP BY c.node, c.join_mode
    ), evaluated AS MATERIALIZED (
        SELECT c.*, mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied, c.parent_failed) AS state
        FROM counted c
    ), updated AS (
        UPDATE mill.run_tasks t SET parents = e.parents, satisfied = e.satisfied, unsatisfied = e.unsatisfied,
            parent_failed = e.parent_failed, state = e.state, propagated_to = 0,
            pending_propagation = e.state NOT IN ('waiting', 'ready'),
            finished_at = CASE WHEN e.state NOT IN ('waiting', 'ready') THEN clock_timestamp() END
        FROM evaluated e WHERE t.run_id = recount_dependencies.run_id AND t.node = e.node
        RETURNING t.state
    )
    SELECT count(*) INTO never_run FROM updated u WHERE u.state NOT IN ('waiting', 'ready');
    RETURN never_run;
END
$$;
COMMENT ON FUNCTION mill.recount_dependencies IS
    'Recomputes the counters and states of waiting tasks from their edges (nodes null: of all waiting tasks, except '
    'added tasks that mill.advance_run has not counted yet). '
    'mill.advance_run maintains these counters incrementally. Returns the number of tasks that became upstream_failed '
    'or skipped';

CREATE OR REPLACE FUNCTION mill.propagate_completion(run_id bigint, parents bigint[], search boolean, max_count integer,
    OUT edges_propagated integer, OUT ready bigint[], OUT never_run bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    last_parent bigint;
    last_child bigint;
    searched integer;
BEGIN
    -- A finished parent is not waiting, so this statement updates no row twice. The edges are in the order of their
    -- parents, because a LATERAL subquery with LIMIT can only be run as a nested loop. Rows are updated by ctid, which
    -- no other session changes while the row of the run is locked.
    WITH found AS MATERIALIZED (
        SELECT t.node FROM mill.run_tasks t
        WHERE search AND t.run_id = propagate_completion.run_id AND t.pending_propagation
        ORDER BY t.node LIMIT max_count
    ), source AS MATERIALIZED (
        SELECT w.place, n.node, w.state, w.propagated_to
        FROM (SELECT p.node FROM unnest(parents) AS p(node) UNION SELECT f.node FROM found f) AS n
        CROSS JOIN LATERAL (SELECT t.ctid AS place, t.state, t.propagated_to FROM mill.run_tasks t
            WHERE t.run_id = propagate_completion.run_id AND t.node = n.node LIMIT 1) AS w
        ORDER BY n.node
    ), edge AS MATERIALIZED (
        SELECT t.node AS parent, e.child, mill.satisfies(t.state, e.expected) AS is_satisfied,
            mill.is_failure(t.state) AS is_failure
        FROM source t CROSS JOIN LATERAL (SELECT x.child, x.expected FROM mill.run_edges x
            WHERE x.run_id = propagate_completion.run_id AND x.parent = t.node AND x.child > t.propagated_to
            ORDER BY x.child LIMIT max_count) AS e
        LIMIT max_count
    ), counted AS MATERIALIZED (
        SELECT w.place, w.join_mode, w.parents, w.satisfied + n.satisfied AS satisfied,
            w.unsatisfied + n.unsatisfied AS unsatisfied, w.parent_failed OR n.parent_failed AS parent_failed
        FROM (
            SELECT e.child, count(*) FILTER (WHERE e.is_satisfied)::integer AS satisfied,
                count(*) FILTER (WHERE NOT e.is_satisfied)::integer AS unsatisfied,
                bool_or(e.is_failure AND NOT e.is_satisfied) AS parent_failed
            FROM edge e GROUP BY e.child) AS n
        CROSS JOIN LATERAL (SELECT c.ctid AS place, c.join_mode, c.parents, c.satisfied, c.unsatisfied,
            c.parent_failed FROM mill.run_tasks c
            WHERE c.run_id = propagate_completion.run_id AND c.node = n.child
                -- An added task that is not counted yet gets its counters when it is counted.
                AND c.state = 'waiting' AND c.propagated_to >= 0 LIMIT 1) AS w
    ), evaluated AS MATERIALIZED (
        SELECT c.*, mill.evaluate_join(c.join_mode, c.parents, c.satisfied, c.unsatisfied, c.parent_failed) AS state
        FROM counted c
    ), updated AS (
        UPDATE mill.run_tasks c SET satisfied = e.satisfied, unsatisfied = e.unsatisfied,
            parent_failed = e.parent_failed, state = e.state,
            pending_propagation = e.state NOT IN ('waiting', 'ready'),
            finished_at = CASE WHEN e.state NOT IN ('waiting', 'ready') THEN clock_timestamp() END
        FROM evaluated e WHERE c.ctid = e.place
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
            (SELECT array_agg(u.node) FILTER (WHERE u.state = 'ready') FROM updated u),
            (SELECT array_agg(u.node) FILTER (WHERE u.state NOT IN ('waiting', 'ready')) FROM updated u),
            (SELECT count(*) FROM found)
        INTO edges_propagated, last_parent, last_child, ready, never_run, searched FROM last l;
    IF edges_propagated = max_count THEN
        UPDATE mill.run_tasks p SET propagated_to = last_child
            WHERE p.run_id = propagate_completion.run_id AND p.node = last_parent;
    ELSIF searched = max_count THEN
        edges_propagated := max_count;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.propagate_completion IS
    'For mill.advance_run: propagates the completion of these parents to their children, over up to max_count edges. '
    'search: also of up to max_count other tasks with pending_propagation. edges_propagated: number of edges; '
    'max_count if there may be more edges or more such tasks. ready, never_run: nodes of the children that became '
    'ready, or upstream_failed or skipped';

CREATE OR REPLACE FUNCTION mill.fail_released(task_id bigint, message text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
BEGIN
    DELETE FROM mill.tasks t WHERE t.id = fail_released.task_id RETURNING t.* INTO task;
    PERFORM mill.prepare_history(0);
    -- Appends an event, which a later call of mill.advance_run processes.
    PERFORM mill.record_attempt(task, 'failed', true, jsonb_build_object('message', message,
        'hint', 'Store the value in a table. If only its text form is missing, cast it to text.'));
END
$$;
COMMENT ON FUNCTION mill.fail_released IS
    'For mill.release_ready: ends a task that was just released, without an attempt. An error instead would keep the '
    'whole run from advancing';

CREATE OR REPLACE FUNCTION mill.unusable_result(run_id bigint, params jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(min(format('column "%s" of task "%s" cannot be a parameter: %s', v.column_name, v.task,
            v.value->>'unusable')) FILTER (WHERE jsonb_typeof(v.value) = 'object'),
        CASE WHEN sum(octet_length(v.value::text)) > (SELECT s.statement_limit_bytes FROM mill.settings s)
            THEN 'the results that are parameters are longer than statement_limit_bytes' END)
    FROM (SELECT p.value->>'column' AS column_name, t.name AS task, t.result->(p.value->>'column') AS value
        FROM jsonb_array_elements(params) AS p(value) JOIN mill.run_tasks t
            ON t.run_id = unusable_result.run_id AND t.name = p.value->>'$result') AS v
$$;
COMMENT ON FUNCTION mill.unusable_result IS
    'Returns an error message if params contain {"$result": task, "column": name} with a value that mill.first_row '
    'could not keep, or values that exceed the size limit together; otherwise null';

CREATE OR REPLACE FUNCTION mill.release_ready(run_id bigint, nodes bigint[], search boolean, max_count integer)
RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    picked integer;
    released integer;
    asking bigint[];
    unusable jsonb;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT w.* FROM (
            SELECT r.node FROM unnest(nodes) AS r(node)
            UNION
            (SELECT t.node FROM mill.run_tasks t
            WHERE search AND t.run_id = release_ready.run_id AND t.state = 'ready'
                AND (t.approval_since IS NULL OR t.approved) ORDER BY t.node LIMIT max_count)
            ORDER BY node LIMIT max_count) AS n
        CROSS JOIN LATERAL (SELECT t.ctid AS place, t.* FROM mill.run_tasks t
            WHERE t.run_id = release_ready.run_id AND t.node = n.node AND t.state = 'ready' LIMIT 1) AS w
        ORDER BY n.node
    ), task AS MATERIALIZED (
        SELECT p.*, coalesce(p.task_id, nextval('mill.tasks_id_seq')) AS id,
            CASE WHEN p.takes_results THEN mill.unusable_result(p.run_id, p.params) END AS unusable,
            CASE WHEN num_nonnulls(p.group_name, p.concurrency_key) > 0
                OR EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = p.queue)
                THEN mill.required_limits(p.queue, p.group_name, p.run_id, p.concurrency_key) END AS limits
        FROM picked p WHERE NOT p.approval OR p.approved
    ), put AS (
        INSERT INTO mill.tasks (id, name, run_id, node, statement, params, queue, priority, group_name,
            concurrency_key, limits, state, blocking_limit_id, attempt, run_as, options, receipt)
        SELECT t.id, t.name, t.run_id, t.node, t.statement,
            CASE WHEN t.takes_results AND t.unusable IS NULL THEN mill.substitute_results(t.run_id, t.params)
                ELSE t.params END, t.queue,
            coalesce(t.priority, 'normal'), t.group_name, t.concurrency_key, t.limits,
            mill.initial_state(NULL, t.limits), t.limits[1], t.attempts, t.run_as,
            CASE WHEN t.takes_results THEN mill.options_with_results(t.run_id, t.params, t.options) ELSE t.options END,
            CASE WHEN t.run_as <> '' THEN mill.new_receipt(t.run_as) END
        FROM task t
    ), moved AS (
        UPDATE mill.run_tasks r SET state = 'released', task_id = t.id
        FROM task t WHERE r.ctid = t.place RETURNING 1
    ), asked AS (
        UPDATE mill.run_tasks r SET approval_since = clock_timestamp()
        FROM picked p WHERE r.ctid = p.place AND p.approval AND p.approved IS NULL RETURNING r.node
    )
    SELECT (SELECT count(*) FROM picked), (SELECT count(*) FROM moved), (SELECT array_agg(a.node) FROM asked a),
            (SELECT jsonb_object_agg(t.id, t.unusable) FROM task t WHERE t.unusable IS NOT NULL)
        INTO picked, released, asking, unusable;
    IF asking IS NOT NULL THEN
        PERFORM mill.request_approvals(run_id, asking);
    END IF;
    IF unusable IS NOT NULL THEN
        PERFORM mill.fail_released(u.key::bigint, u.value) FROM jsonb_each_text(unusable) AS u;
    END IF;
    RETURN CASE WHEN picked = max_count THEN max_count ELSE released END;
END
$$;
COMMENT ON FUNCTION mill.release_ready IS
    'For mill.advance_run: releases these tasks of a run (ready -> released), up to max_count. search: also other '
    'ready tasks of the run. A task that needs approval begins to wait for it instead; one with a parameter that the '
    'run could not keep has failed at once. Returns the number of released tasks; max_count if there may be more';

CREATE OR REPLACE FUNCTION mill.cancel_open_tasks(run_id bigint, kill boolean, max_count integer, OUT waited integer,
    OUT more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live integer;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT t.node FROM mill.run_tasks t
        WHERE t.run_id = cancel_open_tasks.run_id AND t.state IN ('waiting', 'ready') AND t.propagated_to >= 0
        LIMIT max_count
    )
    UPDATE mill.run_tasks t SET state = 'cancelled', finished_at = clock_timestamp()
        FROM picked p WHERE t.run_id = cancel_open_tasks.run_id AND t.node = p.node;
    GET DIAGNOSTICS waited = ROW_COUNT;
    -- SKIP LOCKED leaves out a task that is being claimed, and a task that is about to be attempted
    -- again and waits for the row of this run. A later call handles such tasks. A cancelled task
    -- appends an event, as every task that finishes does.
    SELECT count(mill.cancel_task(s.id, running => false)) INTO live FROM (
        SELECT t.id FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
        WHERE r.run_id = cancel_open_tasks.run_id AND r.state = 'released' AND t.state <> 'running'
        ORDER BY t.id LIMIT max_count FOR NO KEY UPDATE OF t SKIP LOCKED) AS s;
    -- Another session may keep a task locked for long, so a poll calls this function again, not the caller.
    INSERT INTO mill.run_events (run_id) SELECT cancel_open_tasks.run_id WHERE EXISTS (
        SELECT FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
        WHERE r.run_id = cancel_open_tasks.run_id AND r.state = 'released' AND t.state <> 'running');
    -- This statement comes last. So a task that is claimed in the meantime is found by the statement before
    -- or by this one.
    IF kill THEN
        INSERT INTO mill.cancel_requests (task_id)
            SELECT t.id FROM mill.run_tasks r JOIN mill.tasks t ON t.id = r.task_id
            WHERE r.run_id = cancel_open_tasks.run_id AND r.state = 'released' AND t.state = 'running'
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM pg_notify('mill', 'cancel');
        END IF;
    END IF;
    more := waited = max_count OR live > 0;
END
$$;
COMMENT ON FUNCTION mill.cancel_open_tasks IS
    'For mill.advance_run: cancels the tasks of a cancelled run that are not running; with kill, also requests the '
    'cancel of its running tasks. waited: number of cancelled tasks that were never released. more: whether to call '
    'it again at once. If other sessions have locked tasks, inserts an event, so that it is called again later';

CREATE OR REPLACE FUNCTION mill.finish_run(run_id bigint) RETURNS mill.run_state
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended mill.runs;
BEGIN
    UPDATE mill.runs r SET tasks = n.tasks, open = 0, succeeded = n.succeeded, failed = n.failed, ignored = n.ignored,
            cancelled = n.cancelled, upstream_failed = n.upstream_failed, skipped = n.skipped,
            finished_at = clock_timestamp(),
            state = CASE WHEN r.cancelled_at IS NOT NULL THEN 'cancelled' WHEN n.failed > 0 THEN 'failed'
                WHEN n.cancelled > 0 THEN 'cancelled' ELSE 'succeeded' END::mill.run_state
        FROM (SELECT count(*) AS tasks, count(*) FILTER (WHERE t.state = 'succeeded') AS succeeded,
                count(*) FILTER (WHERE t.state = 'failed' AND NOT t.ignore_failure) AS failed,
                count(*) FILTER (WHERE t.state = 'failed' AND t.ignore_failure) AS ignored,
                count(*) FILTER (WHERE t.state = 'cancelled') AS cancelled,
                count(*) FILTER (WHERE t.state = 'upstream_failed') AS upstream_failed,
                count(*) FILTER (WHERE t.state = 'skipped') AS skipped
            FROM mill.run_tasks t WHERE t.run_id = finish_run.run_id) AS n
        WHERE r.id = finish_run.run_id RETURNING r.* INTO ended;
    PERFORM mill.mark_late(finish_run.run_id) WHERE ended.late_at IS NOT NULL;
    PERFORM mill.erase_unstored(finish_run.run_id);
    -- Tasks that were enqueued with the id of the run may still wait for its limits. mill.prune deletes these later.
    -- mill.renew_chains gives the other tasks that need one of the deleted limits a new one.
    DELETE FROM mill.limits l WHERE l.id IN (SELECT g.id FROM mill.limits g
        WHERE g.kind = 'group' AND g.run_id = finish_run.run_id
            AND NOT EXISTS (SELECT FROM mill.permits p WHERE p.limit_id = g.id)
            AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = g.id)
        FOR UPDATE SKIP LOCKED);
    IF ended.schedule_id IS NOT NULL THEN
        PERFORM mill.log_completed(ended);
    END IF;
    PERFORM mill.notify_run(ended);
    RETURN ended.state;
END
$$;
COMMENT ON FUNCTION mill.finish_run IS
    'For mill.advance_run: finishes a run and returns its final state, cancelled, failed or succeeded';

CREATE OR REPLACE FUNCTION mill.await_schedule(schedule_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
BEGIN
    PERFORM FROM mill.schedules s WHERE s.id = await_schedule.schedule_id FOR NO KEY UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION mill.await_schedule IS
    'Locks the row of a schedule. Returns false if it cannot get the lock within 0.2 s, for example because a '
    'transaction that has changed the schedule is still open';

CREATE OR REPLACE FUNCTION mill.end_released(run_id bigint, events mill.run_events[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    nodes bigint[];
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT e.*, w.place FROM unnest(events) AS e CROSS JOIN LATERAL (
            SELECT t.ctid AS place FROM mill.run_tasks t
            WHERE t.run_id = end_released.run_id AND t.node = e.node AND t.state = 'released' LIMIT 1) AS w
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
    SELECT array_agg(m.node) INTO nodes FROM moved m;
    RETURN nodes;
END
$$;
COMMENT ON FUNCTION mill.end_released IS
    'For mill.advance_run: ends the tasks of these events (released -> succeeded | failed | cancelled). Returns their '
    'nodes; null: there are none';

CREATE OR REPLACE FUNCTION mill.release_children(run_id bigint, ended bigint[], search boolean, max_count integer,
    OUT never_run integer, OUT released integer, OUT more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    step record;
    ready bigint[];
BEGIN
    never_run := 0;
    LOOP
        SELECT p.* INTO step FROM mill.propagate_completion(run_id, ended, search, max_count) AS p;
        ready := ready || step.ready;
        ended := step.never_run;
        never_run := never_run + coalesce(cardinality(ended), 0);
        more := step.edges_propagated = max_count OR coalesce(cardinality(ready), 0) >= max_count;
        EXIT WHEN more OR ended IS NULL;
    END LOOP;
    released := mill.release_ready(run_id, ready, search, max_count);
    more := more OR released = max_count;
END
$$;
COMMENT ON FUNCTION mill.release_children IS
    'For mill.advance_run: propagates the completion of these tasks, also by way of children that never run, and '
    'releases the tasks that became ready. search: also other ended and ready tasks of the run. never_run: number of '
    'tasks that became upstream_failed or skipped. more: whether there may be more to propagate or to release';

CREATE OR REPLACE FUNCTION mill.advance_run(run_id bigint, OUT released integer, OUT ended mill.run_state,
    OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    -- Bounds the duration of each statement for runs of any size.
    max_count CONSTANT integer := 2000;
    run mill.runs;
    events mill.run_events[];
    added bigint[];
    ended_nodes bigint[];
    step record;
BEGIN
    released := 0;
    more := false;
    -- Asynchronous commit is safe here, as for a claim: WAL is written in order, so an effect of a
    -- released task survives a crash only if the release does.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM FROM mill.runs r WHERE r.id = advance_run.run_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND AND NOT mill.await_run(run_id, false) THEN
        -- The events remain, so a poll calls this function again.
        RETURN;
    END IF;
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = advance_run.run_id;
    -- The lock excludes other sessions that advance this run; each of the following statements sees the
    -- changes of the earlier ones.
    WITH taken AS (
        DELETE FROM mill.run_events e WHERE e.id = ANY (ARRAY(SELECT x.id FROM mill.run_events x
            WHERE x.run_id = advance_run.run_id ORDER BY x.id LIMIT max_count))
        RETURNING e AS event
    )
    SELECT array_agg(t.event), array_agg((t.event).node) FILTER (WHERE (t.event).outcome IS NULL
            AND (t.event).node IS NOT NULL)
        INTO events, added FROM taken t;
    IF run.state IS DISTINCT FROM 'running' THEN
        RETURN;
    END IF;
    ended_nodes := mill.end_released(run.id, events);
    run.open := run.open - coalesce(cardinality(ended_nodes), 0);
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
        SELECT c.* INTO step FROM mill.release_children(run.id, ended_nodes, run.needs_rescan, max_count) AS c;
        run.open := run.open - step.never_run;
        run.needs_rescan := step.more;
        released := step.released;
        more := step.more;
    END IF;
    more := more OR coalesce(cardinality(events), 0) = max_count;
    UPDATE mill.runs r SET tasks = run.tasks, open = run.open, needs_rescan = run.needs_rescan
        WHERE r.id = run.id AND (r.tasks, r.open, r.needs_rescan) <> (run.tasks, run.open, run.needs_rescan);
    IF NOT more AND run.open = 0
        -- The end of the run changes its schedule, unless a backfill has started it.
        AND (run.schedule_id IS NULL OR run.backfill_id IS NOT NULL OR mill.await_schedule(run.schedule_id))
    THEN
        ended := mill.finish_run(run.id);
    ELSIF more OR run.open = 0 THEN
        -- With this event, a poll calls this function again, also if the caller crashes before the next pass.
        INSERT INTO mill.run_events (run_id) VALUES (run.id);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.advance_run IS
    'Processes the events of finished tasks, propagates the completions to the children, releases ready tasks, and '
    'finishes the run when no task is open. Each call does a bounded amount of work. more: whether to call it again. '
    'ended: final state, if this call finished the run';
GRANT EXECUTE ON FUNCTION mill.advance_run TO mill_worker;
