//! Ended attempts per minute.
//!
//! History has no index on time except a summary per block range. So the cost is proportional to
//! the number of attempts in the span: a minute with 1,000 attempts per second takes 50 ms. The
//! caller reads each minute once and caches it.

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;

use crate::error::QueueError;
use crate::row::{column, from_row, rows};

const MINUTES: &str =
    "SELECT /* queue.insight_throughput */ date_trunc('minute', e.finished_at) AS at, e.queue,
    count(*) FILTER (WHERE e.outcome = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE e.outcome NOT IN ('succeeded', 'cancelled', 'interrupted')) AS failed,
    count(*) FILTER (WHERE e.outcome = 'cancelled') AS cancelled,
    percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY e.wait) AS wait_seconds,
    percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY e.run) AS duration_seconds
FROM (SELECT a.finished_at, a.queue, a.outcome,
        extract(epoch FROM greatest('0', a.started_at - a.due_at))::float8 AS wait,
        extract(epoch FROM a.finished_at - a.started_at)::float8 AS run
    FROM mill.attempts a WHERE a.finished_at >= $1 AND a.finished_at < $2) AS e
GROUP BY 1, 2 ORDER BY 1, 2";

/// Attempts of a queue in one minute.
#[derive(Clone, Debug, Serialize)]
pub struct MinuteStats {
    /// Start of the minute.
    pub at: Timestamp,
    /// The queue.
    pub queue: String,
    /// Number of successful attempts.
    pub succeeded: i64,
    /// Number of attempts that failed, timed out, were lost or have an unknown outcome.
    pub failed: i64,
    /// Number of cancelled attempts.
    pub cancelled: i64,
    /// Seconds from the due time to the claim, as median and 95th percentile; `None` if no attempt
    /// was claimed.
    pub wait_seconds: Option<[f64; 2]>,
    /// Seconds from the claim to the end, as median and 95th percentile.
    pub duration_seconds: Option<[f64; 2]>,
}

from_row! {
    row => MinuteStats {
        at, queue, succeeded, failed, cancelled, wait_seconds: pair(row, "wait_seconds")?,
        duration_seconds: pair(row, "duration_seconds")?,
    }
}

/// Returns ended attempts in a span, by minute and queue.
pub async fn minutes(
    client: &impl GenericClient,
    (from, to): (Timestamp, Timestamp),
) -> Result<Vec<MinuteStats>, QueueError> {
    rows(client, MINUTES, &[&from, &to]).await
}

fn pair(row: &Row, name: &str) -> Result<Option<[f64; 2]>, QueueError> {
    let values: Option<Vec<Option<f64>>> = column(row, name)?;
    Ok(match values.as_deref() {
        Some([Some(low), Some(high)]) => Some([*low, *high]),
        _ => None,
    })
}
