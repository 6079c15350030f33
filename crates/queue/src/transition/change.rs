//! Changes of a waiting task, which can make it scheduled, blocked or pending.
//!
//! A task with other limits or another due time gives its permits back, and begins like a new task.

use std::time::Duration;

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Priority, TaskId};
use serde_json::{Map, Value, json};

use crate::error::QueueError;
use crate::row::one;

const CHANGE: &str = "SELECT /* queue.change_task */ mill.change_task($1, $2)";

/// Changes of a waiting task. An option that is `None` stays as it is; `Some(None)` removes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskChanges {
    /// Priority.
    pub priority: Option<Priority>,
    /// Queue name.
    pub queue: Option<String>,
    /// Due time; `Some(None)`: now.
    pub due_at: Option<Option<Timestamp>>,
    /// Values of $1, $2, …
    pub params: Option<Option<Vec<Value>>>,
    /// Maximum number of failed attempts.
    pub max_attempts: Option<i32>,
    /// Maximum run time of an attempt.
    pub timeout: Option<Option<Duration>>,
    /// Name of the group.
    pub group: Option<Option<String>>,
}

impl TaskChanges {
    /// Returns whether nothing is to be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the document that `mill.change_task` accepts.
    pub(crate) fn document(&self) -> Value {
        let seconds = |timeout: Duration| format!("{} seconds", timeout.as_secs_f64());
        let fields = [
            ("priority", self.priority.map(|it| json!(it.as_str()))),
            ("queue", self.queue.as_ref().map(|it| json!(it))),
            ("due_at", self.due_at.map(|at| json!(at))),
            ("params", self.params.as_ref().map(|it| json!(it))),
            ("max_attempts", self.max_attempts.map(|it| json!(it))),
            ("timeout", self.timeout.map(|it| json!(it.map(seconds)))),
            ("group", self.group.as_ref().map(|it| json!(it))),
        ];
        let given = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Value::Object(Map::from_iter(given))
    }
}

/// Changes a waiting task. Returns `updated`, `unchanged`, `finished` or `not found`.
///
/// # Errors
/// Fails if the task is running, or if a value is invalid.
pub async fn change(
    client: &impl GenericClient,
    id: TaskId,
    changes: &TaskChanges,
) -> Result<String, QueueError> {
    let document = changes.document();
    one(client, CHANGE, &[&id.0, &document]).await
}
