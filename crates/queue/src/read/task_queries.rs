//! Queries on tasks: lists, one task, its backend, and why it is waiting.

mod list;

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Backoff, Mode, Outcome, Priority, RunId, State, StoredOptions, TaskId};
use serde::Serialize;
use serde_json::Value;

use crate::error::QueueError;
use crate::id::WorkerId;
use crate::row::{column, first, from_row, one, rows, stored_options};

pub use list::{LiveTask, TaskFilter, TaskOrder, live_ids, live_tasks, search_live_tasks};

const WHY: &str = "SELECT /* queue.why */ mill.why($1)";

const NOW: &str = "SELECT /* queue.transaction_time */ now()";

/// Reads the row of a live task, or else the newest row of the task in history.
const TASK: &str = "SELECT /* queue.task */ t.id, t.state::text, NULL AS outcome, t.queue, t.name, t.key, t.priority::text, t.mode::text,
    t.attempt, t.failures, t.max_attempts, t.backoff::text,
    extract(epoch FROM t.retry_interval)::float8 AS retry_interval_seconds, t.jitter,
    extract(epoch FROM t.timeout)::float8 AS timeout_seconds, t.at_most_once, t.external, t.enqueued_at,
    t.due_at, t.params, t.statement, NULL::timestamptz AS finished_at, t.group_name AS group,
    t.concurrency_key, t.run_id, t.node, nullif(t.run_as, '') AS run_as, to_jsonb(t.options) AS options
FROM mill.visible_tasks t WHERE t.id = $1
UNION ALL
SELECT a.task_id, NULL, a.outcome::text, a.queue, a.name, a.key, a.priority::text, a.mode::text, a.attempt,
    NULL, a.max_attempts, a.backoff::text, extract(epoch FROM a.retry_interval)::float8, a.jitter,
    extract(epoch FROM a.timeout)::float8, a.at_most_once, a.external, a.enqueued_at, a.due_at,
    a.params, a.statement, a.finished_at, a.group_name, a.concurrency_key, a.run_id, a.node,
    nullif(a.run_as, ''), to_jsonb(a.options) AS options
FROM mill.visible_attempts a WHERE a.task_id = $1 AND a.final
ORDER BY finished_at DESC NULLS FIRST LIMIT 1";

const RUNNING: &str = "SELECT /* queue.running */ r.id, r.queue, r.name, r.attempt, r.started_at, r.worker_id, r.host, r.worker_pid,
    r.pid AS backend_pid, r.backend_state, r.wait_event_type, r.wait_event, r.blocked_by, r.cancel_requested_at,
    r.progress, r.percent, r.reported_at, r.notices, r.blockers, r.run_id, r.run_as, r.login
FROM mill.running r WHERE ($1 IS NULL OR r.id = $1) ORDER BY r.started_at";

/// A task with all its options, and its state.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Task {
    /// The task's id.
    pub id: TaskId,
    /// State; `None` if the task is finished.
    pub state: Option<State>,
    /// Outcome; `None` if the task is not finished.
    pub outcome: Option<Outcome>,
    /// The task's queue.
    pub queue: String,
    /// Free-text name.
    pub name: Option<String>,
    /// Deduplication key of the task.
    pub key: Option<String>,
    /// The task's group.
    pub group: Option<String>,
    /// Tasks with the same key run one at a time, or as many at once as the limit of the key
    /// allows.
    pub concurrency_key: Option<String>,
    /// Profile whose login the task runs as; `None` for the common task login.
    pub run_as: Option<String>,
    /// Priority within the queue.
    pub priority: Priority,
    /// Execution mode.
    pub mode: Mode,
    /// Number of the current or last attempt; 0 if there was none.
    pub attempt: i32,
    /// Number of attempts that count as failed, of at most `max_attempts`; `None` if the task is
    /// finished.
    pub failures: Option<i32>,
    /// Maximum number of failed attempts.
    pub max_attempts: i32,
    /// Growth of the wait before a retry.
    pub backoff: Backoff,
    /// Wait before a retry, in seconds.
    pub retry_interval_seconds: f64,
    /// Whether the wait before a retry is drawn at random between zero and the full wait.
    pub jitter: bool,
    /// Maximum run time of an attempt, in seconds.
    pub timeout_seconds: Option<f64>,
    /// Whether the statement is never started twice.
    pub at_most_once: bool,
    /// Whether the statement has effects outside the cluster.
    pub external: bool,
    /// Time of submission.
    pub enqueued_at: Timestamp,
    /// Due time. The task is not claimed earlier.
    pub due_at: Timestamp,
    /// End of the task.
    pub finished_at: Option<Timestamp>,
    /// The run, if the task belongs to one.
    pub run_id: Option<RunId>,
    /// Number of the task in the run; `None` for other tasks, also for those that a user assigned to
    /// the run.
    #[serde(skip)]
    pub node: Option<i64>,
    /// Values of $1, $2, …
    pub params: Option<Value>,
    /// The SQL; `None` if the role may view tasks but not their statements.
    pub statement: Option<String>,
    /// Tags, metadata and other options.
    #[serde(flatten)]
    pub options: StoredOptions,
}

