//! Queries on runs: the list, one run with its tasks, and the edges between the tasks.

use std::time::Duration;

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Labels, Priority, RunId, StoredOptions, TaskId};
use serde::Serialize;
use serde_json::Value;

use crate::error::QueueError;
use crate::operator::run::{Expected, JoinMode, RunState};
use crate::row::{Param, column, duration, first, from_row, labels, rows, stored_options};

const RUN: &str =
    "r.id, r.jobs, r.params, r.state::text, r.started_at, r.started_by, r.finished_at,
    extract(epoch FROM r.duration)::float8 AS duration, r.cancelled_by, r.restarts,
    coalesce(r.dropped, '{}') AS dropped, r.tasks, r.waiting, r.released, r.succeeded, r.failed,
    r.ignored, r.cancelled, r.upstream_failed, r.skipped,
    r.schedule, r.fire_at, r.reason, r.tags, r.metadata, r.restarted_at, r.backfill_id,
    extract(epoch FROM r.expected_duration)::float8 AS expected_duration_seconds, r.late_at, r.late_since,
    r.timeout_at, r.cancel_reason, r.needs_approval";

const TASK: &str = "t.node, t.name, t.job, t.task_id, t.state, t.started_at, t.finished_at,
    extract(epoch FROM t.duration)::float8 AS duration, t.attempts, t.rows, t.queue, t.priority::text,
    t.group_name AS group, t.pid, t.join_mode::text AS join, t.message, t.result,
    to_jsonb(t.options) AS options, t.approval, t.approval_note, t.approval_since, t.approved, t.decided_by";

const RUNNING: &str = "SELECT /* queue.run_tasks_running */ t.name FROM mill.run_task_status t WHERE t.run_id = $1 AND t.state = 'running'
ORDER BY t.started_at LIMIT $2";

const EDGES: &str = "SELECT /* queue.run_edges */ e.parent, e.child, e.expected::text FROM mill.run_edges e WHERE e.run_id = $1
ORDER BY e.parent, e.child";

const EDGES_AMONG: &str = "SELECT /* queue.run_edges_among */ e.parent, e.child, e.expected::text FROM mill.run_edges e
WHERE e.run_id = $1 AND e.parent = ANY ($2) AND e.child = ANY ($2) ORDER BY e.parent, e.child LIMIT $3";

const IN_PROGRESS: &str = "SELECT /* queue.runs_in_progress */ r.id FROM mill.run_status r WHERE r.state = 'running'
    AND ($1 IS NULL OR r.schedule = $1) AND ($2 OR r.cancelled_by IS NULL AND r.cancel_reason IS NULL)
ORDER BY r.id DESC";

/// A filter on runs. The default matches all of them.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// State.
    pub state: Option<RunState>,
    /// A job of the run, which may have others.
    pub job: Option<String>,
    /// The schedule that fired the run.
    pub schedule: Option<String>,
    /// Selects runs that started at this time or later.
    pub from: Option<Timestamp>,
    /// Selects runs that started at this time or earlier.
    pub to: Option<Timestamp>,
    /// Tag.
    pub tag: Option<String>,
    /// Only runs in progress that take longer than expected, or much longer than usual.
    pub slow: bool,
    /// The backfill that started the run.
    pub backfill: Option<i64>,
    /// Only runs that have missed their deadline, in progress or ended.
    pub late: bool,
}

