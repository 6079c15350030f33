//! Checks the conditions under which workers claim tasks of a target. The conditions are those of
//! queues, evaluated in the target by `mill_target.check_conditions`.

use conninfo::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use crate::error::QueueError;
use crate::operator::operate::QueueConditions;
use crate::row::{FromRow, scalar};

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
    let rows = client.query_typed(BEGIN, &[(&target, Type::TEXT)]).await?;
    rows.first().map(QueueConditions::from_row).transpose()
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
    let params: [(&(dyn ToSql + Sync), Type); 3] = [
        (/* max_replication_lag */ &conditions.max_replication_lag_seconds, Type::FLOAT8),
        (/* max_snapshot_age */ &conditions.max_snapshot_age_seconds, Type::FLOAT8),
        (/* max_active_sessions */ &conditions.max_active_sessions, Type::INT4),
    ];
    scalar(&client.query_typed(CHECK, &params).await?[0])
}

/// Stores the result of a check, in the queue.
pub async fn end_check(
    client: &impl GenericClient,
    target: &str,
    reason: Option<&str>,
) -> Result<(), QueueError> {
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&target, Type::TEXT), (&reason, Type::TEXT)];
    client.query_typed(END, &params).await?;
    Ok(())
}
