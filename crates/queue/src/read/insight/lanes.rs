//! Waiting and running tasks by queue and priority, with bounded counting.
//!
//! A lane is a queue, a priority and a profile, which form one range of the index `tasks_pending`.
//! A loose index scan finds the lanes. The view `mill.queue_status` reads every live task, which
//! takes a second with a million tasks. The statements here read a few index pages per lane. As in the
//! claim, a range of one profile in the order leaves the planner only that index.

use conninfo::GenericClient;
use pgmill_client::Priority;
use serde::Serialize;
use tokio_postgres::Row;

use crate::error::QueueError;
use crate::operator::operate::QueueConditions;
use crate::row::{column, from_row, query, rows};
use crate::transition::limit::Rate;

/// Maximum of a count. A count that reaches it only says that there are at least as many. With
/// several deep lanes the maximum is lower, so that the total cost stays the same.
pub const COUNT_LIMIT: i64 = 10_000;

/// SQL that finds the lanes of pending tasks, up to 1,000 (`known`), and the maximum number of tasks
/// to count in each (`max_count`).
///
/// A first count stops early and tells deep lanes from others, whose count is thereby known. The
/// deep lanes share 20,000. Their number seldom changes, and the shares are rounded to a few values.
/// If all lanes had equal shares, the count of a deep lane would change whenever a small queue
/// becomes empty or gets its first task.
macro_rules! lane_scan {
    ($name:literal) => {
        concat!(
            "WITH RECURSIVE /* ",
            $name,
            " */ lane (queue, priority, run_as) AS (
    (SELECT t.queue, t.priority, t.run_as FROM mill.tasks t WHERE t.state = 'pending'
     ORDER BY t.queue, t.priority, t.run_as LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority, next.run_as FROM lane CROSS JOIN LATERAL (
        SELECT t.queue, t.priority, t.run_as FROM mill.tasks t
        WHERE t.state = 'pending'
            AND (t.queue, t.priority, t.run_as) > (lane.queue, lane.priority, lane.run_as)
        ORDER BY t.queue, t.priority, t.run_as LIMIT 1) AS next
), lanes AS MATERIALIZED (SELECT * FROM lane LIMIT 1000),
    probe AS MATERIALIZED (SELECT greatest(50, least(1000, 10000 / greatest(count(*), 1))) AS max_count FROM lanes),
    probed AS MATERIALIZED (SELECT l.queue, l.priority, l.run_as, f.count, f.last_id, f.count >= p.max_count AS deep
        FROM lanes l CROSS JOIN probe p CROSS JOIN LATERAL (
            SELECT count(*) AS count, max(few.id) AS last_id FROM (SELECT t.id FROM mill.tasks t
                WHERE t.state = 'pending' AND t.queue = l.queue AND t.priority = l.priority
                    AND t.run_as >= l.run_as AND t.run_as <= l.run_as
                ORDER BY t.run_as, t.id LIMIT p.max_count) AS few) AS f),
    share AS MATERIALIZED (SELECT max(s.max_count) AS max_count
        FROM unnest('{50,100,200,500,1000,2000,5000,10000}'::bigint[]) AS s (max_count),
            (SELECT count(*) AS lanes FROM probed p WHERE p.deep) AS deep
        WHERE s.max_count <= 20000 / greatest(deep.lanes, 1)),
    known AS MATERIALIZED (SELECT l.queue, l.priority, l.run_as, l.count, l.last_id, l.deep,
            CASE WHEN l.deep THEN greatest(p.max_count, s.max_count) ELSE p.max_count END AS max_count
        FROM probed l CROSS JOIN probe p CROSS JOIN share s)"
        )
    };
}
pub(super) use lane_scan;

/// ORDER BY makes the planner walk the index; without it, the planner fetches a whole lane before
/// it counts. The head of a lane is the task that is claimed next. Its age is the age of the oldest
/// task of the lane, unless a task was enqueued with an earlier due time or returned to the queue.
const LANES: &str = concat!(
    lane_scan!("queue.insight_lanes"),
    "
SELECT l.queue, l.priority::text,
    l.count + CASE WHEN l.deep THEN (SELECT count(*) FROM (SELECT FROM mill.tasks t WHERE t.state = 'pending'
        AND t.queue = l.queue AND t.priority = l.priority AND (t.run_as, t.id) > (l.run_as, l.last_id)
        AND t.run_as <= l.run_as ORDER BY t.run_as, t.id LIMIT l.max_count - l.count) AS more) ELSE 0 END AS count,
    (SELECT extract(epoch FROM now() - t.due_at)::float8 FROM mill.tasks t
        WHERE t.state = 'pending' AND t.queue = l.queue AND t.priority = l.priority
            AND t.run_as >= l.run_as AND t.run_as <= l.run_as ORDER BY t.run_as, t.id LIMIT 1) AS age_seconds,
    l.max_count
FROM known l"
);

/// There are at most as many running tasks as readers. Of the tasks in other states, reads the
/// 10,000 that are due next, and any 10,000 that wait for a permit.
const OTHERS: &str = "SELECT /* queue.insight_other_states */ t.queue, t.priority::text, 'running' AS state, count(*) AS count,
    extract(epoch FROM now() - min(t.claimed_at))::float8 AS age_seconds
