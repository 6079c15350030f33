-- Finish: complete, fail, release, reclaim: running -> the other states.
--
-- Every change requires the token of the claim; if the claim is lost, nothing changes.
--
-- mill.complete is called in the task's own transaction, by the login of the task, so that effects and
-- completion commit together. It accepts the token only in the session that the claim names: a success that
-- another session records would remain if the transaction of the task is rolled back. The other functions
-- are for mill_worker only.
--
-- When a task of a run finishes, the same transaction appends one row to mill.run_events. It takes no
-- lock that another task of the run could wait for. mill.run_events is declared here and not in
-- 29_runs.sql, because mill.complete has a variable of its row type.

CREATE TABLE IF NOT EXISTS mill.run_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id bigint NOT NULL,
    node bigint,
    started_at timestamptz,
    finished_at timestamptz,
    rows bigint,
    attempts integer,
    session_pid integer,
    outcome mill.outcome,
    message text,
    result jsonb
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE mill.run_events IS
    'Queue of events for mill.advance_run. node and outcome: a task of the run finished. node only: a task was added. '
    'node null: the run must be examined';
CREATE INDEX IF NOT EXISTS run_events_run ON mill.run_events (run_id, id);
REVOKE INSERT ON mill.run_events FROM mill_worker;
GRANT SELECT ON mill.run_events TO mill_worker;

-- The columns that an attempt takes from its task, in the order of mill.attempts. No other place repeats
-- this list. The planner inlines the function, which saves a call per row, unless an argument is
-- volatile.
CREATE OR REPLACE FUNCTION mill.attempt_row(
    task mill.tasks,
    finished_at timestamptz,
    outcome mill.outcome,
    final boolean,
    rows bigint,
    report jsonb
) RETURNS SETOF mill.attempts
LANGUAGE sql STABLE AS $$
    SELECT finished_at, task.id, task.enqueued_at, task.due_at, task.claimed_at, task.claimed_by, task.token,
        rows, task.attempt, outcome, task.priority, task.session_pid, (report->>'position')::integer, final,
        task.queue, task.name, task.key, task.concurrency_key, task.group_name, task.run_id, task.node,
        report->>'sqlstate', report->>'message', report->>'detail', report->>'hint', report->>'context',
        CASE WHEN (task.options).store_output IS NULL THEN report->'notices' END,
        CASE WHEN (task.options).store_output IS NULL THEN report->'result' END,
        -- A plan can contain the values of parameters.
        CASE WHEN num_nonnulls((task.options).store_output, (task.options).store_params) = 0
            THEN report->'plan' END,
        task.run_as, CASE WHEN (task.options).store_params IS NULL THEN task.params END, task.statement, task.options,
        task.receipt
$$;
COMMENT ON FUNCTION mill.attempt_row IS
    'Returns the history row of an attempt of the task. report: {"sqlstate", "message", "detail", "hint", "context", '
    '"position", "notices", "result", "plan"}';
GRANT EXECUTE ON FUNCTION mill.attempt_row TO mill_worker;

