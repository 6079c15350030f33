-- Control of runs: cancel, restart, rerun, and the retry of a task.

CREATE OR REPLACE FUNCTION mill.advance_now(run_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unfinished boolean;
    durability text := current_setting('synchronous_commit');
BEGIN
    -- If no task is left to run, the run ends here, also without a worker. The number of passes is limited;
    -- workers do the rest.
    INSERT INTO mill.run_events (run_id) VALUES (advance_now.run_id);
    FOR pass IN 1..10 LOOP
        SELECT a.more INTO unfinished FROM mill.advance_run(advance_now.run_id) AS a;
        EXIT WHEN NOT unfinished;
    END LOOP;
    -- As the other actions of operators, also where transactions can be prepared.
    PERFORM pg_notify('mill', 'work');
    -- An operator's action is durable, unlike an advance of a run.
    PERFORM set_config('synchronous_commit', durability, true);
END
$$;
COMMENT ON FUNCTION mill.advance_now IS
    'Advances a run within the action of an operator, for mill.cancel_run and mill.reject';

CREATE OR REPLACE FUNCTION mill.cancel_run(run_id bigint, kill boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_state mill.run_state;
BEGIN
    PERFORM mill.require_read_committed('mill.cancel_run');
    SELECT r.state INTO found_state FROM mill.runs r WHERE r.id = cancel_run.run_id FOR NO KEY UPDATE;
    IF found_state IS DISTINCT FROM 'running' THEN
        RETURN coalesce(found_state::text, 'not found');
    END IF;
    UPDATE mill.runs r SET cancelled_at = coalesce(r.cancelled_at, now()), kill = r.kill OR cancel_run.kill,
        cancelled_by = coalesce(r.cancelled_by, session_user) WHERE r.id = cancel_run.run_id;
    PERFORM mill.advance_now(run_id);
    PERFORM mill.record_audit('cancel_run', 'run ' || run_id, jsonb_build_object('kill', kill));
    RETURN 'cancelling';
END
$$;
COMMENT ON FUNCTION mill.cancel_run IS
    'Cancels a run: no further task starts. Running tasks finish; with kill, they are cancelled too. Returns '
    'cancelling, or the state of a run that has finished, or not found. Requires READ COMMITTED';
GRANT EXECUTE ON FUNCTION mill.cancel_run TO mill_operator;

CREATE OR REPLACE FUNCTION mill.tasks_added_by(run_id bigint, nodes bigint[]) RETURNS bigint[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE added (node) AS (
        SELECT t.node FROM mill.run_tasks t WHERE t.run_id = tasks_added_by.run_id AND t.added_by = ANY (nodes)
        UNION
        SELECT t.node FROM added a JOIN mill.run_tasks t ON t.run_id = tasks_added_by.run_id AND t.added_by = a.node
    )
    SELECT coalesce(array_agg(a.node), '{}') FROM added a
$$;
COMMENT ON FUNCTION mill.tasks_added_by IS
    'Returns the tasks that tasks of a run have added to it, directly or indirectly';

CREATE OR REPLACE FUNCTION mill.wait_again(run_id bigint, nodes bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    step record;
BEGIN
    DELETE FROM mill.cancel_requests c USING mill.run_tasks t
        WHERE t.run_id = wait_again.run_id AND t.node = ANY (nodes) AND c.task_id = t.task_id;
    UPDATE mill.run_tasks t SET state = 'waiting', outcome = NULL, pending_propagation = false, propagated_to = 0,
            started_at = NULL, finished_at = NULL, rows = NULL, session_pid = NULL, message = NULL, result = NULL,
            approval_since = NULL, approved = NULL, decided_by = NULL
        WHERE t.run_id = wait_again.run_id AND t.node = ANY (nodes) AND t.propagated_to >= 0;
    -- A task that was ready, for example waiting for its approval, waits for its parent again.
    UPDATE mill.run_tasks t SET state = 'waiting'
        WHERE t.run_id = wait_again.run_id AND t.state = 'ready' AND t.propagated_to >= 0
            AND EXISTS (SELECT FROM mill.run_edges e
                WHERE e.run_id = wait_again.run_id AND e.child = t.node AND e.parent = ANY (nodes));
    PERFORM mill.recount_dependencies(run_id, NULL);
    UPDATE mill.run_tasks t SET approval_since = NULL, approved = NULL, decided_by = NULL
        WHERE t.run_id = wait_again.run_id AND t.state = 'waiting' AND t.approval_since IS NOT NULL;
    -- Also tells the tasks that can never run because of their parents.
    LOOP
        SELECT p.* INTO step FROM mill.propagate_completion(run_id, NULL, true, 2000) AS p;
        EXIT WHEN step.edges_propagated < 2000 AND step.never_run IS NULL;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.wait_again IS
    'For mill.run_again: makes these tasks of a run wait for their parents as if they had never run, and ready tasks '
    'after them, too (-> waiting). Then evaluates all waiting tasks (waiting -> ready | upstream_failed | skipped)';

CREATE OR REPLACE FUNCTION mill.run_again(run mill.runs, nodes bigint[], action text, details jsonb) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    added CONSTANT bigint[] := mill.tasks_added_by(run.id, nodes);
    busy text;
    names text[];
BEGIN
    IF run.state = 'running' AND run.cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'run % is being cancelled', run.id USING ERRCODE = '55000',
            HINT = 'Wait until its running tasks have ended, or cancel them with pgmill run cancel --kill.';
    END IF;
    SELECT t.name INTO busy FROM mill.run_tasks t WHERE t.run_id = run.id AND t.node = ANY (nodes || added)
        AND t.state IN ('ready', 'released') ORDER BY t.node LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'task "%" of run % has not ended', busy, run.id USING ERRCODE = '55000',
            HINT = 'Wait until it has ended, or cancel it.';
    END IF;
    -- The tasks that have added these tasks add them again.
    DELETE FROM mill.run_events e WHERE e.run_id = run.id AND e.node = ANY (added);
    DELETE FROM mill.run_edges e WHERE e.run_id = run.id AND (e.parent = ANY (added) OR e.child = ANY (added));
    DELETE FROM mill.run_tasks t WHERE t.run_id = run.id AND t.node = ANY (added);
    nodes := ARRAY(SELECT n FROM unnest(nodes) AS n WHERE n <> ALL (added));
    PERFORM mill.check_stored(run.id, nodes) WHERE run.state <> 'running';
    -- Groups can be gone, and the routines of a profile can have changed, since the run started.
    PERFORM mill.lock_groups(run.id, nodes);
    IF EXISTS (SELECT FROM mill.profiles p WHERE p.routines IS NOT NULL) THEN
        PERFORM mill.check_routine(t.run_as, t.statement, t.name) FROM mill.run_tasks t
            WHERE t.run_id = run.id AND t.node = ANY (nodes) AND t.run_as <> '';
    END IF;
    UPDATE mill.runs r SET state = 'running', finished_at = NULL, cancelled_at = NULL, cancelled_by = NULL,
            kill = false, cancel_reason = NULL, restarts = r.restarts + 1, restarted_at = c.now,
            timeout_at = r.timeout_at + (c.now - coalesce(r.restarted_at, r.started_at)),
            -- The deadline counts from the restart, too, unless the run is late already.
            late_at = CASE WHEN r.late_since IS NOT NULL THEN r.late_at
                ELSE r.late_at + (c.now - coalesce(r.restarted_at, r.started_at)) END
        FROM clock_timestamp() AS c(now)
        WHERE r.id = run.id AND r.state <> 'running';
    PERFORM mill.wait_again(run.id, nodes);
    -- The answer leaves out tasks that can never run because of their parents.
    SELECT array_agg(t.name::text ORDER BY t.node) INTO names FROM mill.run_tasks t
        WHERE t.run_id = run.id AND t.node = ANY (nodes) AND t.state NOT IN ('upstream_failed', 'skipped');
    IF names IS NULL THEN
        RAISE EXCEPTION 'none of these tasks of run % can run: their parents have not ended as required', run.id
            USING ERRCODE = '55000', HINT = CASE WHEN run.failed > 0
                THEN format('pgmill run restart %s runs the failed tasks as well.', run.id)
                ELSE format('pgmill run rerun %s runs all its tasks again.', run.id) END;
    END IF;
    PERFORM mill.release_ready(run.id, NULL, true, 2000), pg_notify('mill', 'work');
    -- The next advance counts a task that was added since the last one.
    UPDATE mill.runs r SET needs_rescan = true, (tasks, open) = (SELECT count(*),
            count(*) FILTER (WHERE t.state IN ('waiting', 'ready', 'released'))
            FROM mill.run_tasks t WHERE t.run_id = r.id AND t.propagated_to >= 0)
        WHERE r.id = run.id;
    INSERT INTO mill.run_events (run_id) VALUES (run.id);
    PERFORM mill.record_audit(action, 'run ' || run.id, details || jsonb_build_object('tasks', cardinality(names))
        || CASE WHEN run.state = 'running' THEN '{}' ELSE jsonb_strip_nulls(jsonb_build_object('state', run.state,
            'reason', run.cancel_reason, 'started_at', run.started_at, 'finished_at', run.finished_at)) END);
    RETURN QUERY SELECT unnest(names);
END
$$;
COMMENT ON FUNCTION mill.run_again IS
    'Runs these tasks of a locked run again, for mill.restart_run, mill.rerun_run and mill.retry_run_task. A run that '
    'has ended is in progress again. Removes the tasks that these tasks have added to the run. Returns the names of '
    'the tasks, except those that cannot run because of tasks before them. Raises an error if that leaves none, if a '
    'task has not ended, if its group does not exist, or if its profile does not allow its statement';

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
            AND ((failed OR downstream)
                    -- A task whose parameters cannot be used fails without a start.
                    AND (t.state = 'failed' OR t.state = 'cancelled' AND t.started_at IS NOT NULL)
                OR never_run AND t.state IN ('cancelled', 'upstream_failed', 'skipped') AND t.started_at IS NULL)
        UNION
        -- A task that could not run because of a task before it waits for that task again.
        SELECT c.node FROM chosen p JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = p.node
            JOIN mill.run_tasks c ON c.run_id = run.id AND c.node = e.child
        WHERE downstream OR c.state IN ('upstream_failed', 'skipped')
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
    'that started and did not succeed, and the tasks that did not run because of them. never_run: tasks '
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
    -- All later tasks that did not run because of their parents are evaluated again, even if another
    -- task is the reason.
    WITH RECURSIVE after (node) AS (
        SELECT found_task.node
        UNION
        SELECT c.node FROM after a JOIN mill.run_edges e ON e.run_id = run.id AND e.parent = a.node
            JOIN mill.run_tasks c ON c.run_id = run.id AND c.node = e.child
                AND c.state IN ('upstream_failed', 'skipped')
    )
    SELECT array_agg(a.node) INTO nodes FROM after a;
    PERFORM mill.run_again(run, nodes, 'retry_run_task', jsonb_build_object('task', task));
    RETURN 'retried';
END
$$;
COMMENT ON FUNCTION mill.retry_run_task IS
    'Runs a failed or cancelled task of a run again, and the tasks that did not run because of it. If the '
    'run has ended, it is in progress again. Returns retried, or the state of a task that is in another state, or not '
    'found';
GRANT EXECUTE ON FUNCTION mill.retry_run_task TO mill_operator;
