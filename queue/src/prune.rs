//! History's two ends: partitions for the days ahead, and none for the days past retention.

use tokio_postgres::GenericClient;

use crate::error::QueueError;

const PREPARE: &str = "/* queue.prepare_history */ SELECT mill.prepare_history()";
const PRUNE: &str = "/* queue.prune */ SELECT mill.prune()";

const PRUNE_LOG: &str = "/* queue.prune_schedule_log */ SELECT mill.prune_schedule_log()";

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

/// Deletes rows of the log of schedules that are past `mill.settings.schedule_log_retention`, up to
/// 10,000. Returns how many.
///
/// # Errors
/// Database trouble.
pub async fn prune_schedule_log(client: &impl GenericClient) -> Result<i32, QueueError> {
    Ok(client.query_typed(PRUNE_LOG, &[]).await?[0].try_get(0)?)
}
