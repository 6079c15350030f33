//! Problems that the console shows an operator first, in addition to those of queues and workers.
//!
//! | problem | file |
//! |---|---|
//! | limits for whose permits tasks wait | `waiting_limits` |
//! | slow tasks, slow runs, and runs that missed a deadline | `slow` |
//! | tasks of runs that wait for approval | `approvals` |
//! | subscriptions whose notifications are not delivered | `subscriptions` |
//! | targets that were restored to an earlier time, or are held back | `targets` |
//! | attempts that the server interrupted, and tasks that ran when it crashed | `server` |
//!
//! The statements of this file find backends that block a task, problems of schedules and failed
//! runs.

mod approvals;
mod server;
mod slow;
mod subscriptions;
mod targets;
mod waiting_limits;

pub use approvals::NeededApproval;
pub use server::ServerState;
pub use slow::{LateRun, SlowRun, SlowTask};
pub use subscriptions::{FailingSubscription, failing_subscriptions};
pub use targets::{HeldTarget, RestoredTarget};
pub use waiting_limits::{WaitingLimit, waiting_limits};

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{RunId, TaskId};
use serde::Serialize;

use super::runs::newest;
use crate::doctor::{self, HorizonHolder};
use crate::error::QueueError;
use crate::operator::maintenance::{self, MaintenanceWindow};
use crate::pg_enum;
use crate::row::{first, from_row, one, rows};

const BACKENDS: &str = "SELECT /* queue.insight_blockers */ a.pid, a.login AS user, a.application_name AS application, a.state,
    extract(epoch FROM now() - a.xact_start)::float8 AS transaction_seconds, t.id AS task,
    t.name AS task_name
FROM mill.sessions() a LEFT JOIN mill.tasks t ON t.state = 'running' AND t.session_pid = a.pid
    AND t.session_started_at = a.backend_start
WHERE a.pid = ANY ($1) ORDER BY a.pid";

/// Up to 20 problems of schedules, oldest first, with fires missed according to the last 2,000 entries of the log.
/// The log has no index on time, so the statement reads its last rows, which are the newest. A
/// missed fire is no longer a problem after a run that succeeded. Errors are null for a role that may
/// not read statements. Each of the two is read once, and the log is grouped before it is joined: with the
/// statistics of an empty table, a join compares each row with each.
const SCHEDULES: &str = "WITH /* queue.insight_schedules */ status AS MATERIALIZED (
    SELECT s.* FROM mill.schedule_status s WHERE s.status NOT IN ('removed', 'disabled')
), missed AS MATERIALIZED (
    SELECT l.schedule_id, max(l.logged_at) AS at
    FROM (SELECT * FROM mill.visible_schedule_log ORDER BY id DESC LIMIT 2000) AS l
    WHERE l.event = 'missed' AND l.logged_at > now() - interval '1 day' GROUP BY l.schedule_id
)
SELECT s.name AS subject, 'missed' AS kind, NULL AS message, m.at
FROM missed m JOIN status s ON s.id = m.schedule_id WHERE coalesce(s.last_success_at < m.at, true)
UNION ALL
SELECT s.name, 'error', s.error, coalesce((SELECT l.logged_at FROM mill.visible_schedule_log l
    WHERE l.schedule_id = s.id AND l.event = 'error' ORDER BY l.id DESC LIMIT 1), s.changed_at)
FROM status s WHERE s.status = 'error' AND (s.error IS NOT NULL OR s.new_timing_error IS NULL)
UNION ALL
SELECT s.name, 'new_timing', format('%s (%s)', s.new_timing_error, s.new_timing), s.changed_at
FROM status s WHERE s.status = 'error' AND s.new_timing_error IS NOT NULL
UNION ALL
SELECT s.name, 'overdue', NULL, now() - s.overdue FROM status s WHERE s.overdue > interval '1 minute'
UNION ALL
SELECT s.name, 'late', NULL, s.queued_fire_at + s.deadline
FROM status s WHERE s.queued_fire_at IS NOT NULL AND s.queued_fire_at + s.deadline < now()
UNION ALL
SELECT e.declared_as, 'declaration', e.place || ': ' || e.message, e.found_at
FROM mill.schedule_declaration_errors e
ORDER BY 4, 1 LIMIT 20";

/// Number of newest runs to search.
const RUNS_SCANNED: i64 = 1000;

