//! Groups and what they have, without counting to the end.

use jiff::Timestamp;
use jiff::civil::Time;
use serde::Serialize;
use tokio_postgres::{GenericClient, Row};

use crate::error::QueueError;
use crate::group::ActivePeriod;
use crate::task::Priority;
use crate::words::word;

/// Pending ones stand in the index `tasks_group`; blocked ones in `tasks_blocked`, by the limit that
/// they wait for. `mill.group_status` reads every live task.
const GROUPS: &str = "/* queue.insight_groups */
SELECT g.name, g.description, g.priority::text, g.max_concurrency, g.opens, g.closes, g.zone, a.open,
    a.until,
    (SELECT count(*) FROM (SELECT FROM mill.tasks t WHERE t.state = 'pending'
        AND t.group_name = g.name LIMIT 10000) AS few),
    (SELECT count(*) FROM mill.tasks t WHERE t.state = 'running' AND t.group_name = g.name),
    (SELECT count(*) FROM (SELECT FROM mill.limits l JOIN mill.tasks t ON t.waits_for = l.id
        WHERE l.kind = 'group' AND l.name = g.name AND t.state = 'blocked' LIMIT 10000) AS few)
FROM (SELECT * FROM mill.groups ORDER BY name LIMIT 500) g
    CROSS JOIN LATERAL mill.active_period(g.opens, g.closes, g.zone, now()) AS a
ORDER BY g.name";

/// A group and its live tasks; counts of waiting ones end at [`COUNTED`](super::lanes::COUNTED).
#[derive(Clone, Debug, Serialize)]
pub struct GroupFill {
    /// Its name.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// Of tasks that name none themselves.
    pub priority: Option<Priority>,
    /// Tasks of one run at once: 0 = any number, -1 = none are started.
    pub max_concurrency: i32,
    /// When tasks may start; `None`: at any time.
    pub active_period: Option<ActivePeriod>,
    /// Whether that is now.
    pub open: bool,
    /// When that changes.
    pub turns_at: Option<Timestamp>,
    /// Tasks that wait for a reader.
    pub pending: i64,
    /// Tasks that run.
    pub running: i64,
    /// Tasks that wait for a permit of the group.
    pub blocked: i64,
}

/// The first 500 groups by name.
///
/// # Errors
/// Database trouble.
pub async fn groups(client: &impl GenericClient) -> Result<Vec<GroupFill>, QueueError> {
    client.query_typed(GROUPS, &[]).await?.iter().map(group).collect()
}

fn group(row: &Row) -> Result<GroupFill, QueueError> {
    let opens: Option<Time> = row.try_get(4)?;
    let closes: Option<Time> = row.try_get(5)?;
    let zone: Option<String> = row.try_get(6)?;
    let active_period = match (opens, closes, zone) {
        (Some(opens), Some(closes), Some(zone)) => Some(ActivePeriod { opens, closes, zone }),
        _ => None,
    };
    let priority: Option<&str> = row.try_get(2)?;
    Ok(GroupFill {
        name: row.try_get(0)?,
        description: row.try_get(1)?,
        priority: priority.map(|_| word(row, 2, "priority")).transpose()?,
        max_concurrency: row.try_get(3)?,
        active_period,
        open: row.try_get(7)?,
        turns_at: row.try_get(8)?,
        pending: row.try_get(9)?,
        running: row.try_get(10)?,
        blocked: row.try_get(11)?,
    })
}
