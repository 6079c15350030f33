//! scheduled | blocked | pending → finished. A running task is cancelled by a request to its
//! worker.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::error::QueueError;
use crate::id::TaskId;
use crate::row::scalar;

const CANCEL: &str = "/* queue.cancel */ SELECT mill.cancel($1)";
const RETRY: &str = "/* queue.retry */ SELECT mill.retry($1)";

/// Cancels a task. Returns `cancelled`, `requested`, `finished` or `not found`.
pub async fn cancel(client: &impl GenericClient, id: TaskId) -> Result<String, QueueError> {
    scalar(&client.query_typed(CANCEL, &[(&id.0, Type::INT8)]).await?[0])
}

/// Runs a task again: a finished task under the same id (`retried`), a scheduled task now
/// (`brought forward`). If the task is in another state, changes nothing and returns that state; if
/// there is no such task, returns `not found`.
///
/// # Errors
/// Fails if another live task has the same deduplication key.
pub async fn retry(client: &impl GenericClient, id: TaskId) -> Result<String, QueueError> {
    scalar(&client.query_typed(RETRY, &[(&id.0, Type::INT8)]).await?[0])
}
