//! What a person asks about tasks, workers and history.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::error::QueueError;
use crate::task::TaskId;

const WHY: &str = "/* queue.why */ SELECT mill.why($1)";

/// One sentence: why the task is not running now, or what it does. `None`: there is no such task.
///
/// # Errors
/// Database trouble.
pub async fn why(client: &impl GenericClient, id: TaskId) -> Result<Option<String>, QueueError> {
    Ok(client.query_typed(WHY, &[(&id.0, Type::INT8)]).await?[0].try_get(0)?)
}
