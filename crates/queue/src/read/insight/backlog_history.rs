//! Number of waiting tasks per minute, as changes that add up.
//!
//! A task waits from the time its attempt became due until the attempt is claimed. If the task is
//! cancelled before a claim, it waits until then. It makes no difference whether the task is
//! pending, blocked, or scheduled and overdue meanwhile.
//!
//! Each wait is +1 in the minute in which it began and −1 in the minute in which it ended. The sum
//! of all changes up to and including a minute is the number of tasks that waited at the end of
//! that minute. A wait that begins and ends in the same minute leaves no change. A wait lies
//! entirely before the end of its attempt. So the changes of all attempts that ended in a span can
//! be added to those of other spans, and attempts that ended before a minute do not affect it.
//!
//! There are two limits. A released attempt is not recorded in history, so its task seems to have
//! waited during that attempt as well, unless the task returned to the queue with a later due time.
//! Of the tasks that wait now, only a part is read: in each lane as many as [`lanes`](super::lanes)
//! counts, those that are claimed next first, and 10,000 scheduled and 10,000 blocked tasks. If
//! there are more tasks, which mostly became due later, `cut` reports this.

use std::collections::BTreeMap;

use conninfo::GenericClient;
use jiff::Timestamp;

use super::lanes::lane_scan;
use crate::error::QueueError;
use crate::row::{FromRow, column, from_row, query, rows};

/// As in `throughput`, the cost is proportional to the number of attempts in the span. Most waits
/// are shorter than a minute, and the statement drops them before the aggregation.
const ENDED_CHANGES: &str =
    "SELECT /* queue.insight_backlog_changes */ e.queue, m.at, sum(m.change)::int8 AS change
FROM (SELECT a.queue, date_trunc('minute', greatest(a.due_at, $3)) AS due,
        date_trunc('minute', coalesce(a.started_at, a.finished_at)) AS begun
    FROM mill.attempts a WHERE a.finished_at >= $1 AND a.finished_at < $2) AS e
CROSS JOIN LATERAL (VALUES (e.due, 1), (e.begun, -1)) AS m (at, change)
WHERE e.due < e.begun
GROUP BY e.queue, m.at HAVING sum(m.change) <> 0";

/// `cut` reports that reading stopped at the limit of a lane of this queue, and `cut_everywhere`
/// that it stopped at a limit for all queues.
const LIVE_CHANGES: &str = concat!(
    lane_scan!("queue.insight_live_changes"),
    ", waits AS (
    SELECT l.queue::text AS queue, t.due_at AS due, NULL::timestamptz AS begun,
        t.n >= l.max_count AS of_lane, false AS of_all
    FROM known l CROSS JOIN LATERAL (
        SELECT p.due_at, row_number() OVER (ORDER BY p.run_as, p.id) AS n FROM mill.tasks p
        WHERE p.state = 'pending' AND p.queue = l.queue AND p.priority = l.priority
            AND p.run_as >= l.run_as AND p.run_as <= l.run_as
        ORDER BY p.run_as, p.id LIMIT l.max_count) AS t
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
SELECT w.queue, m.at, sum(m.change)::int8 AS change, bool_or(w.of_lane AND m.change > 0) AS cut,
    bool_or(w.of_all) OR (SELECT count(*) >= 1000 FROM known) AS cut_everywhere
FROM waits w CROSS JOIN LATERAL (VALUES
    (date_trunc('minute', greatest(w.due, $1)), 1), (date_trunc('minute', w.begun), -1)) AS m (at, change)
WHERE m.at IS NOT NULL AND (w.begun IS NULL OR w.begun >= $1)
GROUP BY w.queue, m.at"
);

/// For a queue and a minute: the difference between the number of tasks that waited at the end of
/// the minute and at the end of the previous minute.
#[derive(Clone, Debug, PartialEq)]
pub struct BacklogChange {
    /// The queue.
    pub queue: String,
    /// Start of the minute.
    pub at: Timestamp,
    /// The difference.
    pub change: i64,
}

from_row! { BacklogChange { queue, at, change } }

/// The changes by tasks that are live now.
#[derive(Clone, Debug, Default)]
pub struct LiveChanges {
    /// All changes that were read.
    pub changes: Vec<BacklogChange>,
    /// Queues of which only a part was read. The value is the minute in which the last task that
    /// was read became due.
    pub cut: BTreeMap<String, Timestamp>,
    /// Whether any queue may have more tasks than were read.
    pub cut_everywhere: bool,
}

/// Returns the changes caused by attempts that ended in a span. A wait that began before `oldest`
/// counts as if it had begun then; `oldest` must be the start of a minute.
pub async fn ended_changes(
    client: &impl GenericClient,
    (from, to): (Timestamp, Timestamp),
    oldest: Timestamp,
) -> Result<Vec<BacklogChange>, QueueError> {
    rows(client, ENDED_CHANGES, &[&from, &to, &oldest]).await
}

/// Returns the changes caused by tasks that wait or run now. `oldest` is as in [`ended_changes`].
pub async fn live_changes(
    client: &impl GenericClient,
    oldest: Timestamp,
) -> Result<LiveChanges, QueueError> {
    let mut live = LiveChanges::default();
    for row in query(client, LIVE_CHANGES, &[&oldest]).await? {
        let it = BacklogChange::from_row(&row)?;
        if column(&row, "cut")? {
            let cut = live.cut.entry(it.queue.clone()).or_insert(it.at);
            *cut = it.at.min(*cut);
        }
        live.cut_everywhere |= column::<bool>(&row, "cut_everywhere")?;
        live.changes.push(it);
    }
    Ok(live)
}
