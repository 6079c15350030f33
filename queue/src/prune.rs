//! History's two ends: partitions for the days ahead, and none for the days past retention.

use tokio_postgres::GenericClient;

use crate::error::QueueError;

const PREPARE: &str = "/* queue.prepare_history */ SELECT mill.prepare_history()";
const PRUNE: &str = "/* queue.prune */ SELECT mill.prune()";

/// Makes the partitions of today and the next seven days. Returns how many were missing.
///
/// # Errors
/// Database trouble.
pub async fn prepare_history(client: &impl GenericClient) -> Result<i32, QueueError> {
    Ok(client.query_typed(PREPARE, &[]).await?[0].try_get(0)?)
}

/// Drops the days of history that are past `mill.settings.history_retention`. Returns how many.
///
/// # Errors
/// Database trouble, also when a reader of history holds its lock for more than two seconds.
pub async fn prune(client: &impl GenericClient) -> Result<i32, QueueError> {
    Ok(client.query_typed(PRUNE, &[]).await?[0].try_get(0)?)
}
