-- Operator functions: cancel, retry, pause, resume, drain.
--
-- Limits, groups and priorities are in 04_capacity.sql, runs in 33_run_control.sql, schedules in
-- 28_schedules.sql.
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

CREATE OR REPLACE FUNCTION mill.lock_task(id bigint) RETURNS mill.state
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live mill.state;
BEGIN
    SELECT t.state INTO live FROM mill.tasks t WHERE t.id = lock_task.id FOR NO KEY UPDATE;
    RETURN live;
END
$$;
COMMENT ON FUNCTION mill.lock_task IS
    'Locks a live task until the end of the transaction, and returns its state; null if the task is not live';

CREATE OR REPLACE FUNCTION mill.cancel_many(ids bigint[], only_state mill.state DEFAULT NULL)
RETURNS TABLE (id bigint, result text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    finished CONSTANT timestamptz := clock_timestamp();
    report CONSTANT jsonb := jsonb_build_object('message',
        format('cancelled by %s before it was claimed', session_user));
    cancelled bigint[];
BEGIN
    PERFORM mill.prepare_history(0);
    -- All tasks are locked in the order of their ids, whatever the order of the argument is: two calls with the same
    -- tasks would otherwise wait for each other.
    PERFORM FROM mill.tasks t WHERE t.id = ANY (ids) ORDER BY t.id FOR NO KEY UPDATE;
    -- Most waiting tasks have no limit, key or run. They end in one statement, without a call per task.
    WITH waiting AS MATERIALIZED (
        SELECT t AS task, t.id FROM mill.tasks t
        WHERE t.id = ANY (ids) AND t.state <> 'running' AND (only_state IS NULL OR t.state = only_state)
            AND t.limits IS NULL AND t.key IS NULL AND t.node IS NULL
        ORDER BY t.id FOR NO KEY UPDATE
    ), recorded AS (
        INSERT INTO mill.attempts
        SELECT r.* FROM waiting w
            CROSS JOIN LATERAL mill.attempt_row(w.task, finished, 'cancelled', true, NULL, report) AS r
    ), audited AS (
        INSERT INTO mill.audit (action, subject, detail)
        SELECT 'cancel', 'task ' || w.id, '{"result": "cancelled"}' FROM waiting w
    ), gone AS (
        DELETE FROM mill.tasks t USING waiting w WHERE t.id = w.id RETURNING t.id
    )
    SELECT array_agg(g.id) INTO cancelled FROM gone g;
    RETURN QUERY
        -- The snapshot of this statement is older than the locks that it takes, so the state is checked again.
        SELECT a.id, a.answer FROM (
            SELECT i.id, i.n, CASE WHEN c.id IS NOT NULL THEN 'cancelled'
                    WHEN only_state IS NULL
                        OR EXISTS (SELECT FROM mill.tasks t WHERE t.id = i.id AND t.state = only_state)
                            AND mill.lock_task(i.id) = only_state
                    THEN mill.cancel(i.id) ELSE 'changed' END AS answer
            FROM unnest(ids) WITH ORDINALITY AS i (id, n) LEFT JOIN unnest(cancelled) AS c (id) ON c.id = i.id
            -- The limits of the tasks are locked in this order, too. OFFSET keeps the order of the calls.
            ORDER BY i.id OFFSET 0) AS a
        ORDER BY a.n;
END
$$;
COMMENT ON FUNCTION mill.cancel_many IS
    'Cancels tasks in one transaction. Returns the result of mill.cancel for each task, in the given order. '
    'only_state: leaves tasks in another state alone and returns changed for them';
GRANT EXECUTE ON FUNCTION mill.cancel_many TO mill_operator;

CREATE OR REPLACE FUNCTION mill.task_of_attempt(last_attempt mill.attempts, chain bigint[]) RETURNS mill.tasks
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement CONSTANT text := last_attempt.statement;
    task mill.tasks;
BEGIN
    -- Copies the options of the task from the columns of the same names in history, by way of jsonb. The
    -- statement is copied separately, because it may be longer than jsonb allows (256 MB).
    last_attempt.statement := NULL;
    last_attempt.token := NULL;
    last_attempt.session_pid := NULL;
    last_attempt.result := NULL;
    task := jsonb_populate_record(NULL::mill.tasks, to_jsonb(last_attempt));
    task.id := last_attempt.task_id;
    task.statement := statement;
    task.due_at := clock_timestamp();
    task.state := mill.initial_state(NULL, chain);
    task.limits := chain;
    task.blocking_limit_id := chain[1];
    task.failures := 0;
    task.transient_failures := 0;
    task.crashes := 0;
    -- The receipt of the earlier attempts would end the task without running it.
    IF task.run_as <> '' THEN
        task.receipt := mill.new_receipt(task.run_as);
    END IF;
    RETURN task;
END
$$;
COMMENT ON FUNCTION mill.task_of_attempt IS
    'Returns the task that runs again after its last attempt, under the same id and with these limits';

CREATE OR REPLACE FUNCTION mill.ended_after(id bigint, at timestamptz) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM mill.attempts a
        WHERE a.task_id = ended_after.id AND a.final AND a.finished_at > ended_after.at)
