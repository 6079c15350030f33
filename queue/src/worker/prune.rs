//! Maintains the partitions of history: creates the partitions of the days ahead, and drops those
//! whose retention has passed.

use tokio_postgres::GenericClient;

use crate::error::QueueError;
use crate::row::scalar;

const PREPARE: &str = "SELECT /* queue.prepare_history */ mill.prepare_history()";
const PRUNE_RUNS: &str = "SELECT /* queue.prune_runs */ mill.prune_runs()";
const PRUNE: &str = "SELECT /* queue.prune */ mill.prune()";

const PRUNE_NOTIFICATIONS: &str =
    "SELECT /* queue.prune_notifications */ mill.prune_notifications()";

const PRUNE_LOG: &str = "SELECT /* queue.prune_schedule_log */ mill.prune_schedule_log()";

const PRUNE_KEYS: &str = "SELECT /* queue.prune_idempotency_keys */ mill.prune_idempotency_keys()";

/// Creates the missing partitions of today and the next seven days. Returns the number created.
pub async fn prepare_history(client: &impl GenericClient) -> Result<i32, QueueError> {
    scalar(&client.query_typed(PREPARE, &[]).await?[0])
}

/// Deletes up to 1,000 runs that ended before the days that `mill.settings.history_retention` keeps.
/// Returns their number.
pub async fn prune_runs(client: &impl GenericClient) -> Result<i32, QueueError> {
    scalar(&client.query_typed(PRUNE_RUNS, &[]).await?[0])
}

/// Drops the days of history that are older than `mill.settings.history_retention`. Returns their
/// number.
///
/// # Errors
/// Also fails if a session that reads history holds its lock for more than two seconds.
pub async fn prune(client: &impl GenericClient) -> Result<i32, QueueError> {
    scalar(&client.query_typed(PRUNE, &[]).await?[0])
}

/// Deletes up to 10,000 rows of the schedule log that are older than
/// `mill.settings.schedule_log_retention`. Returns their number.
pub async fn prune_schedule_log(client: &impl GenericClient) -> Result<i32, QueueError> {
    scalar(&client.query_typed(PRUNE_LOG, &[]).await?[0])
}

/// Deletes up to 10,000 idempotency keys that are older than a day. Returns their number.
pub async fn prune_idempotency_keys(client: &impl GenericClient) -> Result<i32, QueueError> {
    scalar(&client.query_typed(PRUNE_KEYS, &[]).await?[0])
}

/// Deletes up to 10,000 notifications of each kind that were delivered a day ago, or could not be
/// delivered within the retention of history. Returns their number.
pub async fn prune_notifications(client: &impl GenericClient) -> Result<i32, QueueError> {
    scalar(&client.query_typed(PRUNE_NOTIFICATIONS, &[]).await?[0])
}