from_row! {
    row => Task {
        id, state, outcome, queue, name, key, group, concurrency_key, run_as, priority, mode,
        attempt, failures, max_attempts, backoff, retry_interval_seconds, jitter, timeout_seconds,
        at_most_once, external, enqueued_at, due_at, finished_at, run_id, node, params, statement,
        options: stored_options(row)?,
    }
}

/// A running task and its backend.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Running {
    /// The task.
    pub id: TaskId,
    /// The task's queue.
    pub queue: String,
    /// Free-text name.
    pub name: Option<String>,
    /// Attempt number.
    pub attempt: i32,
    /// Start of the attempt.
    pub started_at: Timestamp,
    /// The worker that runs the task.
    pub worker_id: WorkerId,
    /// Host name of the worker.
    #[serde(rename = "worker_host")]
    pub host: Option<String>,
    /// Process id of the worker.
    pub worker_pid: Option<i32>,
    /// Process id of the backend that runs the statement.
    pub backend_pid: i32,
    /// State as in `pg_stat_activity`; `None` if the backend is gone.
    pub backend_state: Option<String>,
    /// As in `pg_stat_activity`.
    pub wait_event_type: Option<String>,
    /// As in `pg_stat_activity`.
    pub wait_event: Option<String>,
    /// Process ids of backends that hold a lock for which the task waits.
    pub blocked_by: Vec<i32>,
    /// Time of the cancel request.
    pub cancel_requested_at: Option<Timestamp>,
    /// Progress that the task itself reported, or that the server reports for the task's command.
    pub progress: Option<String>,
    /// Progress in percent, 0 to 100.
    pub percent: Option<f64>,
    /// Time of the task's last report.
    pub reported_at: Option<Timestamp>,
    /// Last notices of the task: `[{"severity", "message"}]`.
    pub notices: Option<Value>,
    /// Details of the backends that block the task: `[{"pid", "task", "name", "application",
    /// "user", "state", "transaction_started_at"}]`.
    pub blockers: Option<Value>,
    /// The run that the task belongs to.
    pub run_id: Option<i64>,
    /// Profile of the task.
    pub run_as: Option<String>,
    /// Login of the backend.
    pub login: Option<String>,
}

from_row! {
    row => Running {
        id, queue, name, attempt, started_at, worker_id, host, worker_pid, backend_pid,
        backend_state, wait_event_type, wait_event,
        blocked_by: column::<Option<_>>(row, "blocked_by")?.unwrap_or_default(),
        cancel_requested_at, progress, percent, reported_at, notices, blockers, run_id, run_as,
        login,
    }
}

/// Returns one sentence that says why the task is not running now, or what it does. Returns `None`
/// if the task does not exist.
pub async fn why(client: &impl GenericClient, id: TaskId) -> Result<Option<String>, QueueError> {
    one(client, WHY, &[&id.0]).await
}

/// Returns the time of the database clock. Ages are computed with this clock and not with the
/// client's.
pub async fn now(client: &impl GenericClient) -> Result<Timestamp, QueueError> {
    one(client, NOW, &[]).await
}

/// Returns a task without its attempts. `None` if the task does not exist.
pub async fn task(client: &impl GenericClient, id: TaskId) -> Result<Option<Task>, QueueError> {
    first(client, TASK, &[&id.0]).await
}

/// Returns running tasks with the state of their backends, longest-running first. With an id,
/// returns that task only.
pub async fn running(
    client: &impl GenericClient,
    only: Option<TaskId>,
) -> Result<Vec<Running>, QueueError> {
    let only = only.map(|id| id.0);
    rows(client, RUNNING, &[&only]).await
}

/// Converts `*` and `?` to LIKE wildcards and escapes everything else.
pub(crate) fn like_pattern(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    for character in pattern.chars() {
        match character {
            '*' => text.push('%'),
            '?' => text.push('_'),
            '%' | '_' | '\\' => text.extend(['\\', character]),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::like_pattern;

    #[test]
    fn a_pattern_has_two_wildcards_and_no_other() {
        assert_eq!(like_pattern("etl_*-0?"), "etl\\_%-0_");
        assert_eq!(like_pattern("100%\\"), "100\\%\\\\");
    }
}
