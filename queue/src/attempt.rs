//! Attempts of a task as `mill.history` shows them, and the state of a live task.

use std::str::FromStr;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use crate::error::QueueError;
use crate::run::RunId;
use crate::task::{Mode, Outcome, Priority, State, TaskId, WorkerId};

/// A SELECT over `mill.history` that returns [`Attempt`]s; `$rest` filters the rows.
macro_rules! history {
    ($name:literal, $rest:literal) => {
        concat!(
            "/* ",
            $name,
            " */
SELECT h.task_id, h.attempt, h.final, h.outcome::text, h.queue, h.name, h.priority::text,
    h.mode::text, h.enqueued_at, h.due_at, h.started_at, h.finished_at,
    extract(epoch FROM h.wait_duration)::float8 AS wait_duration, extract(epoch FROM h.duration)::float8 AS duration,
    h.rows, h.sqlstate, h.message, h.detail, h.hint, h.context, h.position, h.notices, h.result,
    h.worker_id, h.host, h.worker_pid, h.session_pid, h.statement, h.params, h.run_id
FROM mill.history h ",
            $rest
        )
    };
}

/// `mill.retry` makes a finished task live again; the earlier final attempt then no longer counts.
/// The subquery refers to no column of the view, so the planner evaluates it first and reads no
/// partition while the task is live.
const FINAL_ATTEMPT: &str = history!(
    "queue.final_attempt",
    "WHERE h.task_id = $1 AND h.final AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = $1)
ORDER BY h.finished_at DESC LIMIT 1"
);

const ATTEMPTS: &str =
    history!("queue.attempts", "WHERE h.task_id = $1 ORDER BY h.finished_at, h.attempt");

const LIVE_STATE: &str =
    "/* queue.live_state */ SELECT t.state::text FROM mill.tasks t WHERE t.id = $1";

/// An attempt that ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    /// Seconds from due to claimed, or to the end of a task that was never claimed.
    pub wait_seconds: f64,
    /// Seconds from claimed to ended.
    pub duration_seconds: Option<f64>,
    /// Rows returned or affected, over all statements.
    pub rows: Option<i64>,
    /// Five characters; `None` if there was no error or the error did not come from the server.
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
    /// `[{"severity", "message", …}]`; a last element `{"dropped": n}` counts the notices that were
    /// not kept.
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
    pub session_pid: Option<i32>,
    /// The SQL; `None` if the role may view tasks but not their statements.
    pub statement: Option<String>,
    /// Values of $1, $2, …
    pub params: Option<Value>,
}

/// Returns the attempt with which the task ended; `None` if the task is live or does not exist.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn final_attempt(
    client: &impl GenericClient,
    id: TaskId,
) -> Result<Option<Attempt>, QueueError> {
    let rows = client.query_typed(FINAL_ATTEMPT, &[(&id.0, Type::INT8)]).await?;
    rows.first().map(from_row).transpose()
}

/// Returns every ended attempt of the task, oldest first.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn attempts(client: &impl GenericClient, id: TaskId) -> Result<Vec<Attempt>, QueueError> {
    let rows = client.query_typed(ATTEMPTS, &[(&id.0, Type::INT8)]).await?;
    rows.iter().map(from_row).collect()
}

/// Returns the state of a live task; `None` if it has ended or never existed. Reads one entry of
/// the primary key.
///
/// # Errors
/// Fails if the role may not read the tasks.
pub async fn live_state(
    client: &impl GenericClient,
    id: TaskId,
) -> Result<Option<State>, QueueError> {
    let rows = client.query_typed(LIVE_STATE, &[(&id.0, Type::INT8)]).await?;
    rows.first().map(|row| enum_column(row, "state")).transpose()
}

fn from_row(row: &Row) -> Result<Attempt, QueueError> {
    let attempt: i32 = row.try_get("attempt")?;
    let position: Option<i32> = row.try_get("position")?;
    Ok(Attempt {
        task_id: TaskId(row.try_get("task_id")?),
        run_id: row.try_get::<_, Option<i64>>("run_id")?.map(RunId),
        attempt: attempt.cast_unsigned(),
        r#final: row.try_get("final")?,
        outcome: enum_column(row, "outcome")?,
        queue: row.try_get("queue")?,
        name: row.try_get("name")?,
        priority: enum_column(row, "priority")?,
        mode: enum_column(row, "mode")?,
        enqueued_at: row.try_get("enqueued_at")?,
        due_at: row.try_get("due_at")?,
        started_at: row.try_get("started_at")?,
        finished_at: row.try_get("finished_at")?,
        // A task that is cancelled before it is due has not waited.
        wait_seconds: row.try_get::<_, f64>("wait_duration")?.max(0.0),
        duration_seconds: row
            .try_get::<_, Option<f64>>("duration")?
            .map(|seconds| seconds.max(0.0)),
        rows: row.try_get("rows")?,
        sqlstate: row.try_get("sqlstate")?,
        message: row.try_get("message")?,
        detail: row.try_get("detail")?,
        hint: row.try_get("hint")?,
        context: row.try_get("context")?,
        position: position.and_then(|position| u32::try_from(position).ok()),
        notices: row.try_get("notices")?,
        result: row.try_get("result")?,
        worker_id: row.try_get::<_, Option<Uuid>>("worker_id")?.map(WorkerId),
        worker_host: row.try_get("host")?,
        worker_pid: row.try_get("worker_pid")?,
        session_pid: row.try_get("session_pid")?,
        statement: row.try_get("statement")?,
        params: row.try_get("params")?,
    })
}

fn enum_column<T: FromStr>(row: &Row, column: &'static str) -> Result<T, QueueError> {
    let value: &str = row.try_get(column)?;
    value
        .parse()
        .map_err(|_| QueueError::Unexpected { column: column.to_owned(), value: value.to_owned() })
}