/// No index covers the state of ended runs, so the newest runs are read by primary key. A failed
/// run is no longer a problem if a later run of the same jobs with the same parameters succeeded.
/// For a role that may not see parameters, all parameters are equal. The view counts tasks for runs
/// in progress only, and these are excluded.
const FAILED_RUNS: &str = "WITH /* queue.insight_failed_runs */ newest AS MATERIALIZED (
    SELECT r.id, r.jobs, r.state, r.failed, r.tasks, r.finished_at,
        max(r.id) FILTER (WHERE r.state = 'succeeded') OVER (PARTITION BY r.jobs, r.params) AS succeeded
    FROM mill.run_status r WHERE r.id > $1 AND r.state <> 'running'
)
SELECT r.jobs, count(*) AS runs, max(r.id) AS run, false AS in_progress,
    (array_agg(r.failed ORDER BY r.id DESC))[1]::bigint AS failed,
    (array_agg(r.tasks ORDER BY r.id DESC))[1]::bigint AS tasks, min(r.finished_at) AS at
FROM newest r WHERE r.state = 'failed' AND r.finished_at > now() - interval '1 day'
    AND (r.succeeded > r.id) IS NOT TRUE
GROUP BY r.jobs ORDER BY max(r.finished_at) DESC LIMIT 20";

/// The order makes the planner walk the index of runs in progress, which is small.
const FAILING_RUNS: &str = "SELECT /* queue.insight_failing_runs */ r.jobs, 1::bigint AS runs, r.id AS run, true AS in_progress, f.failed, r.tasks::bigint,
    f.first_at AS at
FROM (SELECT g.id, g.jobs, g.tasks, g.cancelled_at FROM mill.runs g WHERE g.state = 'running'
    ORDER BY g.schedule_id LIMIT 500) AS r
    CROSS JOIN LATERAL (SELECT count(*) AS failed, min(few.finished_at) AS first_at FROM (
        SELECT t.finished_at FROM mill.run_tasks t WHERE t.state = 'failed' AND t.run_id = r.id
            AND NOT t.ignore_failure AND t.finished_at IS NOT NULL LIMIT 1000) AS few) AS f
WHERE f.failed > 0 AND r.cancelled_at IS NULL
ORDER BY r.id DESC LIMIT 20";

const BACKLOG_WAIT: &str = "SELECT /* queue.insight_backlog_wait */ extract(epoch FROM s.backlog_wait)::float8 FROM mill.settings s";

/// Facts about problems that the lists of queues, workers and running tasks do not contain.
#[derive(Clone, Debug, Default)]
pub struct ProblemSources {
    /// Maintenance windows in force, and planned ones.
    pub windows: Vec<MaintenanceWindow>,
    /// Runs that failed.
    pub runs: Vec<FailedRuns>,
    /// Limits for whose permits tasks wait.
    pub limits: Vec<WaitingLimit>,
    /// Problems of schedules.
    pub schedules: Vec<ScheduleProblem>,
    /// Tasks that take much longer than usual.
    pub slow_tasks: Vec<SlowTask>,
    /// Runs that take much longer than usual.
    pub slow_runs: Vec<SlowRun>,
    /// Runs in progress that have missed their deadlines.
    pub late_runs: Vec<LateRun>,
    /// Tasks of runs that wait for approval.
    pub approvals: Vec<NeededApproval>,
    /// Holders of the oldest snapshots.
    pub horizon: Vec<HorizonHolder>,
    /// Subscriptions whose notifications are not delivered.
    pub subscriptions: Vec<FailingSubscription>,
    /// Targets that were restored to an earlier time.
    pub restored_targets: Vec<RestoredTarget>,
    /// Targets that are held back.
    pub held_targets: Vec<HeldTarget>,
    /// Attempts that the server interrupted, and the suspects of its last crash.
    pub server: ServerState,
    /// Wait in seconds from which a backlog is a problem.
    pub backlog_wait_seconds: f64,
}

impl ProblemSources {
    /// Returns the window that pauses the fleet for longest; `None` if the fleet is not paused.
    #[must_use]
    pub fn pause(&self) -> Option<&MaintenanceWindow> {
        let is_active = self.windows.iter().filter(|window| window.is_active);
        is_active.max_by_key(|window| window.ends_at.unwrap_or(Timestamp::MAX))
    }
}