FROM mill.tasks t WHERE t.state = 'running' GROUP BY t.queue, t.priority
UNION ALL
SELECT t.queue, t.priority::text, 'scheduled', count(*), NULL
FROM (SELECT s.queue, s.priority FROM mill.tasks s WHERE s.state = 'scheduled'
    ORDER BY s.due_at, s.id LIMIT 10000) AS t GROUP BY t.queue, t.priority
UNION ALL
SELECT t.queue, t.priority::text, 'blocked', count(*), NULL
FROM (SELECT s.queue, s.priority FROM mill.tasks s WHERE s.state = 'blocked'
    ORDER BY s.blocking_limit_id, s.priority, s.id LIMIT 10000) AS t GROUP BY t.queue, t.priority";

const SETTINGS: &str = "SELECT /* queue.insight_queues */ name AS queue, coalesce(q.paused, false) AS paused,
    extract(epoch FROM q.shared_commit)::float8 AS shared_commit_seconds, l.max_running,
    l.rate_starts, extract(epoch FROM l.rate_period)::float8 AS rate_seconds,
    NOT coalesce(q.store_params, true) AS discards_params, NOT coalesce(q.store_output, true) AS discards_output,
    extract(epoch FROM q.max_replication_lag)::float8 AS max_replication_lag_seconds,
    extract(epoch FROM q.max_snapshot_age)::float8 AS max_snapshot_age_seconds, q.max_active_sessions, q.held_back
FROM mill.queues q FULL JOIN (SELECT * FROM mill.limits WHERE kind = 'queue') l USING (name)
ORDER BY name";

/// State of the tasks of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// May be claimed.
    Pending,
    /// Running.
    Running,
    /// Not due yet.
    Scheduled,
    /// Wait for a permit.
    Blocked,
}

/// The tasks of one queue, priority and state. If several profiles are in use, a queue and priority
/// can have several entries.
#[derive(Clone, Debug)]
pub struct LaneCount {
    /// The queue.
    pub queue: String,
    /// The priority.
    pub priority: Priority,
    /// The state.
    pub state: LaneState,
    /// Number of tasks.
    pub count: i64,
    /// Whether counting stopped at the maximum, so that there may be more tasks.
    pub more: bool,
    /// For pending tasks: seconds since the due time of the task that is claimed next. For running
    /// tasks: seconds since the oldest claim.
    pub age_seconds: Option<f64>,
}

/// Settings of a queue.
#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
pub struct QueueSetting {
    /// Name of the queue.
    pub queue: String,
    /// Whether the queue is paused.
    pub paused: bool,
    /// Time budget of shared commits, in seconds; `None` means that each task commits alone.
    pub shared_commit_seconds: Option<f64>,
    /// Maximum number of concurrent tasks; `None` means unlimited.
    pub max_running: Option<i32>,
    /// Maximum rate of starts; `None` means unlimited.
    pub rate: Option<Rate>,
    /// Whether params of finished tasks are not stored, unless the task has the option.
    pub discards_params: bool,
    /// Whether output of finished tasks is not stored, unless the task has the option.
    pub discards_output: bool,
    /// The conditions under which workers claim.
    #[serde(flatten)]
    pub conditions: QueueConditions,
    /// Which condition does not hold, so that workers claim nothing.
    pub held_back: Option<String>,
}

from_row! {
    row => QueueSetting {
        queue, paused, shared_commit_seconds, max_running, rate: Rate::from_row(row)?, discards_params,
        discards_output, conditions: QueueConditions::from_row(row)?, held_back,
    }
}

impl QueueSetting {
    /// Returns whether workers claim nothing: the queue is paused or held back.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.paused || self.held_back.is_some()
    }
}

/// Returns every lane of pending tasks, up to 1,000, and the numbers of tasks in the other states.
/// The count of a lane stops at [`COUNT_LIMIT`]; with several deep lanes it stops earlier, at a
/// share of 20,000. The counts of all scheduled tasks together, and of all blocked tasks together,
/// stop at [`COUNT_LIMIT`].
pub async fn lanes(client: &impl GenericClient) -> Result<Vec<LaneCount>, QueueError> {
    let mut lanes = Vec::new();
    for row in query(client, LANES, &[]).await? {
        let found = lane(&row, LaneState::Pending)?;
        lanes.push(LaneCount { more: found.count >= column(&row, "max_count")?, ..found });
    }
    for row in query(client, OTHERS, &[]).await? {
        let state = match column(&row, "state")? {
            "running" => LaneState::Running,
            "scheduled" => LaneState::Scheduled,
            _ => LaneState::Blocked,
        };
        lanes.push(lane(&row, state)?);
    }
    for state in [LaneState::Scheduled, LaneState::Blocked] {
        let all: i64 = lanes.iter().filter(|it| it.state == state).map(|it| it.count).sum();
        let of_kind = lanes.iter_mut().filter(|it| it.state == state);
        of_kind.for_each(|lane| lane.more = all >= COUNT_LIMIT);
    }
    Ok(lanes)
}

/// Returns the settings of queues, by name.
pub async fn queue_settings(client: &impl GenericClient) -> Result<Vec<QueueSetting>, QueueError> {
    rows(client, SETTINGS, &[]).await
}

fn lane(row: &Row, state: LaneState) -> Result<LaneCount, QueueError> {
    Ok(LaneCount {
        queue: column(row, "queue")?,
        priority: column(row, "priority")?,
        state,
        count: column(row, "count")?,
        more: false,
        age_seconds: column(row, "age_seconds")?,
    })
}
