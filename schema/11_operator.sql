-- Operator functions: cancel and retry a task; pause and resume a queue, set its shared commit; drain a
-- worker. Limits, groups and priorities are in 04_capacity.sql, runs in 16_run_advance.sql, schedules in
-- 14_schedules.sql.
--
-- Each function records the change in mill.audit.

CREATE OR REPLACE FUNCTION mill.cancel_task(id bigint, running boolean DEFAULT true) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
BEGIN
    SELECT t.* INTO task FROM mill.tasks t WHERE t.id = cancel_task.id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM mill.attempts a WHERE a.task_id = cancel_task.id)
            THEN 'finished' ELSE 'not found' END;
    END IF;
    IF task.state = 'running' AND NOT running THEN
        RETURN 'running';
    ELSIF task.state = 'running' THEN
        INSERT INTO mill.cancel_requests (task_id) VALUES (task.id) ON CONFLICT DO NOTHING;
        -- Cancels are so rare that the cost of a NOTIFY in a writing transaction does not matter.
        -- Without the notification, the worker sees the request with its next heartbeat.
        PERFORM pg_notify('mill', 'cancel');
        RETURN 'requested';
    END IF;
    PERFORM mill.prepare_history(0);
    PERFORM mill.record_attempt(task, 'cancelled', true,
        jsonb_build_object('message', format('cancelled by %s before it was claimed', session_user)));
    IF task.limits IS NOT NULL THEN
        PERFORM mill.release_permits(ARRAY[task.id], NULL);
    END IF;
    DELETE FROM mill.tasks t WHERE t.id = task.id;
    RETURN 'cancelled';
END
$$;
COMMENT ON FUNCTION mill.cancel_task IS
    'Cancels a task without an audit record, for mill.cancel and mill.cancel_open_tasks. Returns the same values as '
    'mill.cancel';

CREATE OR REPLACE FUNCTION mill.cancel(id bigint, running boolean DEFAULT true) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    answer text := mill.cancel_task(id, running);
BEGIN
    IF answer IN ('cancelled', 'requested') THEN
        PERFORM mill.record_audit('cancel', 'task ' || id, jsonb_build_object('result', answer));
    END IF;
    RETURN answer;
END
$$;
COMMENT ON FUNCTION mill.cancel IS
    'Cancels a task. Returns cancelled (the task was waiting), requested (the task is running, and its worker stops '
    'the statement), finished or not found. running => false leaves a running task alone and returns running';
GRANT EXECUTE ON FUNCTION mill.cancel TO mill_operator;

