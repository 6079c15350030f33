//! Limits that hold tasks back, with their values.

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;

use crate::error::QueueError;
use crate::operator::group::{ActivePeriod, active_period};
use crate::row::{column, from_row, rows};
use crate::task::LimitKind;
use crate::transition::limit::Rate;

/// Up to this number, waiting tasks are counted for each limit.
const COUNT_LIMIT: i64 = 1000;

/// Finds the waiting tasks of each limit with one lookup in an index, and counts those of the limits
/// with the longest waits. A limit that was just removed, or whose active period just opened, still
/// has blocked tasks until its permits are granted; it does not hold them back.
const WAITING: &str = "WITH /* queue.insight_waiting_limits */ waited AS MATERIALIZED (
    SELECT l.*, w.due_at FROM mill.effective_limits l
        CROSS JOIN LATERAL (SELECT t.due_at FROM mill.tasks t
            WHERE t.state = 'blocked' AND t.blocking_limit_id = l.id ORDER BY t.priority, t.id LIMIT 1) AS w
    WHERE l.kind <> 'crash' AND (l.max_running IS NOT NULL OR l.rate_starts IS NOT NULL
        OR l.opens IS NOT NULL AND NOT (SELECT p.open FROM mill.active_period(l.opens, l.closes, l.zone, now()) AS p))
    ORDER BY w.due_at LIMIT 20
)
SELECT l.kind::text, l.name, min(l.due_at) AS since, sum(n.tasks)::bigint AS tasks, max(n.tasks) = $1 AS more,
    l.paused, l.max_running, l.rate_starts, extract(epoch FROM l.rate_period)::float8 AS rate_seconds,
    l.opens, l.closes, l.zone, bool_and(p.open) AS open, min(p.until) AS until
FROM waited l
    CROSS JOIN LATERAL (SELECT count(*) AS tasks FROM (SELECT FROM mill.tasks t
        WHERE t.state = 'blocked' AND t.blocking_limit_id = l.id LIMIT $1) AS few) AS n
    CROSS JOIN LATERAL mill.active_period(l.opens, l.closes, l.zone, now()) AS p
GROUP BY l.kind, l.name, l.paused, l.max_running, l.rate_starts, l.rate_period, l.opens, l.closes, l.zone
ORDER BY since";

/// A limit of a group, a concurrency key or a queue for whose permit tasks wait.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct WaitingLimit {
    /// The object that the limit applies to.
    pub kind: LimitKind,
    /// Name of the group, the key or the queue.
    pub name: String,
    /// Due time of the task that is next.
    pub since: Timestamp,
    /// Number of waiting tasks.
    pub tasks: i64,
    /// Whether counting stopped at its limit.
    pub more: bool,
    /// Whether the limit lets no task start.
    pub paused: bool,
    /// Maximum number of concurrent tasks, for a group in each run.
    pub max_running: Option<i32>,
    /// Maximum rate of starts.
    pub rate: Option<Rate>,
    /// Period in which tasks of the group may start.
    pub active_period: Option<ActivePeriod>,
    /// Whether the active period is open now.
    pub open: bool,
    /// Time at which the active period opens or closes next.
    pub until: Option<Timestamp>,
}

from_row! {
    row => WaitingLimit {
        kind, name, since, tasks, more: column::<Option<bool>>(row, "more")?.unwrap_or_default(), paused,
        max_running, rate: Rate::from_row(row)?, active_period: active_period(row)?, open, until,
    }
}

/// Returns up to 20 limits for whose permits tasks wait, longest wait first.
pub async fn waiting_limits(client: &impl GenericClient) -> Result<Vec<WaitingLimit>, QueueError> {
    rows(client, WAITING, &[&COUNT_LIMIT]).await
}
