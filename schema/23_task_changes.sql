-- Changes of waiting tasks: -> scheduled | blocked | pending.
--
-- A task that gets other limits or another due time gives its permits back and begins again, like a new task. A
-- task that gets into a lane behind the watermarks of workers is found by their next sweep.

CREATE OR REPLACE FUNCTION mill.apply_change(task mill.tasks, changes jsonb) RETURNS mill.tasks
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result mill.tasks;
BEGIN
    PERFORM mill.check_keys(changes, '{due_at,group,max_attempts,params,priority,queue,timeout}');
    -- The domains of columns and attributes check the values.
    result := jsonb_populate_record(task, changes - 'group' || CASE WHEN changes ? 'group'
        THEN jsonb_build_object('group_name', changes->'group') ELSE '{}' END);
    IF changes ?| '{max_attempts,timeout}' THEN
        result.options := jsonb_populate_record(task.options, changes);
        IF (result.options).at_most_once THEN
            PERFORM mill.check_at_most_once(result.options);
        END IF;
        result.options := CASE WHEN NOT result.options IS NULL THEN result.options END;
    END IF;
    IF changes ? 'priority' AND result.priority IS NULL THEN
        result.priority := coalesce((SELECT g.priority FROM mill.groups g WHERE g.name = result.group_name), 'normal');
    END IF;
    result.queue := coalesce(result.queue, 'default');
    result.due_at := coalesce(result.due_at, now());
    IF changes ? 'params' THEN
        PERFORM mill.check_statement(task.statement, result.params);
        -- The params decide what the login of the profile does.
        PERFORM mill.check_profile(task.run_as) WHERE task.run_as <> '';
    END IF;
    IF result.queue <> task.queue OR changes ? 'params' THEN
        result.options := mill.resolve_options(result.options, result.queue, result.params);
    END IF;
    RETURN result;
END
$$;
COMMENT ON FUNCTION mill.apply_change IS
    'Returns the task with these changes, before its state is computed, for mill.change_waiting_task. Raises an error '
    'if a key or a value is invalid';

CREATE OR REPLACE FUNCTION mill.changeable(task mill.tasks) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- The audit is kept longer than history and is open to viewers, so it gets a hash of the params.
    SELECT jsonb_build_object('queue', task.queue, 'priority', task.priority, 'due_at', task.due_at, 'params_md5',
        md5(task.params::text), 'max_attempts', (mill.effective(task.options)).max_attempts,
        'timeout', (task.options).timeout, 'group', task.group_name)
$$;
COMMENT ON FUNCTION mill.changeable IS 'Returns the options of a task that mill.change_task can change, for its audit';

CREATE OR REPLACE FUNCTION mill.change_waiting_task(id bigint, changes jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    result mill.tasks;
    before jsonb;
    after jsonb;
BEGIN
    SELECT t.* INTO task FROM mill.tasks t WHERE t.id = change_waiting_task.id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM mill.attempts a WHERE a.task_id = change_waiting_task.id)
            THEN 'finished' ELSE 'not found' END;
    ELSIF task.state = 'running' THEN
        RETURN 'running';
    END IF;
    result := mill.apply_change(task, changes);
    result.limits := mill.required_limits(result.queue, result.group_name, result.run_id, result.concurrency_key);
    IF task.limits[1] <= 0 AND result.limits[1] <= 0 THEN
        result.limits[1] := task.limits[1];
    END IF;
    before := mill.changeable(task);
    after := (SELECT jsonb_object_agg(n.key, n.value) FROM jsonb_each(mill.changeable(result)) AS n
        WHERE n.value <> before->n.key);
    IF after IS NULL THEN
        RETURN 'unchanged';
    END IF;
    IF result.limits IS DISTINCT FROM task.limits OR (result.due_at > now()) <> (task.state = 'scheduled') THEN
        PERFORM mill.release_permits(ARRAY[task.id], NULL) WHERE task.limits IS NOT NULL;
        result.state := mill.initial_state(result.due_at, result.limits);
        result.blocking_limit_id := CASE WHEN result.state = 'blocked' THEN result.limits[1] END;
        result.start_by := NULL;
    END IF;
    UPDATE mill.tasks t SET priority = result.priority, queue = result.queue, due_at = result.due_at,
            params = result.params, options = result.options, group_name = result.group_name,
            limits = result.limits, state = result.state, blocking_limit_id = result.blocking_limit_id,
            start_by = result.start_by
        WHERE t.id = task.id;
    IF task.node IS NOT NULL THEN
        -- A retry in the run copies the task from here. mill.advance_run relies on the lock.
        PERFORM FROM mill.runs r WHERE r.id = task.run_id FOR NO KEY UPDATE;
        UPDATE mill.run_tasks r SET priority = result.priority, queue = result.queue, options = result.options,
                params = CASE WHEN changes ? 'params' THEN result.params ELSE r.params END,
                takes_results = r.takes_results AND NOT changes ? 'params', group_name = result.group_name
            WHERE r.run_id = task.run_id AND r.node = task.node;
    END IF;
    PERFORM mill.record_change('change_task', 'task ' || task.id, before, after);
    RETURN 'updated';
END
$$;
COMMENT ON FUNCTION mill.change_waiting_task IS
    'Changes a task that waits, for mill.change_task and mill.change_tasks. Returns updated, unchanged, running, '
    'finished or not found';

CREATE OR REPLACE FUNCTION mill.change_task(id bigint, changes jsonb) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    answer text := mill.change_waiting_task(id, changes);
BEGIN
    IF answer = 'running' THEN
        RAISE EXCEPTION 'task % is running', id USING ERRCODE = '55000',
            HINT = 'Only a task that waits can be changed. Wait until it has ended, or cancel it and enqueue it again.';
    ELSIF answer = 'updated' THEN
        PERFORM pg_notify('mill', 'sweep');
    END IF;
    RETURN answer;
END
$$;
COMMENT ON FUNCTION mill.change_task IS
    'Changes a task that is scheduled, blocked or pending: {"priority", "queue", "due_at" (null: now), "params", '
    '"max_attempts", "timeout" (null: none), "group" (null: none)}; other keys raise an error, and keys that are '
    'missing stay as they are. A task of a run keeps the changes in a retry. Returns updated, unchanged, finished or '
    'not found. Raises an error if the task is running';
GRANT EXECUTE ON FUNCTION mill.change_task TO mill_operator;

CREATE OR REPLACE FUNCTION mill.change_tasks(ids bigint[], changes jsonb, only_state mill.state DEFAULT NULL)
RETURNS TABLE (id bigint, result text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
BEGIN
    -- In ascending order, as all statements that lock several tasks do.
    FOR id IN SELECT i FROM unnest(ids) AS i ORDER BY i LOOP
        result := CASE WHEN mill.lock_task(id) <> only_state THEN 'changed'
            ELSE mill.change_waiting_task(id, changes) END;
        RETURN NEXT;
    END LOOP;
    PERFORM pg_notify('mill', 'sweep');
END
$$;
COMMENT ON FUNCTION mill.change_tasks IS
    'Changes tasks in one transaction, as mill.change_task does. Returns its result for each task, in the order of '
    'their ids; running for a task that is running. only_state: leaves tasks in another state alone and returns '
    'changed for them';
GRANT EXECUTE ON FUNCTION mill.change_tasks TO mill_operator;