CREATE OR REPLACE FUNCTION mill.retry(id bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live mill.state;
    last_attempt mill.attempts;
    task mill.tasks;
    statement text;
    answer text;
    chain bigint[];
BEGIN
    SELECT t.state, t.limits INTO live, chain FROM mill.tasks t WHERE t.id = retry.id FOR NO KEY UPDATE;
    IF live = 'scheduled' THEN
        UPDATE mill.tasks t SET state = mill.initial_state(NULL, chain), blocking_limit_id = chain[1], due_at = now()
            WHERE t.id = retry.id;
        PERFORM mill.record_audit('retry', 'task ' || id, jsonb_build_object('result', 'brought forward'));
        RETURN 'brought forward';
    ELSIF live IS NOT NULL THEN
        RETURN live::text;
    END IF;
    SELECT a.* INTO last_attempt FROM mill.attempts a
        WHERE a.task_id = retry.id AND a.final ORDER BY a.finished_at DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN 'not found';
    ELSIF last_attempt.node IS NOT NULL THEN
        answer := mill.retry_run_task(last_attempt.run_id, last_attempt.name);
        IF answer = 'succeeded' THEN
            RAISE EXCEPTION 'task % has succeeded in run %', id, last_attempt.run_id USING ERRCODE = '55000',
                HINT = format('pgmill run rerun %s %L runs it and all tasks after it again.', last_attempt.run_id,
                    last_attempt.name);
        END IF;
        RETURN answer;
    END IF;
    IF last_attempt.key IS NOT NULL THEN
        INSERT INTO mill.dedup_keys (key, task_id) VALUES (last_attempt.key, retry.id)
            ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'another live task has the key "%"', last_attempt.key
                USING ERRCODE = '23505', HINT = 'Wait for that task, or cancel it.';
        END IF;
    END IF;
    DELETE FROM mill.cancel_requests r WHERE r.task_id = retry.id;
    chain := mill.required_limits(last_attempt.queue, last_attempt.group_name, last_attempt.run_id,
        last_attempt.concurrency_key);
    -- Copies the options of the task from the columns of the same names in history, by way of jsonb. The
    -- statement is copied separately, because it may be longer than jsonb allows (256 MB).
    statement := last_attempt.statement;
    last_attempt.statement := NULL;
    task := jsonb_populate_record(NULL::mill.tasks,
        to_jsonb(last_attempt) - ARRAY['token', 'session_pid'] || jsonb_build_object('id', retry.id,
            'due_at', clock_timestamp(), 'state', mill.initial_state(NULL, chain), 'limits', chain,
            'blocking_limit_id', chain[1], 'failures', 0, 'transient_failures', 0, 'crashes', 0));
    task.statement := statement;
    INSERT INTO mill.tasks SELECT task.*;
    PERFORM mill.record_audit('retry', 'task ' || id, jsonb_build_object('result', 'retried'));
    RETURN 'retried';
EXCEPTION WHEN unique_violation THEN
    -- A concurrent retry has already inserted the task.
    IF EXISTS (SELECT FROM mill.tasks t WHERE t.id = retry.id) THEN
        RETURN 'pending';
    END IF;
    RAISE;
END
$$;
COMMENT ON FUNCTION mill.retry IS
    'For a finished task: runs it again under the same id, keeps the history of its attempts, and returns retried. If '
    'it belongs to a run, this is mill.retry_run_task; it then must not have succeeded. '
    'For a scheduled task: makes it due now and returns brought forward. For another live task: returns its state. '
    'Otherwise returns not found';
GRANT EXECUTE ON FUNCTION mill.retry TO mill_operator;

CREATE OR REPLACE FUNCTION mill.pause(queue text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO mill.queues (name, paused) VALUES (pause.queue, true)
        ON CONFLICT (name) DO UPDATE SET paused = true, changed_at = now();
    PERFORM mill.record_audit('pause', 'queue ' || queue);
END
$$;
COMMENT ON FUNCTION mill.pause IS 'Stops claims from a queue. Running tasks continue';
GRANT EXECUTE ON FUNCTION mill.pause TO mill_operator;

CREATE OR REPLACE FUNCTION mill.resume(queue text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.queues q SET paused = false, changed_at = now() WHERE q.name = resume.queue;
    IF FOUND THEN
        PERFORM mill.record_audit('resume', 'queue ' || queue);
    END IF;
    PERFORM pg_notify('mill', 'sweep');
END
$$;
COMMENT ON FUNCTION mill.resume IS 'Resumes claims from a paused queue';
GRANT EXECUTE ON FUNCTION mill.resume TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_shared_commit(queue text, budget interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO mill.queues (name, shared_commit) VALUES (set_shared_commit.queue, budget)
        ON CONFLICT (name) DO UPDATE SET shared_commit = budget, changed_at = now();
    PERFORM mill.record_audit('set_shared_commit', 'queue ' || queue, jsonb_build_object('budget', budget));
END
$$;
COMMENT ON FUNCTION mill.set_shared_commit IS
    'Sets the time budget (1 to 100 ms) within which readers run short tasks of a queue one after another in one '
    'transaction; null: each task commits alone. Workers apply the change within two seconds';
GRANT EXECUTE ON FUNCTION mill.set_shared_commit TO mill_operator;

CREATE OR REPLACE FUNCTION mill.remove_limit(kind mill.limit_kind, name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    gone bigint;
BEGIN
    IF remove_limit.kind = 'group' THEN
        RAISE EXCEPTION 'the limit of a group is removed with the group' USING ERRCODE = '22023',
            HINT = 'Use pgmill group remove.';
    END IF;
    -- The lock conflicts with that of mill.required_limits, so no task gets this limit meanwhile.
    SELECT l.id INTO gone FROM mill.limits l
        WHERE l.kind = remove_limit.kind AND l.name = remove_limit.name AND l.run_id = 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF EXISTS (SELECT FROM mill.tasks t WHERE t.limits @> ARRAY[gone]) THEN
        RAISE EXCEPTION 'the limit of % "%" has live tasks', remove_limit.kind, remove_limit.name
            USING ERRCODE = '55000', HINT = 'Wait until they have ended, or lift the limit with --max-running off.';
    END IF;
    DELETE FROM mill.limits l WHERE l.id = gone;
    PERFORM mill.record_audit('remove_limit', remove_limit.kind || ' ' || remove_limit.name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.remove_limit IS
    'Removes the limit of a queue or of a concurrency key. Returns false if there is none. Raises an error while live '
    'tasks have the limit';
GRANT EXECUTE ON FUNCTION mill.remove_limit TO mill_operator;

CREATE OR REPLACE FUNCTION mill.remove_queue(queue text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    limited boolean := mill.remove_limit('queue', remove_queue.queue);
BEGIN
    DELETE FROM mill.queues q WHERE q.name = remove_queue.queue;
    IF NOT FOUND THEN
        RETURN limited;
    END IF;
    PERFORM mill.record_audit('remove_queue', 'queue ' || queue);
    PERFORM pg_notify('mill', 'sweep');
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.remove_queue IS
    'Removes the settings of a queue: pause, shared commit and limits. Its tasks then run as in a queue without '
    'settings. Returns false if the queue has no settings';
GRANT EXECUTE ON FUNCTION mill.remove_queue TO mill_operator;

CREATE OR REPLACE FUNCTION mill.drain(worker_id uuid, draining boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE mill.workers w SET draining = drain.draining WHERE w.id = drain.worker_id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('mill', 'heartbeat');
    PERFORM mill.record_audit('drain', 'worker ' || worker_id, jsonb_build_object('draining', draining));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.drain IS
    'Makes a worker stop claiming tasks, or resume (draining => false). Returns false if the worker does not exist';
GRANT EXECUTE ON FUNCTION mill.drain TO mill_operator;
