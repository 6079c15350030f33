//! scheduled | blocked | pending → finished, when a task is cancelled, and finished | scheduled →
//! blocked | pending, when an operator retries it.
//!
//! A running task is cancelled by a request to its worker.

use pgmill_client::TaskId;
use tokio_postgres::GenericClient;

use crate::error::QueueError;

/// Cancels a task. Returns `cancelled`, `requested`, `finished` or `not found`.
pub async fn cancel(client: &impl GenericClient, id: TaskId) -> Result<String, QueueError> {
    Ok(pgmill_client::cancel(client, id, true).await?)
}

/// Runs a task again: a finished task under the same id (`retried`), a scheduled task now
/// (`brought forward`). If the task is in another state, changes nothing and returns that state; if
/// there is no such task, returns `not found`.
///
/// # Errors
/// Fails if another live task has the same deduplication key.
pub async fn retry(client: &impl GenericClient, id: TaskId) -> Result<String, QueueError> {
    Ok(pgmill_client::retry(client, id).await?)
}
