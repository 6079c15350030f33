//! blocked → pending, when a permit is granted, and back, when it is revoked.
//!
//! A task that a limit applies to is blocked until it holds a permit of each of its limits. Permits
//! are handed out under a lock on the limit's row, so that there are never too many; a permit ends
//! when the task leaves pending or running, in the same transaction. The process that ended a
//! permit calls [`grant`] to pass it on; the next poll of any worker finds permits that were not
//! passed on.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use crate::error::QueueError;
use crate::pg_enum::enum_column;
use crate::task::LimitKind;

const GRANT: &str = "/* queue.grant_permits */
SELECT g.granted, extract(epoch FROM g.next_in)::float8 FROM mill.grant_permits($1) AS g";

const GRANT_WAITING: &str = "/* queue.grant_waiting_permits */
SELECT g.granted, extract(epoch FROM g.next_in)::float8 FROM mill.grant_waiting_permits() AS g";

const RECONCILE_LIMITS: &str = "/* queue.reconcile_limits */ SELECT mill.reconcile_limits()";

const SET_MAX_RUNNING: &str = "/* queue.set_max_running */
SELECT mill.set_max_running($1::text::mill.limit_kind, $2, $3)";

const SET_RATE: &str = "/* queue.set_rate */
SELECT mill.set_rate($1::text::mill.limit_kind, $2, $3, make_interval(secs => $4))";

const LIMITS: &str = "/* queue.limits */
SELECT l.kind::text, l.name, l.run_id, l.max_running, l.paused, l.rate_starts,
    extract(epoch FROM l.rate_period)::float8, l.running, l.waiting
FROM mill.limit_status l ORDER BY l.kind, l.name, l.run_id";

/// `mill.limits.id`.
pub type LimitId = i64;

/// Result of handing out permits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Granted {
    /// Number of tasks that became pending.
    pub tasks: u64,
    /// Time until the clock alone frees more permits: a rate, an active period.
    pub next_in: Option<Duration>,
}

/// Hands out the free permits of these limits.
pub async fn grant(client: &impl GenericClient, limits: &[LimitId]) -> Result<Granted, QueueError> {
    granted(&client.query_typed(GRANT, &[(&limits, Type::INT8_ARRAY)]).await?[0])
}

/// Hands out the free permits of every limit that a task waits for.
pub async fn grant_waiting_permits(client: &impl GenericClient) -> Result<Granted, QueueError> {
    granted(&client.query_typed(GRANT_WAITING, &[]).await?[0])
}

/// Reconciles tasks with limits in the cases that the end of a task does not cover: tasks that were
/// enqueued while a limit was set, and active periods that have closed. Returns `false` if another
/// worker did so a moment ago.
pub async fn reconcile_limits(client: &impl GenericClient) -> Result<bool, QueueError> {
    Ok(client.query_typed(RECONCILE_LIMITS, &[]).await?[0].try_get(0)?)
}

fn granted(row: &Row) -> Result<Granted, QueueError> {
    let next_in: Option<f64> = row.try_get(1)?;
    Ok(Granted {
        tasks: u64::from(row.try_get::<_, i32>(0)?.cast_unsigned()),
        next_in: next_in.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
    })
}

/// Sets the maximum number of concurrent tasks of a queue, of a concurrency key or of each run of a
/// group; 0 starts none, `None` means no limit. Running tasks finish.
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
    let params: [(&(dyn ToSql + Sync), Type); 3] =
        [(&kind, Type::TEXT), (&name, Type::TEXT), (&max_running, Type::INT4)];
    client.query_typed(SET_MAX_RUNNING, &params).await?;
    Ok(())
}

/// Limit on how many tasks of a queue or a concurrency key may start in any period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// Maximum number of starts.
    pub starts: i32,
    /// Length of the period; serialized as seconds, like every duration.
    #[serde(rename = "period_seconds", serialize_with = "in_seconds")]
    pub period: Duration,
}

fn in_seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

impl Rate {
    /// Reads the rate from a column with the number of starts and the next column with the seconds.
    pub(crate) fn from_columns(row: &Row, first: usize) -> Result<Option<Self>, QueueError> {
        let columns = (row.try_get(first)?, row.try_get::<_, Option<f64>>(first + 1)?);
        let (Some(starts), Some(seconds)) = columns else { return Ok(None) };
        Ok(Some(Self { starts, period: Duration::from_secs_f64(seconds) }))
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
    let params: [(&(dyn ToSql + Sync), Type); 4] =
        [(&kind, Type::TEXT), (&name, Type::TEXT), (&starts, Type::INT4), (&seconds, Type::FLOAT8)];
    client.query_typed(SET_RATE, &params).await?;
    Ok(())
}

/// A limit and its current use.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// Object that the limit applies to.
    pub kind: LimitKind,
    /// Name of the queue, the key or the group.
    pub name: String,
    /// For groups, the run; 0 for tasks outside any run.
    pub run_id: i64,
    /// Maximum number of concurrent tasks; `None` means unlimited.
    pub max_running: Option<i32>,
    /// Whether `max_running` is 0.
    pub paused: bool,
    /// Maximum rate of starts.
    pub rate: Option<Rate>,
    /// Permits in use: tasks that run or are about to.
    pub running: i64,
    /// Tasks that wait for a permit.
    pub waiting: i64,
}

/// Returns every limit that is set or that a task waits for.
pub async fn limits(client: &impl GenericClient) -> Result<Vec<Limit>, QueueError> {
    let rows = client.query_typed(LIMITS, &[]).await?;
    let limit = |row: &Row| {
        Ok(Limit {
            kind: enum_column(row, 0, "kind")?,
            name: row.try_get(1)?,
            run_id: row.try_get(2)?,
            max_running: row.try_get(3)?,
            paused: row.try_get(4)?,
            rate: Rate::from_columns(row, 5)?,
            running: row.try_get(7)?,
            waiting: row.try_get(8)?,
        })
    };
    rows.iter().map(limit).collect()
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
