//! Checks the conditions under which workers claim tasks of a target. The conditions are those of
//! queues, evaluated in the target by `mill_target.check_conditions`.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::operator::operate::QueueConditions;
use crate::row::{Param, execute, first, one};

const BEGIN: &str = "SELECT /* queue.begin_target_check */ extract(epoch FROM c.max_replication_lag)::float8 AS max_replication_lag_seconds,
    extract(epoch FROM c.max_snapshot_age)::float8 AS max_snapshot_age_seconds, c.max_active_sessions
FROM mill.begin_target_check($1) AS c";

const CHECK: &str = "SELECT /* queue.check_conditions */ mill_target.check_conditions(make_interval(secs => $1), make_interval(secs => $2), $3)";

const END: &str = "SELECT /* queue.end_target_check */ mill.end_target_check($1, $2)";

/// Begins a check, in the queue. Returns the conditions; `None` if another worker has begun a check
/// in the last second.
pub async fn begin_check(
    client: &impl GenericClient,
    target: &str,
) -> Result<Option<QueueConditions>, QueueError> {
    first(client, BEGIN, &[&target]).await
}

/// Returns which condition does not hold, in the target; `None` if all of them hold.
///
/// # Errors
/// Fails if the schema of the target is older than this program, or if its owner may not see the
/// sessions of the server.
pub async fn check_conditions(
    client: &impl GenericClient,
    conditions: QueueConditions,
) -> Result<Option<String>, QueueError> {
    let params: [&dyn Param; 3] = [
        /* max_replication_lag */ &conditions.max_replication_lag_seconds,
        /* max_snapshot_age */ &conditions.max_snapshot_age_seconds,
        &conditions.max_active_sessions,
    ];
    one(client, CHECK, &params).await
}

/// Stores the result of a check, in the queue.
pub async fn end_check(
    client: &impl GenericClient,
    target: &str,
    reason: Option<&str>,
) -> Result<(), QueueError> {
    execute(client, END, &[&target, &reason]).await
}
