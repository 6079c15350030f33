//! How many tasks waited, minute by minute, as changes that add up.
//!
//! A task waits from when an attempt of it became due until it was claimed, or cancelled if it never
//! was; whatever its state is called meanwhile: pending, blocked, or scheduled behind its time. Each
//! wait is +1 in the minute in which it began and −1 in the minute in which it ended; what all changes
//! up to and in a minute add up to is how many waited at its end. A wait that begins and ends in one minute leaves
//! nothing. The changes of attempts that ended in some minutes are added to those of other minutes; all
//! of a wait lies before the attempt's end, so attempts that ended before a minute say nothing of it.
//!
//! Limits. An attempt that was given back leaves no row: its task seems to have waited on, unless it
//! came back with a later due time. Of what waits now, each lane is read up to as many tasks as
//! [`lanes`](super::lanes) counts, those claimed next first, and of scheduled and blocked ones 10,000:
//! behind that there are more, which mostly became due later (`cut`).

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use super::lanes::lane_scan;
use crate::error::QueueError;

/// As in `throughput`, the cost is in proportion to the attempts of the span. Most waits are shorter than a
/// minute and gone before anything is added up.
const ENDED_CHANGES: &str = "/* queue.insight_backlog_changes */
SELECT e.queue, m.at, sum(m.change)::int8
FROM (SELECT a.queue, date_trunc('minute', greatest(a.due_at, $3)) AS due,
        date_trunc('minute', coalesce(a.started_at, a.finished_at)) AS begun
    FROM mill.attempts a WHERE a.finished_at >= $1 AND a.finished_at < $2) AS e
CROSS JOIN LATERAL (VALUES (e.due, 1), (e.begun, -1)) AS m (at, change)
WHERE e.due < e.begun
GROUP BY e.queue, m.at HAVING sum(m.change) <> 0";

/// The last column: of a lane (its queue), or of all queues (null), no more was read.
const LIVE_CHANGES: &str = concat!(
    "/* queue.insight_live_changes */",
    lane_scan!(),
    ", waits AS (
    SELECT l.queue::text AS queue, t.due_at AS due, NULL::timestamptz AS begun,
        t.n >= (SELECT e.most FROM ends e) AS of_lane, false AS of_all
    FROM known l CROSS JOIN LATERAL (
        SELECT p.due_at, row_number() OVER (ORDER BY p.id) AS n FROM mill.tasks p
        WHERE p.state = 'pending' AND p.queue = l.queue AND p.priority = l.priority AND p.run_as = l.run_as
        ORDER BY p.id LIMIT (SELECT e.most FROM ends e)) AS t
    UNION ALL
    SELECT t.queue::text, t.due_at, t.claimed_at, false, false FROM mill.tasks t WHERE t.state = 'running'
    UNION ALL
    SELECT t.queue::text, t.due_at, NULL, false, t.n >= 10000
    FROM (SELECT s.queue, s.due_at, row_number() OVER (ORDER BY s.due_at, s.id) AS n FROM mill.tasks s
        WHERE s.state = 'scheduled' AND s.due_at <= now() ORDER BY s.due_at, s.id LIMIT 10000) AS t
    UNION ALL
    SELECT t.queue::text, t.due_at, NULL, false, t.n >= 10000
    FROM (SELECT s.queue, s.due_at, row_number() OVER (ORDER BY s.blocking_limit_id, s.priority, s.id) AS n FROM mill.tasks s
        WHERE s.state = 'blocked' ORDER BY s.blocking_limit_id, s.priority, s.id LIMIT 10000) AS t
)
SELECT w.queue, m.at, sum(m.change)::int8, bool_or(w.of_lane AND m.change > 0),
    bool_or(w.of_all) OR (SELECT count(*) >= 1000 FROM known)
FROM waits w CROSS JOIN LATERAL (VALUES
    (date_trunc('minute', greatest(w.due, $1)), 1), (date_trunc('minute', w.begun), -1)) AS m (at, change)
WHERE m.at IS NOT NULL AND (w.begun IS NULL OR w.begun >= $1)
GROUP BY w.queue, m.at"
);

/// A queue, a minute, and by how many more tasks waited at its end than at the end of the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct BacklogChange {
    /// Whose.
    pub queue: String,
    /// When the minute began.
    pub at: Timestamp,
    /// By how many.
    pub change: i64,
}

/// The changes by tasks that are live now.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// All that were read.
    pub changes: Vec<BacklogChange>,
    /// By queue: there are more, the last one that was read became due in this minute.
    pub cut: BTreeMap<String, Timestamp>,
    /// Of any queue there may be more.
    pub cut_everywhere: bool,
}

/// The changes by attempts that ended in a span. A wait that began before `oldest`, the beginning of a
/// minute, counts as if it had begun then.
///
/// # Errors
/// Database trouble.
pub async fn ended_changes(
    client: &impl GenericClient,
    (from, to): (Timestamp, Timestamp),
    oldest: Timestamp,
) -> Result<Vec<BacklogChange>, QueueError> {
    let values = [
        (&from as _, Type::TIMESTAMPTZ),
        (&to as _, Type::TIMESTAMPTZ),
        (&oldest as _, Type::TIMESTAMPTZ),
    ];
    client.query_typed(ENDED_CHANGES, &values).await?.iter().map(change_from_row).collect()
}

/// The changes by tasks that wait or run; `oldest` as in [`ended_changes`].
///
/// # Errors
/// Database trouble.
pub async fn live_changes(
    client: &impl GenericClient,
    oldest: Timestamp,
) -> Result<Live, QueueError> {
    let mut live = Live::default();
    for row in client.query_typed(LIVE_CHANGES, &[(&oldest, Type::TIMESTAMPTZ)]).await? {
        let it = change_from_row(&row)?;
        if row.try_get(3)? {
            let cut = live.cut.entry(it.queue.clone()).or_insert(it.at);
            *cut = it.at.min(*cut);
        }
        live.cut_everywhere |= row.try_get::<_, bool>(4)?;
        live.changes.push(it);
    }
    Ok(live)
}

fn change_from_row(row: &Row) -> Result<BacklogChange, QueueError> {
    Ok(BacklogChange { queue: row.try_get(0)?, at: row.try_get(1)?, change: row.try_get(2)? })
}