CREATE OR REPLACE FUNCTION mill.record_attempt(
    task mill.tasks,
    outcome mill.outcome,
    final boolean,
    report jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    finished CONSTANT timestamptz := clock_timestamp();
BEGIN
    INSERT INTO mill.attempts SELECT r.* FROM mill.attempt_row(task, finished, record_attempt.outcome,
        record_attempt.final, (report->>'rows')::bigint, report) AS r;
    IF record_attempt.final AND task.key IS NOT NULL THEN
        DELETE FROM mill.dedup_keys k WHERE k.key = task.key;
    END IF;
    IF record_attempt.final AND task.node IS NOT NULL THEN
        INSERT INTO mill.run_events (run_id, node, outcome, started_at, finished_at, attempts,
            session_pid, rows, message)
        VALUES (task.run_id, task.node, record_attempt.outcome, task.claimed_at, finished, task.attempt,
            task.session_pid, (report->>'rows')::bigint, report->>'message');
    END IF;
    -- Without a subscription, this query of an empty table is the whole cost.
    IF record_attempt.outcome NOT IN ('succeeded', 'cancelled', 'interrupted') AND EXISTS (SELECT
        FROM mill.subscriptions s WHERE s.enabled AND s.events && '{attempt_failed,task_failed}')
    THEN
        PERFORM mill.notify_attempt(task, record_attempt.outcome, record_attempt.final, report);
    END IF;
END
$$;
COMMENT ON FUNCTION mill.record_attempt IS
    'Writes the history row of an attempt. If the attempt is final, also frees the deduplication key and notifies the '
    'run. If the attempt did not succeed, also inserts the notifications of subscriptions';
GRANT EXECUTE ON FUNCTION mill.record_attempt TO mill_worker;

CREATE OR REPLACE FUNCTION mill.first_row(result jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    -- Values are texts or null, so an object cannot be mistaken for a value.
    SELECT CASE WHEN octet_length(r.row::text) <= 8192 THEN r.row
        ELSE (SELECT jsonb_object_agg(k.name, '{"unusable": "the row is longer than 8 kB"}'::jsonb)
            FROM jsonb_object_keys(r.row) AS k(name)) END
    FROM (SELECT jsonb_object_agg(c.name, CASE WHEN result->'unusable' ? c.name
                THEN jsonb_build_object('unusable', result->'unusable'->c.name)
                ELSE result->'rows'->0->(c.place::integer - 1) END) AS row
        FROM jsonb_array_elements_text(result->'columns') WITH ORDINALITY AS c(name, place)
        WHERE jsonb_typeof(result->'rows'->0) = 'array') AS r
$$;
COMMENT ON FUNCTION mill.first_row IS
    'Returns the first row of attempts.result as an object by column; null if there is none. A value that cannot be a '
    'parameter of a later task, because it is truncated or a placeholder, or because the row exceeds 8 kB, is '
    '{"unusable": reason}';

CREATE OR REPLACE FUNCTION mill.may_complete_for_others() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_has_role(session_user, 'mill_worker', 'USAGE')
$$;
COMMENT ON FUNCTION mill.may_complete_for_others IS
    'Returns whether the login may complete a task that another session runs: only a control session of a worker may, '
    'after the effects are committed. A token that others have read is of no use to them';

CREATE OR REPLACE FUNCTION mill.complete(
    task_ids bigint[],
    claim_tokens uuid[],
    xact xid8,
    ran_until double precision[],
    row_counts bigint[],
    reports jsonb[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = on AS $$
DECLARE
    done bigint[];
    keys text[];
    limited bigint[];
    starts timestamptz[];
    in_runs mill.run_events[];
BEGIN
    -- If the statement ended its transaction, this call runs in a later transaction. What the statement
    -- committed remains, but the attempt does not succeed.
    IF xact <> pg_current_xact_id() THEN
        RAISE EXCEPTION 'the task ended its own transaction' USING ERRCODE = 'MT002';
    END IF;
    WITH gone AS (
        DELETE FROM mill.tasks t
        WHERE t.id = ANY (task_ids) AND t.token = claim_tokens[array_position(task_ids, t.id)]
            AND (t.session_pid = pg_backend_pid() OR mill.may_complete_for_others())
        RETURNING t AS task, array_position(task_ids, t.id) AS n, t.id, t.claimed_at, t.limits, t.run_id, t.node,
            clock_timestamp() AS deleted_at
    ), recorded AS (
        INSERT INTO mill.attempts
        SELECT r.* FROM gone g CROSS JOIN LATERAL mill.attempt_row(g.task,
            least(now() + make_interval(secs => ran_until[g.n]), g.deleted_at), 'succeeded', true,
            row_counts[g.n], reports[g.n]) AS r
        RETURNING attempts.task_id, attempts.key
    )
    SELECT array_agg(r.task_id), array_agg(r.key) FILTER (WHERE r.key IS NOT NULL),
            (SELECT array_agg(g.id) FROM gone g WHERE g.limits IS NOT NULL),
            (SELECT array_agg(g.claimed_at) FROM gone g WHERE g.limits IS NOT NULL),
            (SELECT array_agg(ROW(NULL, g.run_id, g.node, g.claimed_at, clock_timestamp(), row_counts[g.n],
                    (g.task).attempt, (g.task).session_pid, 'succeeded', NULL,
                    mill.first_row(reports[g.n]->'result'))::mill.run_events)
                FROM gone g WHERE g.node IS NOT NULL)
        INTO done, keys, limited, starts, in_runs FROM recorded r;
    IF cardinality(done) IS DISTINCT FROM cardinality(task_ids) THEN
        RAISE EXCEPTION 'task % is no longer claimed with this token in this session', (SELECT min(i)
            FROM unnest(task_ids) AS i WHERE i <> ALL (coalesce(done, '{}'))) USING ERRCODE = 'MT001';
    END IF;
    IF keys IS NOT NULL THEN
        DELETE FROM mill.dedup_keys k WHERE k.key = ANY (keys);
    END IF;
    IF limited IS NOT NULL THEN
        PERFORM mill.release_permits(limited, starts);
    END IF;
    IF in_runs IS NOT NULL THEN
        INSERT INTO mill.run_events (run_id, node, started_at, finished_at, rows, attempts,
                session_pid, outcome, result)
            SELECT e.run_id, e.node, e.started_at, e.finished_at, e.rows, e.attempts, e.session_pid, e.outcome, e.result
            FROM unnest(in_runs) AS e;
    END IF;
END
$$;
COMMENT ON FUNCTION mill.complete IS
    'Completes tasks (running -> finished) in their own transaction, all given tasks or none. ran_until: seconds from '
    'the start of the transaction to the end of each task, null: now. reports: notices, result and plan of each task. '
    'Everybody may execute it, because it requires the tokens of the claims and the sessions that they name, or a '
    'login of mill_worker. Error MT001: a claim is lost. Error MT002: the current transaction is not the one that was '
    'begun for the tasks';
-- PUBLIC gets the EXECUTE privilege in 47_grants.sql, after the REVOKE on all routines.

-- As mill.complete, but for one task that ended just now. Without arrays, and with fewer settings, the
-- call is cheaper. It does not call mill.record_attempt, which cannot pass on the result of the task. The
-- proof is worth as much as the token in this transaction, and nothing in every other one, so that sessions
-- that see the text of the call cannot use it.
CREATE OR REPLACE FUNCTION mill.complete_with_proof(task_id bigint, proof text, xact xid8, row_count bigint,
    report jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Planner settings: 00_begin.sql.
SET enable_seqscan = off AS $$
DECLARE
    task mill.tasks;
    finished timestamptz;
BEGIN
    IF xact <> pg_current_xact_id() THEN
        RAISE EXCEPTION 'the task ended its own transaction' USING ERRCODE = 'MT002';
    END IF;
    DELETE FROM mill.tasks t WHERE t.id = task_id
        AND encode(sha256(uuid_send(t.token) || xid8send(xact)), 'hex') = proof
        AND (t.session_pid = pg_backend_pid() OR mill.may_complete_for_others()) RETURNING t.* INTO task;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'task % is no longer claimed with this token in this session', task_id USING ERRCODE = 'MT001';
    END IF;
    finished := clock_timestamp();
    INSERT INTO mill.attempts
        SELECT r.* FROM mill.attempt_row(task, finished, 'succeeded', true, row_count, report) AS r;
    IF task.key IS NOT NULL THEN
        DELETE FROM mill.dedup_keys k WHERE k.key = task.key;
    END IF;
    IF task.limits IS NOT NULL THEN
        PERFORM mill.release_permits(ARRAY[task.id], ARRAY[task.claimed_at]);
    END IF;
    IF task.node IS NOT NULL THEN
        INSERT INTO mill.run_events (run_id, node, started_at, finished_at, rows, attempts, session_pid, outcome,
                result)
            VALUES (task.run_id, task.node, task.claimed_at, finished, row_count, task.attempt, task.session_pid,
                'succeeded', mill.first_row(report->'result'));
    END IF;
END
$$;
COMMENT ON FUNCTION mill.complete_with_proof IS
    'Completes one task that ended just now (running -> finished). proof: hexadecimal SHA-256 of the 16 bytes of the '
    'token and the 8 bytes of xact, the current transaction. Otherwise as mill.complete: the same errors, and '
    'everybody may execute it';

CREATE OR REPLACE FUNCTION mill.record_receipt(task_id bigint, claim_token uuid, row_count bigint,
    ran_seconds double precision, result jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    started timestamptz;
BEGIN
    SELECT t.claimed_at INTO started FROM mill.tasks t
        WHERE t.id = record_receipt.task_id AND t.token = claim_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- The clock of the target is not the clock of the queue. Only the duration is taken from it. If the target
    -- was unreachable for longer than the history is kept, the task counts as completed now. The partition of the
    -- day decides, because history_retention may have been shorter when mill.prune dropped it.
    PERFORM mill.complete(ARRAY[record_receipt.task_id], ARRAY[claim_token], pg_current_xact_id(),
        ARRAY[CASE WHEN to_regclass('mill.attempts_' || to_char((started + make_interval(secs => ran_seconds))
                AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NOT NULL
            THEN extract(epoch FROM started - now())::double precision + ran_seconds ELSE 0 END], ARRAY[row_count],
        ARRAY[CASE WHEN result IS NOT NULL THEN jsonb_build_object('result', result) END]);
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.record_receipt IS
    'Completes a task whose receipt was found in its target (running -> finished). ran_seconds: run time in the '
    'target. result: first rows that the statement returned. Returns false if the claim is lost';
GRANT EXECUTE ON FUNCTION mill.record_receipt TO mill_worker;

CREATE OR REPLACE FUNCTION mill.lock_run(run_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM mill.runs r WHERE r.id = lock_run.run_id FOR SHARE SKIP LOCKED;
    RETURN FOUND OR NOT EXISTS (SELECT FROM mill.runs r WHERE r.id = lock_run.run_id);
END
$$;
COMMENT ON FUNCTION mill.lock_run IS
    'Locks the row of a run against changes. Does not wait: returns false if another session changes the run';
GRANT EXECUTE ON FUNCTION mill.lock_run TO mill_worker;

CREATE OR REPLACE FUNCTION mill.await_run(run_id bigint, shared boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
BEGIN
    IF shared THEN
        PERFORM FROM mill.runs r WHERE r.id = await_run.run_id FOR SHARE;
    ELSE
        PERFORM FROM mill.runs r WHERE r.id = await_run.run_id FOR NO KEY UPDATE;
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION mill.await_run IS
    'Locks the row of a run that another session has locked, against changes (shared) or against all other sessions. '
    'Returns false if it cannot get the lock within 0.2 s, for example because a transaction that has changed the run '
    'is still open';

CREATE OR REPLACE FUNCTION mill.run_is_cancelled(task mill.tasks) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cancelled timestamptz;
BEGIN
    IF task.node IS NULL THEN
        RETURN false;
    END IF;
    -- The lock conflicts with the lock of a cancel of the run. So either this function sees the cancel,
    -- or the cancel waits and then finds a task that is no longer running. It is not waited for without limit,
    -- because the worker needs the session for other tasks.
    IF NOT mill.lock_run(task.run_id) AND NOT mill.await_run(task.run_id, true) THEN
        RAISE EXCEPTION 'other transactions are changing run %', task.run_id USING ERRCODE = '55P03';
    END IF;
    SELECT r.cancelled_at INTO cancelled FROM mill.runs r WHERE r.id = task.run_id;
    RETURN cancelled IS NOT NULL;
END
$$;
COMMENT ON FUNCTION mill.run_is_cancelled IS
    'Returns whether the task belongs to a cancelled run, so that it must not be attempted again. Raises '
    'lock_not_available if another transaction that changes the run stays open; the caller has to try again';
GRANT EXECUTE ON FUNCTION mill.run_is_cancelled TO mill_worker;

CREATE OR REPLACE FUNCTION mill.fail(
    task_id bigint,
    claim_token uuid,
    outcome mill.outcome,
    verdict text,
    retry_in interval,
    report jsonb
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    result text := 'finished';
    next_state mill.state;
    crash_cap integer;
BEGIN
    IF outcome = 'interrupted' THEN
        PERFORM mill.detect_crash();
    END IF;
    SELECT t.* INTO task FROM mill.tasks t
        WHERE t.id = task_id AND t.token = claim_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'lost';
    END IF;
    IF outcome = 'interrupted' AND task.crashes > 0 THEN
        SELECT s.max_crashes INTO crash_cap FROM mill.settings s;
        IF task.crashes >= crash_cap THEN
            verdict := 'final';
            outcome := 'lost';
            result := 'crashed';
            report := coalesce(report, '{}') || jsonb_build_object('hint', format('The server has crashed while no '
                'other task could be the cause; the task has reached max_crashes (%s).', crash_cap));
        END IF;
    END IF;
    -- A cancelled task is not attempted again. A failure of its own remains its outcome.
    IF EXISTS (SELECT FROM mill.cancel_requests r WHERE r.task_id = task.id)
        OR verdict <> 'final' AND mill.run_is_cancelled(task)
    THEN
        IF outcome NOT IN ('failed', 'timed_out', 'unknown') OR verdict NOT IN ('failure', 'final') THEN
            outcome := 'cancelled';
            result := 'cancelled';
        END IF;
        verdict := 'final';
    END IF;
    PERFORM mill.record_attempt(task, outcome, verdict = 'final', report);
    IF task.limits IS NOT NULL THEN
        PERFORM mill.release_permits(ARRAY[task.id], ARRAY[task.claimed_at]);
    END IF;
    IF outcome = 'lost' AND task.node IS NOT NULL THEN
        PERFORM mill.log_reclaimed(task);
    END IF;
    IF verdict = 'final' THEN
        DELETE FROM mill.tasks t WHERE t.id = task_id;
        DELETE FROM mill.cancel_requests r WHERE r.task_id = task.id;
        RETURN result;
    END IF;
    IF verdict = 'failure' AND task.limits IS NOT NULL THEN
        task.limits := mill.without_suspicion(task.limits);
    END IF;
    next_state := mill.initial_state(now() + retry_in, task.limits);
    UPDATE mill.tasks t SET
        state = next_state,
        limits = task.limits,
        blocking_limit_id = CASE WHEN next_state = 'blocked' THEN task.limits[1] END,
        start_by = NULL,
        due_at = now() + retry_in,
        failures = t.failures + (verdict = 'failure')::integer,
        transient_failures = t.transient_failures + (verdict = 'transient')::integer,
        crashes = t.crashes + (verdict = 'crash')::integer,
        claimed_at = NULL, claimed_by = NULL, token = NULL, session_pid = NULL,
        session_started_at = NULL
    WHERE t.id = task_id;
    RETURN 'retried';
END
$$;
COMMENT ON FUNCTION mill.fail IS
    'Ends an attempt that did not succeed. verdict failure, transient or crash: the task is attempted again (running '
    '-> scheduled | blocked | pending), and the counter of that name is incremented. verdict final: the task is '
    'finished. If the task or its run was cancelled, the task is finished as well, with the outcome cancelled unless '
    'it failed by itself. So it is if the server has crashed too often while only this task could be the cause. '
    'Returns lost, retried, finished, cancelled or crashed';
GRANT EXECUTE ON FUNCTION mill.fail TO mill_worker;

CREATE OR REPLACE FUNCTION mill.release_claim(task_id bigint, claim_token uuid, delay interval)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    next_state mill.state;
BEGIN
    PERFORM mill.detect_crash();
    SELECT t.* INTO task FROM mill.tasks t
        WHERE t.id = task_id AND t.token = claim_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF task.crashes > 0 AND task.claimed_at < (SELECT s.crashed_at FROM mill.server s WHERE s.only_row) THEN
        -- The attempt may have caused the crash, so it is recorded.
        PERFORM mill.fail(task_id, claim_token, 'interrupted', 'transient', delay,
            jsonb_build_object('message', 'the server crashed'));
        RETURN true;
    END IF;
    -- The check follows the lock of the task, because a cancel also locks the task before it inserts its
    -- request.
    IF EXISTS (SELECT FROM mill.cancel_requests r WHERE r.task_id = release_claim.task_id)
        OR mill.run_is_cancelled(task)
    THEN
        PERFORM mill.fail(task_id, claim_token, 'cancelled', 'final', '0',
            jsonb_build_object('message', 'cancelled on request'));
        RETURN true;
    END IF;
    IF task.limits IS NOT NULL THEN
        PERFORM mill.release_permits(ARRAY[task.id], ARRAY[task.claimed_at]);
    END IF;
    next_state := mill.initial_state(now() + delay, task.limits);
    UPDATE mill.tasks t SET
        state = next_state,
        blocking_limit_id = CASE WHEN next_state = 'blocked' THEN t.limits[1] END,
        start_by = NULL,
        due_at = CASE WHEN delay > '0' THEN now() + delay ELSE t.due_at END,
        attempt = t.attempt - 1,
        claimed_at = NULL, claimed_by = NULL, token = NULL, session_pid = NULL,
        session_started_at = NULL
    WHERE t.id = task_id;
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.release_claim IS
    'Releases a claim without using up the attempt: running -> blocked | pending, or with a delay scheduled. A task '
    'with a cancel request ends as cancelled. If a crash of the server since the claim counts for the task, the '
    'attempt ends as interrupted instead. Returns false if the claim is lost';
GRANT EXECUTE ON FUNCTION mill.release_claim TO mill_worker;

CREATE OR REPLACE FUNCTION mill.reclaim(worker_id uuid, max_count integer DEFAULT 500, resolved uuid[] DEFAULT '{}')
RETURNS TABLE (task_id bigint, released boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task mill.tasks;
    crash_cap integer;
    server_crash timestamptz;
    once boolean;
    interrupted boolean;
    verdict text;
    ended mill.outcome;
BEGIN
    PERFORM mill.detect_crash();
    SELECT s.max_crashes INTO crash_cap FROM mill.settings s;
    SELECT s.crashed_at INTO server_crash FROM mill.server s;
    FOR task IN
        SELECT t.* FROM mill.tasks t
        -- Takes only tasks whose backend no longer exists, so that their SQL cannot have further
        -- effects. A task whose completion is about to commit is skipped, because the completion has
        -- locked its row. The backend of a task with a target is on another server. Such a task is taken
        -- after it has been resolved there. A task whose run another session changes is skipped too, so that
        -- the others do not wait for it.
        WHERE t.state = 'running' AND t.claimed_by = reclaim.worker_id
            AND CASE WHEN t.receipt IS NULL
                THEN NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = t.session_pid
                    AND coalesce(a.backend_start = t.session_started_at, true))
                ELSE t.token = ANY (reclaim.resolved) END
            AND (t.node IS NULL OR mill.lock_run(t.run_id))
        ORDER BY t.id LIMIT max_count FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        -- 20: MAX_FREE_ATTEMPTS (crates/queue/src/transition/retry.rs).
        once := (mill.effective(task.options)).at_most_once;
        interrupted := task.claimed_at < server_crash AND task.transient_failures < 20 AND NOT once;
        ended := CASE WHEN once THEN 'unknown' WHEN interrupted THEN 'interrupted' ELSE 'lost' END;
        verdict := CASE WHEN interrupted THEN 'transient'
            WHEN once OR task.crashes + 1 >= crash_cap THEN 'final' ELSE 'crash' END;
        reclaim.task_id := task.id;
        reclaim.released := mill.fail(task.id, task.token, ended, verdict, '0', jsonb_build_object(
            'message', CASE WHEN interrupted THEN 'the server crashed, and the worker died'
                WHEN once THEN 'the worker died; it is unknown whether the statement completed'
                WHEN verdict = 'final' THEN format('the worker died; the task has reached max_crashes (%s)', crash_cap)
                ELSE 'the worker died' END)) = 'retried';
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION mill.reclaim IS
    'Reclaims the tasks of a dead worker whose backends no longer exist, up to max_count, and those of the tasks with '
    'a target whose claims, by their tokens, are resolved: they can no longer commit. An at-most-once task ends as '
    'unknown, a task that reaches settings.max_crashes as lost. released: whether the task will be attempted again';
GRANT EXECUTE ON FUNCTION mill.reclaim TO mill_worker;