$$;
COMMENT ON FUNCTION mill.ended_after IS 'Returns whether the task has ended after this time, for mill.retry_task';

CREATE OR REPLACE FUNCTION mill.insert_again(last_attempt mill.attempts) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    chain bigint[];
    task mill.tasks;
BEGIN
    PERFORM mill.check_routine(last_attempt.run_as, last_attempt.statement) WHERE last_attempt.run_as <> '';
    IF last_attempt.key IS NOT NULL THEN
        INSERT INTO mill.dedup_keys (key, task_id) VALUES (last_attempt.key, last_attempt.task_id)
            ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'another live task has the key "%"', last_attempt.key
                USING ERRCODE = '23505', HINT = 'Wait for that task, or cancel it.';
        END IF;
    END IF;
    DELETE FROM mill.cancel_requests r WHERE r.task_id = last_attempt.task_id;
    chain := mill.required_limits(last_attempt.queue, last_attempt.group_name, last_attempt.run_id,
        last_attempt.concurrency_key);
    task := mill.task_of_attempt(last_attempt, chain);
    INSERT INTO mill.tasks SELECT task.*;
END
$$;
COMMENT ON FUNCTION mill.insert_again IS
    'For mill.retry_task: inserts the task of its last attempt, with its key and its limits (-> pending | blocked). '
    'Raises unique_violation if the task is live, or if another live task has its key';

CREATE OR REPLACE FUNCTION mill.retry_task(id bigint, only_outcome mill.outcome) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live mill.state;
    last_attempt mill.attempts;
    answer text;
    chain bigint[];
BEGIN
    SELECT t.state, t.limits INTO live, chain FROM mill.tasks t WHERE t.id = retry_task.id FOR NO KEY UPDATE;
    IF live IS NOT NULL AND only_outcome IS NOT NULL THEN
        RETURN 'changed';
    ELSIF live = 'scheduled' THEN
        UPDATE mill.tasks t SET state = mill.initial_state(NULL, chain), blocking_limit_id = chain[1], due_at = now()
            WHERE t.id = retry_task.id;
        PERFORM mill.record_audit('retry', 'task ' || id, jsonb_build_object('result', 'brought forward'));
        RETURN 'brought forward';
    ELSIF live IS NOT NULL THEN
        RETURN live::text;
    END IF;
    SELECT a.* INTO last_attempt FROM mill.attempts a
        WHERE a.task_id = retry_task.id AND a.final ORDER BY a.finished_at DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN 'not found';
    ELSIF last_attempt.outcome <> only_outcome THEN
        RETURN 'changed';
    ELSIF last_attempt.node IS NULL AND (last_attempt.options).store_params = false THEN
        RAISE EXCEPTION 'the parameters of task % were not stored', id USING ERRCODE = '55000',
            HINT = 'Enqueue the task again, with its parameters.';
    ELSIF last_attempt.node IS NOT NULL THEN
        -- No other retry of the task gets the lock. One that had it before may have run the task already.
        PERFORM FROM mill.runs r WHERE r.id = last_attempt.run_id FOR NO KEY UPDATE;
        IF mill.ended_after(id, last_attempt.finished_at) THEN
            RETURN mill.retry_task(id, only_outcome);
        END IF;
        answer := mill.retry_run_task(last_attempt.run_id, last_attempt.name);
        IF answer = 'succeeded' THEN
            RAISE EXCEPTION 'task % has succeeded in run %', id, last_attempt.run_id USING ERRCODE = '55000',
                HINT = format('pgmill run rerun %s %L runs it and all tasks after it again.', last_attempt.run_id,
                    last_attempt.name);
        END IF;
        RETURN answer;
    END IF;
    PERFORM mill.insert_again(last_attempt);
    -- From here on, the primary key excludes other retries of the task. Since last_attempt was read, one may have run
    -- the task. Then the new attempt counts.
    IF mill.ended_after(id, last_attempt.finished_at) THEN
        DELETE FROM mill.tasks t WHERE t.id = retry_task.id;
        DELETE FROM mill.dedup_keys k WHERE k.key = last_attempt.key;
        RETURN mill.retry_task(id, only_outcome);
    END IF;
    PERFORM mill.record_audit('retry', 'task ' || id, jsonb_build_object('result', 'retried'));
    RETURN 'retried';
