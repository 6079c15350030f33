-- Approvals: tasks of a run that a person has to approve.
--
-- When its parents have ended as its edges require, such a task is ready, and mill.release_ready leaves it out. The
-- transaction of mill.approve releases it, so a task that is ready and needs approval is not decided. Every
-- rule for ready tasks holds for it: it counts as open, and a cancel of the run ends it.

COMMENT ON COLUMN mill.job_tasks.approval IS 'Whether a person has to approve the task in each run before it starts';
COMMENT ON COLUMN mill.job_tasks.approval_note IS 'What the person has to check, as free text; null: none';
COMMENT ON COLUMN mill.run_tasks.approval IS 'As in mill.job_tasks';
COMMENT ON COLUMN mill.run_tasks.approval_note IS 'As in mill.job_tasks';
COMMENT ON COLUMN mill.run_tasks.approval_since IS
    'Time since which the task waits, or has waited, for approval; null: its parents have not ended';
COMMENT ON COLUMN mill.run_tasks.approved IS 'Whether the task was approved or rejected; null: not decided';
COMMENT ON COLUMN mill.run_tasks.decided_by IS
    'Person who approved or rejected the task: mill.actor, or else the login; null: not decided';
-- Used by mill.approvals_needed. Empty unless a task waits for approval.
CREATE INDEX IF NOT EXISTS run_tasks_approval ON mill.run_tasks (approval_since)
    WHERE approval AND state = 'ready';

CREATE OR REPLACE FUNCTION mill.request_approvals(run_id bigint, nodes bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.notify('approval_needed',
            mill.run_subject(r) || jsonb_build_object('task', t.name, 'job', t.job, 'queue', t.queue),
            jsonb_build_object('note', t.approval_note))
        FROM mill.runs r JOIN mill.run_tasks t ON t.run_id = r.id
        WHERE r.id = request_approvals.run_id AND t.node = ANY (nodes) ORDER BY t.node;
END
$$;
COMMENT ON FUNCTION mill.request_approvals IS
    'Inserts the notifications of tasks that begin to wait for approval, for mill.release_ready';

CREATE OR REPLACE FUNCTION mill.decide_approval(run_id bigint, task text, approve boolean, reason text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run mill.runs;
    found_task mill.run_tasks;
    person text := coalesce(left(nullif(current_setting('mill.actor', true), ''), 200), session_user);
BEGIN
    -- The lock excludes other decisions, and every other change of the run.
    SELECT r.* INTO run FROM mill.runs r WHERE r.id = decide_approval.run_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %', run_id USING ERRCODE = '22023', HINT = 'pgmill run list shows the runs.';
    END IF;
    SELECT t.* INTO found_task FROM mill.run_tasks t WHERE t.run_id = run.id AND t.name = task;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % has no task "%"', run_id, task USING ERRCODE = '22023',
            HINT = format('pgmill run show %s --all lists its tasks.', run_id);
    ELSIF found_task.state <> 'ready' OR NOT found_task.approval OR run.cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'task "%" of run % does not wait for approval: %', task, run_id, CASE
                WHEN NOT found_task.approval THEN 'it needs none'
                WHEN found_task.approved IS NOT NULL THEN format('%s has %s it', found_task.decided_by,
                    CASE WHEN found_task.approved THEN 'approved' ELSE 'rejected' END)
                WHEN run.state = 'cancelled' THEN 'its run is cancelled'
                WHEN run.state = 'running' AND run.cancelled_at IS NOT NULL THEN 'its run is being cancelled'
                WHEN found_task.state = 'waiting' THEN 'its parents have not ended'
                ELSE format('it is %s', found_task.state) END
            USING ERRCODE = '55000', HINT = format('pgmill why %s/%s', run_id, task);
    END IF;
    UPDATE mill.run_tasks t SET approved = approve, decided_by = person,
            approval_since = coalesce(t.approval_since, clock_timestamp()),
            state = CASE WHEN approve THEN t.state ELSE 'cancelled' END, pending_propagation = NOT approve,
            propagated_to = 0, finished_at = CASE WHEN NOT approve THEN clock_timestamp() END,
            message = CASE WHEN NOT approve THEN concat_ws(': ', 'rejected by ' || person, reason) END
        WHERE t.run_id = run.id AND t.node = found_task.node;
    PERFORM mill.record_audit(CASE WHEN approve THEN 'approve' ELSE 'reject' END, 'run ' || run.id,
        jsonb_strip_nulls(jsonb_build_object('task', task, 'reason', reason)));
    RETURN found_task.node;
END
$$;
COMMENT ON FUNCTION mill.decide_approval IS
    'For mill.approve and mill.reject: locks the run and records the decision. Returns the node of the task. Raises an '
    'error if the task does not wait for approval';

CREATE OR REPLACE FUNCTION mill.approve(run_id bigint, task text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.release_ready(run_id, ARRAY[mill.decide_approval(run_id, task, true)], false, 1);
    IF EXISTS (SELECT FROM mill.run_tasks t
        WHERE t.run_id = approve.run_id AND t.name = task AND t.state = 'ready')
    THEN
        RAISE EXCEPTION 'task "%" of run % cannot enter its queue now: another transaction is creating or removing the '
            'limit of its concurrency key', task, run_id USING ERRCODE = '55P03',
            HINT = 'Approve the task again when that transaction has ended.';
    END IF;
    PERFORM pg_notify('mill', 'work');
END
$$;
COMMENT ON FUNCTION mill.approve IS
    'Approves a task of a run that waits for approval, so that it enters its queue. Raises an error if the task does '
    'not wait for approval, for example because somebody else has decided, or if it cannot enter its queue now';
GRANT EXECUTE ON FUNCTION mill.approve TO mill_operator;

CREATE OR REPLACE FUNCTION mill.reject(run_id bigint, task text, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM mill.decide_approval(run_id, task, false, reason);
    UPDATE mill.runs r SET open = r.open - 1, needs_rescan = true WHERE r.id = reject.run_id;
    PERFORM mill.advance_now(run_id);
END
$$;
COMMENT ON FUNCTION mill.reject IS
    'Rejects a task of a run that waits for approval: the task is cancelled, and its children follow their edges. '
    'Raises an error if the task does not wait for approval';
GRANT EXECUTE ON FUNCTION mill.reject TO mill_operator;

CREATE OR REPLACE VIEW mill.approvals_needed AS
    SELECT t.run_id, r.jobs, (SELECT s.name FROM mill.schedules s WHERE s.id = r.schedule_id) AS schedule,
        t.name AS task, t.approval_note AS note, t.approval_since AS since, now() - t.approval_since AS waited
    FROM mill.run_tasks t JOIN mill.runs r ON r.id = t.run_id
    WHERE t.approval AND t.state = 'ready' AND t.approval_since IS NOT NULL;
COMMENT ON VIEW mill.approvals_needed IS 'Tasks of runs that wait for approval';
