//! Plans of tasks that were submitted with `explain`.

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::TaskId;
use serde::Serialize;
use serde_json::Value;

use crate::error::QueueError;
use crate::row::{first, from_row};

const PLAN: &str =
    "SELECT /* queue.saved_plan */ a.task_id, a.attempt, a.finished_at, a.queue, a.name, a.plan
FROM mill.visible_attempts a WHERE a.task_id = $1 AND a.plan IS NOT NULL
ORDER BY a.finished_at DESC LIMIT 1";

/// Searches the 10,000 attempts before this attempt, as far as they are at most seven days older.
const PREVIOUS_PLAN: &str =
    "SELECT /* queue.previous_plan */ b.task_id, b.attempt, b.finished_at, b.queue, b.name, b.plan
FROM (SELECT a.task_id, a.attempt, a.finished_at, a.queue, a.name, a.plan
    FROM mill.visible_attempts a
    WHERE a.queue = $1 AND a.name = $2 AND a.finished_at < $3
        AND a.finished_at > $3 - interval '168 hours'
    ORDER BY a.finished_at DESC LIMIT 10000) AS b
WHERE b.plan IS NOT NULL ORDER BY b.finished_at DESC LIMIT 1";

/// A saved plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SavedPlan {
    /// The task's id.
    pub task_id: TaskId,
    /// The attempt number.
    pub attempt: i32,
    /// End of the attempt.
    pub finished_at: Timestamp,
    /// The task's queue.
    pub queue: String,
    /// The task's name.
    pub name: Option<String>,
    /// The plan, in the format of EXPLAIN (FORMAT JSON).
    pub plan: Value,
}

from_row! { SavedPlan { task_id, attempt, finished_at, queue, name, plan } }

/// Returns the plan of the task's last attempt that has a plan; `None` if no attempt has a plan or
/// the role may not see it.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn saved_plan(
    client: &impl GenericClient,
    id: TaskId,
) -> Result<Option<SavedPlan>, QueueError> {
    first(client, PLAN, &[&id.0]).await
}

/// Returns the last plan before this one that belongs to a task with the same queue and name.
///
/// # Errors
/// Same as [`saved_plan`].
pub async fn previous_plan(
    client: &impl GenericClient,
    plan: &SavedPlan,
) -> Result<Option<SavedPlan>, QueueError> {
    let Some(name) = &plan.name else { return Ok(None) };
    first(client, PREVIOUS_PLAN, &[&plan.queue, name, /* before */ &plan.finished_at]).await
}
