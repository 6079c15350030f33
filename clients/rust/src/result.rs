//! Records that the functions of this crate return: started runs, tasks and attempts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::id::{RunId, TaskId};
use crate::vocabulary::{Mode, Outcome, Priority, State};

/// A run that was started.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Run {
    /// The run.
    pub run_id: RunId,
    /// Edges that are left out, because none of the jobs contains their parent.
    pub dropped: Vec<String>,
}

/// A task: live with its state, or finished with its outcome.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Task {
    /// The task.
    pub id: TaskId,
    /// State of a live task; `None` if the task has finished.
    pub state: Option<State>,
    /// Outcome of a finished task; `None` while the task is live.
    pub outcome: Option<Outcome>,
    /// Queue name.
    pub queue: String,
    /// Display name.
    pub name: Option<String>,
    /// Priority.
    pub priority: Priority,
    /// Execution mode.
    pub mode: Mode,
    /// Number of attempts that have started.
    pub attempt: u32,
    /// Maximum number of failed attempts.
    pub max_attempts: u32,
    /// Time of the enqueue.
    pub enqueued_at: Timestamp,
    /// Earliest start.
    pub due_at: Timestamp,
    /// The run that the task belongs to.
    pub run_id: Option<RunId>,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// Metadata.
    pub metadata: Map<String, Value>,
}

/// A finished attempt of a task.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Attempt {
    /// The task.
    pub task_id: TaskId,
    /// Number from 1; 0 if the task ended without being claimed.
    pub attempt: u32,
    /// Whether the task ended with this attempt.
    pub r#final: bool,
    /// Outcome of the attempt.
    pub outcome: Outcome,
    /// Queue name.
    pub queue: String,
    /// Display name of the task.
    pub name: Option<String>,
    /// Priority.
    pub priority: Priority,
    /// Execution mode.
    pub mode: Mode,
    /// Time of the enqueue.
    pub enqueued_at: Timestamp,
    /// Earliest start of the task.
    pub due_at: Timestamp,
    /// Time of the claim; `None` if the task ended without being claimed.
    pub started_at: Option<Timestamp>,
    /// End of the attempt.
    pub finished_at: Timestamp,
    /// Seconds from the claim to the end.
    pub duration_seconds: Option<f64>,
    /// Rows returned or affected.
    pub rows: Option<i64>,
    /// SQLSTATE of the error.
    pub sqlstate: Option<String>,
    /// Message of the error.
    pub message: Option<String>,
    /// Detail of the error.
    pub detail: Option<String>,
    /// Hint of the error.
    pub hint: Option<String>,
    /// Notices as `[{"severity", "message", …}]`.
    pub notices: Option<Value>,
    /// First rows, as text: `{"columns", "rows", "truncated"}`.
    pub result: Option<Value>,
    /// The SQL; `None` if the login may not read it.
    pub statement: Option<String>,
    /// Values of $1, $2, …
    pub params: Option<Vec<Value>>,
    /// The run that the task belongs to.
    pub run_id: Option<RunId>,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// Metadata.
    pub metadata: Map<String, Value>,
}

/// Reads a record that the database returns as a JSON object.
pub(crate) fn read<'de, T: Deserialize<'de>>(document: &'de str) -> Result<T, Error> {
    serde_json::from_str(document).map_err(|error| Error::Unexpected(error.to_string()))
}