/// A run and its progress.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Run {
    /// The run's id.
    pub id: RunId,
    /// The jobs of the run.
    pub jobs: Vec<String>,
    /// Parameters given at the start.
    pub params: Value,
    /// The schedule that fired the run; `None` if a user started it.
    pub schedule: Option<String>,
    /// For a run that a schedule fired, the instant of the fire.
    pub fire_at: Option<Timestamp>,
    /// For a run that a schedule fired, the reason of the fire.
    pub reason: Option<String>,
    /// The backfill that started the run.
    pub backfill_id: Option<i64>,
    /// State of the run.
    pub state: RunState,
    /// Start, by the database clock.
    pub started_at: Timestamp,
    /// The role that started the run. For a run that a schedule fired, this is the login of a worker:
    /// see [`Run::starter`].
    pub started_by: String,
    /// End of the run; `None` while it is in progress.
    pub finished_at: Option<Timestamp>,
    /// Duration from the start or the last restart to the end of the run, or until now.
    #[serde(rename = "duration_seconds", serialize_with = "seconds")]
    #[schema(value_type = f64)]
    pub duration: Duration,
    /// The role that cancelled the run; `None` also if the fleet cancelled it.
    pub cancelled_by: Option<String>,
    /// Why the fleet cancelled the run: `timed out after …`.
    pub cancel_reason: Option<String>,
    /// Number of restarts.
    pub restarts: i32,
    /// The last restart.
    pub restarted_at: Option<Timestamp>,
    /// Duration after which the run is slower than expected, in seconds, if it was declared.
    pub expected_duration_seconds: Option<f64>,
    /// Time at which the run is late if it has not ended.
    pub late_at: Option<Timestamp>,
    /// The deadline that the run has missed; kept after its end.
    pub late_since: Option<Timestamp>,
    /// Time at which the run is cancelled if it has not ended.
    pub timeout_at: Option<Timestamp>,
    /// Expected end of a run in progress, if [`crate::insight::eta`] has estimated it.
    pub eta_at: Option<Timestamp>,
    /// Edges that were left out because their parent is in none of the run's jobs:
    /// `parent > child`.
    pub dropped: Vec<String>,
    /// Number of tasks by state.
    pub count: TaskCounts,
    /// Tags and metadata of the run's jobs, of its schedule and of the call that started it.
    #[serde(flatten)]
    pub labels: Labels,
}

from_row! {
    row => Run {
        id, jobs, params: column::<Option<_>>(row, "params")?.unwrap_or_default(), schedule,
        fire_at, reason, backfill_id, state, started_at, started_by, finished_at,
        duration: column(row, "duration").map(duration)?, cancelled_by, cancel_reason,
        restarts, restarted_at, expected_duration_seconds, late_at, late_since, timeout_at,
        eta_at: None,
        dropped, count: TaskCounts::from_row(row)?, labels: labels(row)?,
    }
}

impl Run {
    /// Returns whether an operator or the fleet has cancelled the run.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled_by.is_some() || self.cancel_reason.is_some()
    }

    /// Returns the state for display: `cancelling` for a cancelled run that has not ended.
    #[must_use]
    pub fn state_text(&self) -> &'static str {
        match self.state {
            RunState::Running if self.is_cancelled() => "cancelling",
            state => state.as_str(),
        }
    }
}

/// Numbers of tasks of a run by state.
#[derive(Clone, Copy, Debug, Serialize, utoipa::ToSchema)]
pub struct TaskCounts {
    /// All tasks of the run.
    pub tasks: i64,
    /// Tasks that wait for parents, or for approval.
    pub waiting: i64,
    /// Those of them that wait for approval.
    pub needs_approval: i64,
    /// Tasks in the queue or running.
    pub released: i64,
    /// Successful tasks.
    pub succeeded: i64,
    /// Failed tasks.
    pub failed: i64,
    /// Failed tasks whose failure is ignored.
    pub ignored: i64,
    /// Tasks that were cancelled before or while they ran.
    pub cancelled: i64,
    /// Tasks that cannot run because a task before them failed or was cancelled.
    pub upstream_failed: i64,
    /// Tasks that do not run although no parent failed.
    pub skipped: i64,
}

from_row! {
    TaskCounts {
        tasks, waiting, needs_approval, released, succeeded, failed, ignored, cancelled, upstream_failed,
        skipped,
    }
}

impl Run {
    /// Returns the name of the schedule, and the names of those of its jobs that differ from it;
    /// without a schedule, the names of the jobs.
    #[must_use]
    pub fn title(&self) -> String {
        let jobs = self.jobs.join(", ");
        match &self.schedule {
            None => jobs,
            Some(name) if *name == jobs => format!("schedule {name}"),
            Some(name) => format!("schedule {name} ({jobs})"),
        }
    }

