-- Status of runs: their tasks by state.

CREATE OR REPLACE VIEW mill.run_status AS
    SELECT r.id, r.jobs, CASE WHEN (SELECT mill.sees_statements()) THEN r.params END AS params, r.state,
        r.started_at, r.started_by, r.finished_at,
        coalesce(r.finished_at, now()) - coalesce(r.restarted_at, r.started_at) AS duration,
        r.cancelled_at, r.cancelled_by, r.restarts, r.dropped,
        (SELECT s.name FROM mill.schedules s WHERE s.id = r.schedule_id) AS schedule, r.fire_at, r.reason,
        coalesce(n.tasks, r.tasks) AS tasks, coalesce(n.waiting, 0) AS waiting, coalesce(n.released, 0) AS released,
        coalesce(n.succeeded, r.succeeded) AS succeeded, coalesce(n.failed, r.failed) AS failed,
        coalesce(n.ignored, r.ignored) AS ignored, coalesce(n.cancelled, r.cancelled) AS cancelled,
        coalesce(n.upstream_failed, r.upstream_failed) AS upstream_failed,
        r.tags, r.metadata, r.restarted_at, coalesce(n.skipped, r.skipped) AS skipped, r.backfill_id,
        r.expected_duration, r.late_at, r.late_since, r.timeout_at, r.cancel_reason,
        coalesce(n.needs_approval, 0) AS needs_approval
    FROM mill.runs r LEFT JOIN LATERAL (
        SELECT count(*) AS tasks, count(*) FILTER (WHERE t.state IN ('waiting', 'ready')) AS waiting,
            count(*) FILTER (WHERE t.state = 'released') AS released,
            count(*) FILTER (WHERE t.state = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE t.state = 'failed' AND NOT t.ignore_failure) AS failed,
            count(*) FILTER (WHERE t.state = 'failed' AND t.ignore_failure) AS ignored,
            count(*) FILTER (WHERE t.state = 'cancelled') AS cancelled,
            count(*) FILTER (WHERE t.state = 'upstream_failed') AS upstream_failed,
            count(*) FILTER (WHERE t.state = 'skipped') AS skipped,
            count(*) FILTER (WHERE t.state = 'ready' AND t.approval) AS needs_approval
        -- The order leaves only the primary key. If the statistics say that there are few tasks, the planner may take
        -- another index, of which it reads all.
        FROM (SELECT x.state, x.ignore_failure, x.approval FROM mill.run_tasks x
            WHERE x.run_id = r.id AND r.state = 'running' ORDER BY x.node) AS t) AS n ON r.state = 'running';
COMMENT ON VIEW mill.run_status IS
    'Runs with their number of tasks by state: waiting (for parents or for approval), needs_approval (of these), '
    'released (in the queue or running), finished';

CREATE OR REPLACE VIEW mill.run_task_status AS
    SELECT r.run_id, r.node, r.name, r.job, r.task_id,
        CASE WHEN r.state = 'released' THEN coalesce(t.state::text, 'released')
            WHEN r.state = 'ready' AND r.approval THEN 'needs_approval'
            WHEN r.state = 'failed' AND r.ignore_failure THEN 'failed, ignored' ELSE r.state::text END AS state,
        r.outcome, coalesce(t.claimed_at, r.started_at) AS started_at, r.finished_at,
        coalesce(r.finished_at, CASE WHEN t.state = 'running' THEN now() END)
            - coalesce(t.claimed_at, r.started_at) AS duration,
        coalesce(t.attempt, r.attempts) AS attempts, r.rows, r.queue, coalesce(r.priority, 'normal') AS priority,
        r.group_name, coalesce(t.session_pid, r.session_pid) AS pid, r.join_mode, r.parents, r.satisfied, r.unsatisfied,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.message END AS message,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.result END AS result,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.params END AS params,
        CASE WHEN (SELECT mill.sees_statements()) THEN r.statement END AS statement,
        (r.options).tags, (r.options).metadata, r.options, r.expected_duration,
        r.approval, r.approval_note, r.approval_since, r.approved, r.decided_by
    -- LIMIT makes each released task a probe. The planner would join all tasks if it expects few.
    FROM mill.run_tasks r LEFT JOIN LATERAL (SELECT x.* FROM mill.tasks x
        WHERE r.state = 'released' AND x.id = r.task_id LIMIT 1) AS t ON true;
COMMENT ON VIEW mill.run_task_status IS
    'Tasks of runs. For a released task, state is the state of the live task in the queue. needs_approval: the task '
    'waits for mill.approve or mill.reject';