/// A backend that holds a lock for which a task waits.
#[derive(Clone, Debug, Serialize)]
pub struct Blocker {
    /// Process id of the backend.
    pub pid: i32,
    /// The session's login.
    pub user: Option<String>,
    /// The session's `application_name`.
    pub application: Option<String>,
    /// State of the session, as in `pg_stat_activity`.
    pub state: Option<String>,
    /// Age of the backend's transaction, in seconds.
    pub transaction_seconds: Option<f64>,
    /// The task that the backend runs, if any.
    pub task: Option<TaskId>,
    /// Name of that task.
    pub task_name: Option<String>,
}

from_row! { Blocker { pid, user, application, state, transaction_seconds, task, task_name } }

pg_enum! {
    /// Kind of the problem of a schedule.
    ScheduleProblemKind {
        /// Fires were missed.
        Missed = "missed",
        /// Its timing, its trigger or its last fire failed.
        Error = "error",
        /// Its new timing was rejected, so the former timing stays in force.
        NewTiming = "new_timing",
        /// It is due, and no worker has processed it.
        Overdue = "overdue",
        /// A fire that waits for a run in progress has missed its deadline.
        Late = "late",
        /// The comment of a procedure has an error, so its schedules stay as they were.
        Declaration = "declaration",
    }
}

/// A problem of a schedule, or of the comment of a procedure.
#[derive(Clone, Debug, Serialize)]
pub struct ScheduleProblem {
    /// Name of the schedule or of the procedure.
    pub subject: String,
    /// Kind of the problem.
    pub kind: ScheduleProblemKind,
    /// The error; for an error in a comment, with its line and column.
    pub message: Option<String>,
    /// Time since which the problem is known.
    pub at: Timestamp,
}

from_row! { ScheduleProblem { subject, kind, message, at } }

/// Runs of the same jobs that failed within a day, or one run in progress with failed tasks.
#[derive(Clone, Debug, Serialize)]
pub struct FailedRuns {
    /// The jobs of the runs.
    pub jobs: Vec<String>,
    /// Number of failed runs.
    pub runs: i64,
    /// The newest run.
    pub run: RunId,
    /// Whether the run is in progress.
    pub in_progress: bool,
    /// Number of failed tasks of the newest run, except those whose failure is ignored.
    pub failed: i64,
    /// Number of tasks of the newest run.
    pub tasks: i64,
    /// End of the first of these runs. For a run in progress, the time of its first failure.
    pub at: Timestamp,
}

from_row! { FailedRuns { jobs, runs, run, in_progress, failed, tasks, at } }

/// Returns the facts about problems.
pub async fn problem_sources(client: &impl GenericClient) -> Result<ProblemSources, QueueError> {
    Ok(ProblemSources {
        windows: maintenance::windows(client).await?,
        runs: failed_runs(client).await?,
        limits: waiting_limits(client).await?,
        schedules: rows(client, SCHEDULES, &[]).await?,
        slow_tasks: rows(client, slow::TASKS, &[]).await?,
        slow_runs: rows(client, slow::RUNS, &[]).await?,
        late_runs: rows(client, slow::LATE, &[]).await?,
        approvals: rows(client, approvals::APPROVALS, &[]).await?,
        horizon: doctor::horizon(client).await?,
        subscriptions: failing_subscriptions(client).await?,
        restored_targets: rows(client, targets::RESTORED, &[]).await?,
        held_targets: rows(client, targets::HELD, &[]).await?,
        server: first(client, server::SERVER, &[]).await?.unwrap_or_default(),
        backlog_wait_seconds: one(client, BACKLOG_WAIT, &[]).await?,
    })
}

/// Returns these backends, if they still exist.
pub async fn blockers(
    client: &impl GenericClient,
    pids: &[i32],
) -> Result<Vec<Blocker>, QueueError> {
    rows(client, BACKENDS, &[&pids]).await
}

/// Returns up to 20 runs that failed within a day, searched among the newest 1,000, except those
/// that a later run made up for. Also returns up to 20 runs in progress that have failed tasks,
/// searched among 500.
pub async fn failed_runs(client: &impl GenericClient) -> Result<Vec<FailedRuns>, QueueError> {
    let oldest_scanned = newest(client).await?.saturating_sub(RUNS_SCANNED);
    let mut found: Vec<FailedRuns> = rows(client, FAILED_RUNS, &[&oldest_scanned]).await?;
    found.extend(rows(client, FAILING_RUNS, &[]).await?);
    Ok(found)
}