EXCEPTION WHEN unique_violation THEN
    -- A concurrent retry has already inserted the task.
    IF EXISTS (SELECT FROM mill.tasks t WHERE t.id = retry_task.id) THEN
        RETURN CASE WHEN only_outcome IS NULL THEN 'pending' ELSE 'changed' END;
    END IF;
    RAISE;
END
$$;
COMMENT ON FUNCTION mill.retry_task IS
    'Retries a task, for mill.retry and mill.retry_many. only_outcome: leaves the task alone if it is live or has '
    'another outcome, and returns changed; null: any outcome. Otherwise returns the same values as mill.retry';

CREATE OR REPLACE FUNCTION mill.retry(id bigint) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT mill.retry_task(retry.id, NULL)
$$;
COMMENT ON FUNCTION mill.retry IS
    'For a finished task: runs it again under the same id, keeps the history of its attempts, and returns retried. If '
    'it belongs to a run, this is mill.retry_run_task; it then must not have succeeded. '
    'For a scheduled task: makes it due now and returns brought forward. For another live task: returns its state. '
    'Otherwise returns not found';
GRANT EXECUTE ON FUNCTION mill.retry TO mill_operator;

-- Without statistics, a scan of the history seems cheaper than one probe per task.
CREATE OR REPLACE FUNCTION mill.retry_many(ids bigint[], only_outcome mill.outcome DEFAULT NULL)
RETURNS TABLE (id bigint, result text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    retried bigint[];
    finished timestamptz[];
BEGIN
    -- With one snapshot for all statements, the check after the INSERT would find nothing.
    PERFORM mill.require_read_committed('mill.retry_many with only_outcome') WHERE only_outcome IS NOT NULL;
    -- Most finished tasks have no limit, key, run or profile. They return in one statement. mill.retry_task
    -- would take a subtransaction for each of them, and more than 64 of these slow down every snapshot.
    WITH plain AS MATERIALIZED (
        SELECT e.task_id, e.attempt FROM (
            SELECT DISTINCT ON (a.task_id) a.task_id, a AS attempt FROM mill.attempts a
            WHERE a.task_id = ANY (ids) AND a.final ORDER BY a.task_id, a.finished_at DESC) AS e
        WHERE (only_outcome IS NULL OR (e.attempt).outcome = only_outcome)
            AND num_nonnulls((e.attempt).node, (e.attempt).key, (e.attempt).group_name,
                (e.attempt).concurrency_key, ((e.attempt).options).store_params) = 0
            AND (e.attempt).run_as = ''
            AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = e.task_id)
            AND NOT EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'queue' AND l.name = (e.attempt).queue)
    ), unrequested AS (
        DELETE FROM mill.cancel_requests r USING plain p WHERE r.task_id = p.task_id
    ), inserted AS (
        INSERT INTO mill.tasks
        SELECT t.* FROM plain p CROSS JOIN LATERAL mill.task_of_attempt(p.attempt, NULL) AS t
        -- A concurrent retry may have inserted the task.
        ON CONFLICT DO NOTHING RETURNING id
    )
    SELECT array_agg(p.task_id), array_agg((p.attempt).finished_at) INTO retried, finished
        FROM inserted i JOIN plain p ON p.task_id = i.id;
    -- As in mill.retry_task: other retries may have run some of these tasks since the snapshot of that statement.
    DELETE FROM mill.tasks t USING unnest(retried, finished) AS r (id, finished_at), mill.attempts a
        WHERE t.id = ANY (retried) AND r.id = t.id AND a.task_id = ANY (retried) AND a.task_id = r.id AND a.final
            AND a.finished_at > r.finished_at;
    retried := ARRAY(SELECT t.id FROM mill.tasks t WHERE t.id = ANY (retried));
    INSERT INTO mill.audit (action, subject, detail)
        SELECT 'retry', 'task ' || i, '{"result": "retried"}' FROM unnest(retried) AS i;
    RETURN QUERY
        WITH ended AS (
            SELECT DISTINCT ON (a.task_id) a.task_id, a.outcome FROM mill.attempts a
            WHERE a.task_id = ANY (ARRAY(SELECT i.id FROM unnest(ids) AS i (id) EXCEPT SELECT unnest(retried)))
                AND a.final ORDER BY a.task_id, a.finished_at DESC
        )
        SELECT i.id, CASE WHEN r.id IS NOT NULL THEN 'retried'
                WHEN only_outcome IS NULL OR (t.id IS NULL AND e.outcome = only_outcome)
                THEN mill.retry_task(i.id, only_outcome) ELSE 'changed' END
        FROM unnest(ids) WITH ORDINALITY AS i (id, n) LEFT JOIN unnest(retried) AS r (id) ON r.id = i.id
            LEFT JOIN mill.tasks t ON t.id = i.id LEFT JOIN ended e ON e.task_id = i.id
        ORDER BY i.n;