    /// Returns who started the run: the role of the user, or `schedule`. A schedule that a user
    /// started manually has the reason `manual`.
    #[must_use]
    pub fn starter(&self) -> &str {
        match self.reason.as_deref() {
            None | Some("manual") => &self.started_by,
            Some(_) => "schedule",
        }
    }
}

impl TaskCounts {
    /// Returns the number of finished tasks.
    #[must_use]
    pub fn finished(&self) -> i64 {
        self.tasks - self.waiting - self.released
    }
}

/// A task of a run.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct RunTask {
    /// Number of the task in the run.
    pub node: i64,
    /// Name of the task.
    pub name: String,
    /// Job that declares the task; `None` if the task was added while the run was in progress.
    pub job: Option<String>,
    /// The task's id; `None` until the task enters the queue.
    pub task_id: Option<TaskId>,
    /// `waiting`, `needs_approval`, a state of the queue, or the outcome.
    pub state: String,
    /// Start of the last attempt.
    pub started_at: Option<Timestamp>,
    /// End of the task; set for `upstream_failed` and `skipped` tasks as well.
    pub finished_at: Option<Timestamp>,
    /// Duration of the last attempt, until its end or until now.
    #[serde(rename = "duration_seconds", serialize_with = "seconds_or_none")]
    #[schema(value_type = Option<f64>)]
    pub duration: Option<Duration>,
    /// Number of attempts so far.
    pub attempts: i32,
    /// Rows returned or affected.
    pub rows: Option<i64>,
    /// The task's queue.
    pub queue: String,
    /// Priority within the queue.
    pub priority: Priority,
    /// Group of the task.
    pub group: Option<String>,
    /// Process id of the backend of the last attempt.
    #[serde(rename = "backend_pid")]
    pub pid: Option<i32>,
    /// Whether the task waits for all of its parents, or for any one of them.
    pub join: JoinMode,
    /// The error message.
    pub message: Option<String>,
    /// The first row that the task returned.
    pub result: Option<Value>,
    /// The approval that the task needs; `None` if it needs none.
    pub approval: Option<Approval>,
    /// Tags, metadata and other options.
    #[serde(flatten)]
    pub options: StoredOptions,
}

/// The approval of a task of a run.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Approval {
    /// What the person has to check.
    pub note: Option<String>,
    /// Time since which the task waits, or has waited, for approval.
    pub since: Option<Timestamp>,
    /// Whether the task was approved or rejected; `None` if nobody has decided.
    pub approved: Option<bool>,
    /// The person who has decided.
    pub decided_by: Option<String>,
}

from_row! {
    row => Approval {
        note: column(row, "approval_note")?, since: column(row, "approval_since")?, approved, decided_by,
    }
}

impl RunTask {
    /// Returns whether the task waits for approval.
    #[must_use]
    pub fn needs_approval(&self) -> bool {
        self.state == "needs_approval"
    }
}

from_row! {
    row => RunTask {
        node, name, job, task_id, state, started_at, finished_at,
        duration: column::<Option<_>>(row, "duration")?.map(duration), attempts, rows, queue,
        priority, group, pid, join, message, result,
        approval: column::<bool>(row, "approval")?.then(|| Approval::from_row(row)).transpose()?,
        options: stored_options(row)?,
    }
}

/// An edge of a run, between two [`RunTask::node`]s.
#[derive(Clone, Copy, Debug, Serialize, utoipa::ToSchema)]
pub struct Edge {
    /// The task that the child waits for.
    pub parent: i64,
    /// The task that waits.
    pub child: i64,
    /// The outcome of the parent that the edge requires.
    pub expected: Expected,
}

from_row! { Edge { parent, child, expected } }

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn seconds_or_none<S: serde::Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration.map(|duration| duration.as_secs_f64()).serialize(serializer)
}

