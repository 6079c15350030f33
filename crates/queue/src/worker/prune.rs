//! Maintains the partitions of history, and deletes rows that are old or no longer needed.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::row::{column, one, only};

const PREPARE: &str = "SELECT /* queue.prepare_history */ mill.prepare_history($1)";

const PRUNE_HISTORY: &str =
    "SELECT /* queue.prune_history */ h.dropped, h.remaining FROM mill.prune_history(1) AS h";

/// Number of days for which partitions are created in advance.
pub const DAYS_AHEAD: i32 = 7;

/// Rows that are deleted in a transaction of their own, independent of the other parts.
#[derive(Debug)]
pub struct Part {
    /// What is deleted, in the plural.
    pub rows: &'static str,
    statement: &'static str,
    /// Number of rows from which on a call may have left some.
    chunk: i32,
}

/// All parts.
pub const PARTS: [Part; 6] = [
    Part {
        rows: "runs",
        statement: "SELECT /* queue.prune_runs */ mill.prune_runs()",
        chunk: 1_000,
    },
    Part {
        rows: "rows of the schedule log",
        statement: "SELECT /* queue.prune_schedule_log */ mill.prune_schedule_log()",
        chunk: 10_000,
    },
    Part {
        rows: "idempotency keys",
        statement: "SELECT /* queue.prune_idempotency_keys */ mill.prune_idempotency_keys()",
        chunk: 10_000,
    },
    Part {
        rows: "notifications",
        statement: "SELECT /* queue.prune_notifications */ mill.prune_notifications()",
        chunk: 10_000,
    },
    Part {
        rows: "rows of tasks and of the audit",
        statement: "SELECT /* queue.prune_rows */ mill.prune_rows()",
        chunk: 50_000,
    },
    Part {
        rows: "limits",
        statement: "SELECT /* queue.prune_limits */ mill.prune_limits()",
        chunk: i32::MAX,
    },
];

/// Creates the missing partitions of today and the given number of days ahead. Returns the number
/// created.
pub async fn prepare_history(
    client: &impl GenericClient,
    days_ahead: i32,
) -> Result<i32, QueueError> {
    one(client, PREPARE, &[&days_ahead]).await
}

/// Deletes some of the rows of a part. Returns their number, and whether there may be more.
pub async fn prune(client: &impl GenericClient, part: &Part) -> Result<(i32, bool), QueueError> {
    let deleted = one(client, part.statement, &[]).await?;
    Ok((deleted, deleted >= part.chunk))
}

/// Drops the oldest day of history if it is older than `mill.settings.history_retention`. Returns the
/// number of days dropped, 0 or 1, and of those that are left. Drops none if a session that reads
/// history holds the partition.
pub async fn prune_history(client: &impl GenericClient) -> Result<(i32, i32), QueueError> {
    let row = &only(client, PRUNE_HISTORY, &[]).await?;
    Ok((column(row, "dropped")?, column(row, "remaining")?))
}
