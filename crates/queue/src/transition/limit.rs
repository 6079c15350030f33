//! blocked → pending, when a permit is granted, and back, when it is revoked.
//!
//! A task that a limit applies to is blocked until it holds a permit of each of its limits. Permits
//! are granted under a lock on the limit's row, so that there are never too many. A permit ends in
//! the transaction in which the task leaves pending or running. The process that ended a permit
//! calls [`grant`] to pass it on. If it does not, the next poll of any worker finds the free
//! permit.

use std::time::Duration;

use conninfo::GenericClient;
use serde::{Serialize, Serializer};
use tokio_postgres::Row;

use crate::error::QueueError;
use crate::id::LimitId;
use crate::row::{FromRow, column, duration, execute, from_row, one, only, rows};
use crate::task::LimitKind;

const GRANT: &str = "SELECT /* queue.grant_permits */ g.granted, extract(epoch FROM g.next_in)::float8 AS next_in FROM mill.grant_permits($1) AS g";

const GRANT_WAITING: &str = "SELECT /* queue.grant_waiting_permits */ g.granted, extract(epoch FROM g.next_in)::float8 AS next_in, g.last_limit
FROM mill.grant_waiting_permits($1) AS g";

const RECONCILE_LIMITS: &str = "SELECT /* queue.reconcile_limits */ mill.reconcile_limits()";

const REMOVE: &str = "SELECT /* queue.remove_limit */ mill.remove_limit('key', $1)";

const KEY_IS_KNOWN: &str = "SELECT /* queue.key_is_known */ EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'key' AND l.name = $1)
    OR EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id <= 0 AND t.concurrency_key = $1)";

const SET_MAX_RUNNING: &str =
    "SELECT /* queue.set_max_running */ mill.set_max_running($1::text::mill.limit_kind, $2, $3)";

const SET_RATE: &str = "SELECT /* queue.set_rate */ mill.set_rate($1::text::mill.limit_kind, $2, $3, make_interval(secs => $4))";

const LIMITS: &str = "SELECT /* queue.limits */ l.kind::text, l.name, nullif(l.run_id, 0) AS run_id, l.max_running, l.paused, l.rate_starts,
    extract(epoch FROM l.rate_period)::float8 AS rate_seconds, l.running, l.waiting
FROM mill.limit_status l ORDER BY l.kind, l.name, l.run_id";

/// Result of a grant of permits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Granted {
    /// Number of tasks that became pending.
    pub tasks: u64,
    /// Time until a rate or an active period frees further permits.
    pub next_in: Option<Duration>,
}

from_row! {
    row => Granted {
        tasks: u64::from(column::<i32>(row, "granted")?.cast_unsigned()),
        next_in: column::<Option<_>>(row, "next_in")?.map(duration),
    }
}

/// Grants the free permits of these limits.
pub async fn grant(client: &impl GenericClient, limits: &[LimitId]) -> Result<Granted, QueueError> {
    one(client, GRANT, &[&limits]).await
}

/// Grants the free permits of the limits after this one that tasks wait for. Checks up to 1000 limits,
/// beginning with the first one if `after` is `None`. Also returns the last of them, if there are more.
pub async fn grant_waiting_permits(
    client: &impl GenericClient,
    after: Option<LimitId>,
) -> Result<(Granted, Option<LimitId>), QueueError> {
    let row = only(client, GRANT_WAITING, &[&after.unwrap_or(0)]).await?;
    Ok((Granted::from_row(&row)?, column(&row, "last_limit")?))
}

/// Applies limits to tasks that the grant of permits does not reach: tasks that were enqueued while
/// a limit was being set, and tasks whose active period has closed. Returns `false` if another
/// worker did this a moment ago.
pub async fn reconcile_limits(client: &impl GenericClient) -> Result<bool, QueueError> {
    one(client, RECONCILE_LIMITS, &[]).await
}

/// Sets the maximum number of concurrent tasks of a queue, of a concurrency key or of each run of a
/// group. 0 starts no task, `None` means no limit. Running tasks finish.
///
/// # Errors
/// Fails if the number is below 0 or the group does not exist.
pub async fn set_max_running(
    client: &impl GenericClient,
    kind: LimitKind,
    name: &str,
    max_running: Option<i32>,
) -> Result<(), QueueError> {
    let kind = kind.as_str();
    execute(client, SET_MAX_RUNNING, &[&kind, &name, &max_running]).await
}

/// Removes the limit of a concurrency key. Returns `false` if there is none.
///
/// # Errors
/// Fails while live tasks have the limit.
pub async fn remove(client: &impl GenericClient, key: &str) -> Result<bool, QueueError> {
    one(client, REMOVE, &[&key]).await
}

/// Returns whether the concurrency key has a limit, or a task for which a worker is about to create the limit.
pub async fn key_is_known(client: &impl GenericClient, key: &str) -> Result<bool, QueueError> {
    one(client, KEY_IS_KNOWN, &[&key]).await
}

/// Maximum rate at which tasks of a queue or a concurrency key may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Rate {
    /// Maximum number of starts.
    pub starts: i32,
    /// Length of the period. It is serialized as seconds, like every duration.
    #[serde(rename = "period_seconds", serialize_with = "in_seconds")]
    #[schema(value_type = f64)]
    pub period: Duration,
}

fn in_seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

impl Rate {
    /// Reads the rate from the columns `rate_starts` and `rate_seconds`; `None` if they are null.
    pub(crate) fn from_row(row: &Row) -> Result<Option<Self>, QueueError> {
        let columns = (column(row, "rate_starts")?, column(row, "rate_seconds")?);
        let (Some(starts), Some(seconds)) = columns else { return Ok(None) };
        Ok(Some(Self { starts, period: duration(seconds) }))
    }
}

/// Sets a rate; `None` means unlimited.
///
/// # Errors
/// Fails if the rate is outside 1 to 1,000,000 starts in 1 s to 365 days.
pub async fn set_rate(
    client: &impl GenericClient,
    kind: LimitKind,
    name: &str,
    rate: Option<Rate>,
) -> Result<(), QueueError> {
    let kind = kind.as_str();
    let (starts, seconds) =
        (rate.map(|rate| rate.starts), rate.map(|rate| rate.period.as_secs_f64()));
    execute(client, SET_RATE, &[&kind, &name, &starts, /* period */ &seconds]).await
}

/// A limit and its current use.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// Object that the limit applies to.
    pub kind: LimitKind,
    /// Name of the queue, the key or the group.
    pub name: String,
    /// For groups, the run; 0 for tasks outside any run.
    pub run_id: Option<i64>,
    /// Maximum number of concurrent tasks; `None` means unlimited.
    pub max_running: Option<i32>,
    /// Whether `max_running` is 0.
    pub paused: bool,
    /// Maximum rate of starts.
    pub rate: Option<Rate>,
    /// Number of permits in use, by tasks that run or are about to.
    pub running: i64,
    /// Number of tasks that wait for a permit.
    pub waiting: i64,
}

from_row! {
    row => Limit {
        kind, name, run_id, max_running, paused, rate: Rate::from_row(row)?, running, waiting,
    }
}

/// Returns every limit that is set or that a task waits for.
pub async fn limits(client: &impl GenericClient) -> Result<Vec<Limit>, QueueError> {
    rows(client, LIMITS, &[]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_serializes_in_seconds() {
        let rate = Rate { starts: 10, period: Duration::from_millis(1500) };
        let expected = serde_json::json!({ "starts": 10, "period_seconds": 1.5 });
        assert_eq!(serde_json::to_value(rate).unwrap(), expected);
    }
}
