//! Attempts of a task, as `mill.history` shows them, and the state of a live task.

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Mode, Outcome, Priority, RunId, State, StoredOptions, TaskId};
use serde::Serialize;
use serde_json::Value;

use crate::error::QueueError;
use crate::id::WorkerId;
use crate::row::{column, first, from_row, rows, stored_options};

/// A SELECT over `mill.history` that returns [`Attempt`]s; `$rest` filters the rows.
macro_rules! history {
    ($name:literal, $rest:literal) => {
        concat!(
            "SELECT /* ",
            $name,
            " */ h.task_id, h.attempt, h.final, h.outcome::text, h.queue, h.name, h.priority::text,
    h.mode::text, h.enqueued_at, h.due_at, h.started_at, h.finished_at,
    extract(epoch FROM h.wait_duration)::float8 AS wait_seconds,
    extract(epoch FROM h.duration)::float8 AS duration_seconds,
    h.rows, h.sqlstate, h.message, h.detail, h.hint, h.context, h.position, h.notices, h.result,
    h.worker_id, h.host AS worker_host, h.worker_pid, h.session_pid, h.statement, h.params, h.run_id,
    to_jsonb(h.options) AS options
FROM mill.history h ",
            $rest
        )
    };
}

/// A retry makes a finished task live again, and its final attempt then no longer counts. The
/// subquery refers to no column of the view. Therefore the planner evaluates it first, and reads no
/// partition while the task is live.
const FINAL_ATTEMPT: &str = history!(
    "queue.final_attempt",
    "WHERE h.task_id = $1 AND h.final AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = $1)
ORDER BY h.finished_at DESC LIMIT 1"
);

const ATTEMPTS: &str =
    history!("queue.attempts", "WHERE h.task_id = $1 ORDER BY h.finished_at, h.attempt");

const LIVE_STATE: &str =
    "SELECT /* queue.live_state */ t.state::text FROM mill.tasks t WHERE t.id = $1";

/// An attempt that ended.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Attempt {
    /// The task's id.
    pub task_id: TaskId,
    /// The run, if the task belongs to one.
    pub run_id: Option<RunId>,
    /// Attempt number, from 1; 0 if the task ended without being claimed.
    pub attempt: u32,
    /// Whether the task ended with this attempt.
    pub r#final: bool,
    /// Outcome of the attempt.
    pub outcome: Outcome,
    /// The task's queue.
    pub queue: String,
    /// The task's name.
    pub name: Option<String>,
    /// The task's priority.
    pub priority: Priority,
    /// Execution mode of the statement.
    pub mode: Mode,
    /// Time of submission.
    pub enqueued_at: Timestamp,
    /// Due time of the task.
    pub due_at: Timestamp,
    /// Time of the claim; `None` if it ended without being claimed.
    pub started_at: Option<Timestamp>,
    /// End of the attempt.
    pub finished_at: Timestamp,
    /// Seconds that the task waited: from the time when it was due until its claim, or until its
    /// end if it was never claimed.
    pub wait_seconds: f64,
    /// Seconds from the claim to the end of the attempt.
    pub duration_seconds: Option<f64>,
    /// Rows returned or affected, over all statements.
    pub rows: Option<i64>,
    /// SQLSTATE of the error; `None` if there was no error or the error did not come from the
    /// server.
    pub sqlstate: Option<String>,
    /// The error's primary message.
    pub message: Option<String>,
    /// The error's detail.
    pub detail: Option<String>,
    /// The error's hint.
    pub hint: Option<String>,
    /// The error's context.
    pub context: Option<String>,
    /// Position of the error in the statement, in characters from 1.
    pub position: Option<u32>,
    /// Notices as `[{"severity", "message", …}]`. If notices were dropped, the last element is
    /// `{"dropped": n}`.
    pub notices: Option<Value>,
    /// First rows returned: `{"columns", "rows", "truncated"}`.
    pub result: Option<Value>,
    /// The worker that ran the attempt.
    pub worker_id: Option<WorkerId>,
    /// Host name of the worker.
    pub worker_host: Option<String>,
    /// Process id of the worker on that host.
    pub worker_pid: Option<i32>,
    /// Process id of the backend that ran the statement.
    #[serde(rename = "backend_pid")]
    pub session_pid: Option<i32>,
    /// The SQL; `None` if the role may view tasks but not their statements.
    pub statement: Option<String>,
    /// Values of $1, $2, …
    pub params: Option<Value>,
    /// Tags, metadata and other options.
    #[serde(flatten)]
    pub options: StoredOptions,
}

from_row! {
    row => Attempt {
        task_id, run_id, attempt: column::<i32>(row, "attempt")?.cast_unsigned(),
        r#final: column(row, "final")?, outcome, queue, name, priority, mode, enqueued_at, due_at,
        started_at, finished_at,
        // A task that was cancelled before it was due has not waited.
        wait_seconds: column::<f64>(row, "wait_seconds")?.max(0.0),
        duration_seconds: column::<Option<f64>>(row, "duration_seconds")?.map(|it| it.max(0.0)),
        rows, sqlstate, message, detail, hint, context,
        position: column::<Option<i32>>(row, "position")?.and_then(|it| u32::try_from(it).ok()),
        notices, result, worker_id, worker_host, worker_pid, session_pid, statement, params,
        options: stored_options(row)?,
    }
}

/// Returns the attempt with which the task ended; `None` if the task is live or does not exist.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn final_attempt(
    client: &impl GenericClient,
    id: TaskId,
) -> Result<Option<Attempt>, QueueError> {
    first(client, FINAL_ATTEMPT, &[&id.0]).await
}

/// Returns every ended attempt of the task, oldest first.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn attempts(client: &impl GenericClient, id: TaskId) -> Result<Vec<Attempt>, QueueError> {
    rows(client, ATTEMPTS, &[&id.0]).await
}

/// Returns the state of a live task; `None` if the task has ended or never existed. Reads one entry
/// of the primary key.
///
/// # Errors
/// Fails if the role may not read the tasks.
pub async fn live_state(
    client: &impl GenericClient,
    id: TaskId,
) -> Result<Option<State>, QueueError> {
    first(client, LIVE_STATE, &[&id.0]).await
}