END
$$;
COMMENT ON FUNCTION mill.retry_many IS
    'Retries tasks in one transaction. Returns the result of mill.retry for each task, in the given order. '
    'only_outcome: leaves tasks alone that are live or have another outcome, and returns changed for them. It requires '
    'READ COMMITTED. If one task is refused, none is retried';
GRANT EXECUTE ON FUNCTION mill.retry_many TO mill_operator;

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
DECLARE
    before jsonb;
BEGIN
    SELECT jsonb_build_object('budget', q.shared_commit) INTO before FROM mill.queues q
        WHERE q.name = set_shared_commit.queue FOR NO KEY UPDATE;
    INSERT INTO mill.queues (name, shared_commit) VALUES (set_shared_commit.queue, budget)
        ON CONFLICT (name) DO UPDATE SET shared_commit = budget, changed_at = now();
    PERFORM mill.record_change('set_shared_commit', 'queue ' || queue, coalesce(before, '{}'),
        jsonb_build_object('budget', budget));
END
$$;
COMMENT ON FUNCTION mill.set_shared_commit IS
    'Sets the time budget (1 to 100 ms) within which readers run short tasks of a queue one after another in one '
    'transaction; null: each task commits alone. Workers apply the change within two seconds';
GRANT EXECUTE ON FUNCTION mill.set_shared_commit TO mill_operator;

CREATE OR REPLACE FUNCTION mill.set_queue_storage(queue text, params boolean DEFAULT NULL,
    output boolean DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
BEGIN
    SELECT jsonb_build_object('params', q.store_params, 'output', q.store_output) INTO before FROM mill.queues q
        WHERE q.name = set_queue_storage.queue FOR NO KEY UPDATE;
    INSERT INTO mill.queues AS q (name, store_params, store_output)
        VALUES (set_queue_storage.queue, coalesce(params, true), coalesce(output, true))
        ON CONFLICT (name) DO UPDATE SET store_params = coalesce(params, q.store_params),
            store_output = coalesce(output, q.store_output), changed_at = now();
    PERFORM mill.record_change('set_queue_storage', 'queue ' || queue, before,
        jsonb_strip_nulls(jsonb_build_object('params', params, 'output', output)));
END
$$;
COMMENT ON FUNCTION mill.set_queue_storage IS
    'Sets whether params, and output (notices, results, plans), of the tasks of a queue are stored after their end. '
    'Applies to tasks that are enqueued later; null: unchanged';
GRANT EXECUTE ON FUNCTION mill.set_queue_storage TO mill_operator;

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
    PERFORM mill.require_read_committed('mill.remove_limit');
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
    'tasks have the limit. Requires READ COMMITTED';
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