/// Returns matching runs, newest first, up to the given number.
pub async fn runs(
    client: &impl GenericClient,
    filter: &RunFilter,
    limit: i64,
) -> Result<Vec<Run>, QueueError> {
    let sql = format!(
        "SELECT /* queue.runs */ {RUN} FROM mill.run_status r
         WHERE ($1::text IS NULL OR r.state = $1::text::mill.run_state)
            AND ($3 IS NULL OR $3 = ANY (r.tags))
            AND ($4 IS NULL OR lower($4) IN (SELECT lower(j) FROM unnest(r.jobs) AS j))
            AND ($5 IS NULL OR r.schedule = $5)
            AND (NOT $6 OR r.id IN (SELECT s.id FROM mill.slow_runs s)) AND ($7 IS NULL OR r.backfill_id = $7)
            AND (NOT $8 OR r.late_since IS NOT NULL)
            AND ($9 IS NULL OR r.started_at >= $9) AND ($10 IS NULL OR r.started_at <= $10)
         ORDER BY r.id DESC LIMIT $2"
    );
    let params: [&dyn Param; 10] = [
        &filter.state.map(RunState::as_str),
        &limit,
        &filter.tag,
        &filter.job,
        &filter.schedule,
        &filter.slow,
        &filter.backfill,
        &filter.late,
        &filter.from,
        &filter.to,
    ];
    rows(client, &sql, &params).await
}

/// Returns all runs in progress, newest first: those of a schedule, or of all. Those that are being
/// cancelled are included on request.
pub async fn in_progress(
    client: &impl GenericClient,
    schedule: Option<&str>,
    cancelled: bool,
) -> Result<Vec<RunId>, QueueError> {
    rows(client, IN_PROGRESS, &[&schedule, &cancelled]).await
}

/// Returns a run; `None` if it does not exist.
pub async fn run(client: &impl GenericClient, id: RunId) -> Result<Option<Run>, QueueError> {
    let sql = format!("SELECT /* queue.run */ {RUN} FROM mill.run_status r WHERE r.id = $1");
    first(client, &sql, &[&id.0]).await
}

/// Returns the tasks of a run, sorted by name.
pub async fn tasks(client: &impl GenericClient, run: RunId) -> Result<Vec<RunTask>, QueueError> {
    let sql = format!(
        "SELECT /* queue.run_tasks */ {TASK} FROM mill.run_task_status t WHERE t.run_id = $1 ORDER BY t.node"
    );
    rows(client, &sql, &[&run.0]).await
}

/// Returns the tasks of a run that have these [`RunTask::node`]s.
pub async fn tasks_at(
    client: &impl GenericClient,
    run: RunId,
    nodes: &[i64],
) -> Result<Vec<RunTask>, QueueError> {
    let sql = format!(
        "SELECT /* queue.run_tasks_at */ {TASK} FROM mill.run_task_status t
         WHERE t.run_id = $1 AND t.node = ANY ($2) ORDER BY t.node"
    );
    rows(client, &sql, &[&run.0, &nodes]).await
}

/// Returns tasks of a run that ended without success, failed tasks first, up to the given number.
pub async fn unsuccessful_tasks(
    client: &impl GenericClient,
    run: RunId,
    limit: i64,
) -> Result<Vec<RunTask>, QueueError> {
    let sql = format!(
        "SELECT /* queue.run_problems */ {TASK} FROM mill.run_task_status t
         WHERE t.run_id = $1 AND t.node IN (SELECT r.node FROM mill.run_tasks r
             WHERE r.run_id = $1 AND r.state IN ('failed', 'cancelled', 'upstream_failed')
             ORDER BY r.state, r.node LIMIT $2)
         ORDER BY t.outcome IS NULL, t.node"
    );
    rows(client, &sql, &[&run.0, &limit]).await
}

/// Returns the names of running tasks of a run, oldest first, up to the given number.
pub async fn running(
    client: &impl GenericClient,
    run: RunId,
    limit: i64,
) -> Result<Vec<String>, QueueError> {
    rows(client, RUNNING, &[&run.0, &limit]).await
}

/// Returns the edges of a run.
pub async fn edges(client: &impl GenericClient, run: RunId) -> Result<Vec<Edge>, QueueError> {
    rows(client, EDGES, &[&run.0]).await
}

/// Returns the edges between these tasks of a run, up to the given number.
pub async fn edges_among(
    client: &impl GenericClient,
    run: RunId,
    nodes: &[i64],
    limit: i64,
) -> Result<Vec<Edge>, QueueError> {
    rows(client, EDGES_AMONG, &[&run.0, &nodes, &limit]).await
}
