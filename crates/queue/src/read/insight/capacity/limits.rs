//! Limits with their use, with bounded counting.

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::TaskId;
use serde::Serialize;

use crate::error::QueueError;
use crate::operator::group::{ActivePeriod, active_period};
use crate::row::{Param, first, from_row, rows};
use crate::task::LimitKind;
use crate::transition::limit::Rate;

/// Maximum number of limits that one page searches for a text.
const SEARCH_LIMIT: i64 = 10_000;

/// Finds the last limit that a search reads; no row if the search reaches the end.
const SEARCH_END: &str = "SELECT /* queue.insight_limit_search_end */ l.kind::text, l.name, l.run_id FROM mill.limits l
WHERE ($1::text IS NULL OR l.kind = $1::text::mill.limit_kind)
    AND ($2::text IS NULL OR (l.kind, l.name, l.run_id) > ($2::text::mill.limit_kind, $3::text, $4::int8))
ORDER BY l.kind, l.name, l.run_id OFFSET $5::int8 LIMIT 1";

/// SQL that finds the limits of a page in the order of their names (`found`).
///
/// A group that has a limit has a row in `mill.limits` only for the runs that use the group, so a
/// group that no task uses is added. Both parts read an index in its order.
const BY_NAME: &str = "WITH /* queue.insight_limits */ found AS MATERIALIZED (
    SELECT * FROM (
        (SELECT l.id, l.kind, l.name, l.run_id, l.max_running, l.rate_starts, l.rate_period
        FROM mill.limits l LEFT JOIN mill.groups g ON l.kind = 'group' AND g.name = l.name
        WHERE l.kind <> 'crash' AND ($2::text IS NULL OR l.kind = $2::text::mill.limit_kind)
            AND ($3::text IS NULL OR (l.kind, l.name, l.run_id) > ($3::text::mill.limit_kind, $4::text, $5::int8))
            AND ($6::text IS NULL OR (l.kind, l.name, l.run_id) <= ($6::text::mill.limit_kind, $7::text, $8::int8))
            AND ($1::text IS NULL OR strpos(lower(l.name), lower($1::text)) > 0)
            AND (l.max_running IS NOT NULL OR l.rate_starts IS NOT NULL OR g.requires_permit
                OR EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id = l.id))
        ORDER BY l.kind, l.name, l.run_id LIMIT $9::int8)
        UNION ALL
        (SELECT NULL, 'group', g.name, 0, NULL, NULL, NULL FROM mill.groups g
        WHERE g.requires_permit AND NOT EXISTS (SELECT FROM mill.limits l WHERE l.kind = 'group' AND l.name = g.name)
            AND ($2::text IS NULL OR $2::text = 'group')
            AND ($3::text IS NULL
                OR ('group'::mill.limit_kind, g.name, 0::int8) > ($3::text::mill.limit_kind, $4::text, $5::int8))
            AND ($6::text IS NULL
                OR ('group'::mill.limit_kind, g.name, 0::int8) <= ($6::text::mill.limit_kind, $7::text, $8::int8))
            AND ($1::text IS NULL OR strpos(lower(g.name), lower($1::text)) > 0)
        ORDER BY g.name LIMIT $9::int8)
    ) AS both_parts
    ORDER BY kind, name, run_id LIMIT $9::int8
)";

/// SQL that finds the limits that tasks wait for, longest wait first. A loose index scan finds up to
/// 1,000 limits, with one probe each. There can be any number of concurrency keys, but few queues and
/// groups, so up to 1,000 of these are probed in addition.
const BY_WAIT: &str = "WITH /* queue.insight_limits_by_wait */ RECURSIVE waited (id) AS (
    (SELECT t.blocking_limit_id FROM mill.tasks t WHERE t.state = 'blocked' ORDER BY t.blocking_limit_id LIMIT 1)
    UNION ALL
    SELECT next.blocking_limit_id FROM waited w CROSS JOIN LATERAL (
        SELECT t.blocking_limit_id FROM mill.tasks t WHERE t.state = 'blocked' AND t.blocking_limit_id > w.id
        ORDER BY t.blocking_limit_id LIMIT 1) AS next
), probed AS MATERIALIZED (
    (SELECT w.id FROM waited w LIMIT 1000)
    UNION
    (SELECT l.id FROM mill.limits l WHERE l.kind > 'key' AND EXISTS (SELECT FROM mill.tasks t
        WHERE t.state = 'blocked' AND t.blocking_limit_id = l.id) ORDER BY l.kind, l.name, l.run_id LIMIT 1000)
),
found AS MATERIALIZED (
    SELECT l.id, l.kind, l.name, l.run_id, l.max_running, l.rate_starts, l.rate_period
    FROM probed s JOIN mill.limits l ON l.id = s.id CROSS JOIN LATERAL (SELECT t.due_at FROM mill.tasks t
        WHERE t.state = 'blocked' AND t.blocking_limit_id = s.id ORDER BY t.priority, t.id LIMIT 1) AS head
    WHERE ($1::text IS NULL OR strpos(lower(l.name), lower($1::text)) > 0)
        AND l.kind <> 'crash' AND ($2::text IS NULL OR l.kind = $2::text::mill.limit_kind)
    ORDER BY head.due_at LIMIT $3::int8
)";

/// Counts the use of the limits that were found. All limits together share the waiting tasks that are
/// counted. The permits of all limits are read at once: there are about as many as readers, unless a
/// rate keeps permits of ended attempts.
const USE: &str = "
, shown AS MATERIALIZED (
    SELECT f.*, head.id AS first_waiting_id, head.due_at AS waiting_since
    FROM found f LEFT JOIN LATERAL (SELECT t.id, t.due_at FROM mill.tasks t
        WHERE t.state = 'blocked' AND t.blocking_limit_id = f.id ORDER BY t.priority, t.id LIMIT 1) AS head ON true
), share AS MATERIALIZED (
    SELECT max(s.tasks) AS tasks FROM unnest('{100,200,500,1000,2000,5000,10000}'::bigint[]) AS s (tasks)
    WHERE s.tasks <= 20000 / greatest((SELECT count(*) FROM shown w WHERE w.first_waiting_id IS NOT NULL), 1)
), permits AS MATERIALIZED (
    SELECT p.limit_id, p.counts_until FROM mill.permits p
    WHERE p.limit_id = ANY (ARRAY(SELECT s.id FROM shown s WHERE s.id IS NOT NULL)) LIMIT 20000
), used AS MATERIALIZED (
    SELECT p.limit_id, count(*) AS permits FROM permits p WHERE p.counts_until IS NULL GROUP BY p.limit_id
)
SELECT s.kind::text, s.name, nullif(s.run_id, 0) AS run_id, m.max_running, coalesce(m.max_running = 0, false) AS paused,
    s.rate_starts, extract(epoch FROM s.rate_period)::float8 AS rate_seconds, g.opens, g.closes, g.zone,
    a.open, a.until AS next_change_at, coalesce(u.permits, 0) AS running,
    (SELECT count(*) FROM permits) >= 20000 AS running_more, w.tasks AS waiting, w.tasks >= share.tasks AS waiting_more,
    s.waiting_since, s.first_waiting_id
FROM shown s CROSS JOIN share LEFT JOIN mill.groups g ON s.kind = 'group' AND g.name = s.name
    CROSS JOIN LATERAL (SELECT CASE WHEN s.kind = 'group' THEN g.max_running ELSE s.max_running END) AS m (max_running)
    CROSS JOIN LATERAL mill.active_period(g.opens, g.closes, g.zone, now()) AS a
    CROSS JOIN LATERAL (SELECT count(*) AS tasks FROM (SELECT FROM mill.tasks t WHERE t.state = 'blocked'
        AND t.blocking_limit_id = s.id ORDER BY t.priority, t.id LIMIT share.tasks) AS few) AS w
    LEFT JOIN used u ON u.limit_id = s.id";

/// Order of a list of limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitOrder {
    /// By kind and name.
    #[default]
    Name,
    /// Only limits that tasks wait for, longest wait first, of at most 1,000 concurrency keys. This
    /// order has a single page.
    Wait,
}

/// Position of a limit in the order by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCursor {
    /// Object that the limit applies to.
    pub kind: LimitKind,
    /// Name of the object.
    pub name: String,
    /// For groups, the run; 0 for tasks outside any run.
    pub run_id: i64,
}

from_row! { LimitCursor { kind, name, run_id } }

/// A filter on limits.
#[derive(Clone, Debug, Default)]
pub struct LimitQuery {
    /// A part of the name, in any case.
    pub text: Option<String>,
    /// Object that the limit applies to.
    pub kind: Option<LimitKind>,
    /// The order.
    pub order: LimitOrder,
    /// Selects limits after this one in the order by name.
    pub after: Option<LimitCursor>,
}

/// A limit and its current use.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct LimitUse {
    /// Object that the limit applies to.
    pub kind: LimitKind,
    /// Name of the queue, the key or the group.
    pub name: String,
    /// For groups, the run; `None` for tasks outside any run.
    pub run_id: Option<i64>,
    /// Maximum number of concurrent tasks, for a group in each run; `None` means unlimited.
    pub max_running: Option<i32>,
    /// Whether `max_running` is 0.
    pub paused: bool,
    /// Maximum rate of starts.
    pub rate: Option<Rate>,
    /// Period in which tasks of the group may start.
    pub active_period: Option<ActivePeriod>,
    /// Whether the active period is open now.
    pub open: bool,
    /// Time at which the active period opens or closes next.
    pub next_change_at: Option<Timestamp>,
    /// Number of permits in use, by tasks that run or are about to.
    pub running: i64,
    /// Whether `running` is a lower bound.
    pub running_more: bool,
    /// Number of tasks that wait for a permit.
    pub waiting: i64,
    /// Whether `waiting` is a lower bound.
    pub waiting_more: bool,
    /// Due time of the waiting task that is next.
    pub waiting_since: Option<Timestamp>,
    /// The waiting task that is next.
    pub first_waiting_id: Option<TaskId>,
}

from_row! {
    row => LimitUse {
        kind, name, run_id, max_running, paused, rate: Rate::from_row(row)?, active_period: active_period(row)?,
        open, next_change_at, running, running_more, waiting, waiting_more, waiting_since, first_waiting_id,
    }
}

impl LimitUse {
    fn cursor(&self) -> LimitCursor {
        LimitCursor {
            kind: self.kind,
            name: self.name.clone(),
            run_id: self.run_id.unwrap_or_default(),
        }
    }
}

/// A page of limits.
#[derive(Clone, Debug, Default)]
pub struct LimitPage {
    /// The limits.
    pub limits: Vec<LimitUse>,
    /// Position at which the next page begins; `None` on the last page.
    pub next: Option<LimitCursor>,
}

/// Returns up to `limit` limits that are set or that a task waits for. A search for a text reads up to
/// 10,000 limits per page. Counts of waiting tasks stop at 10,000 together, or earlier for a page with
/// several such limits.
pub async fn page(
    client: &impl GenericClient,
    query: &LimitQuery,
    limit: i64,
) -> Result<LimitPage, QueueError> {
    if query.order == LimitOrder::Wait {
        let sql = format!("{BY_WAIT}{USE}\nORDER BY s.waiting_since");
        let params: [&dyn Param; 3] = [&query.text, &query.kind.map(LimitKind::as_str), &limit];
        return Ok(LimitPage { limits: rows(client, &sql, &params).await?, next: None });
    }
    let end = match query.text {
        Some(_) => search_end(client, query).await?,
        None => None,
    };
    let (after, wanted) = (query.after.as_ref(), limit + 1);
    let sql = format!("{BY_NAME}{USE}\nORDER BY s.kind, s.name, s.run_id");
    let params: [&dyn Param; 9] = [
        &query.text,
        &query.kind.map(LimitKind::as_str),
        &after.map(|it| it.kind.as_str()),
        &after.map(|it| &it.name),
        &after.map(|it| it.run_id),
        &end.as_ref().map(|it| it.kind.as_str()),
        &end.as_ref().map(|it| &it.name),
        &end.as_ref().map(|it| it.run_id),
        /* limit */ &wanted,
    ];
    let mut limits: Vec<LimitUse> = rows(client, &sql, &params).await?;
    let shown = usize::try_from(limit).unwrap_or(usize::MAX);
    let full = limits.len() > shown;
    limits.truncate(shown);
    let next = if full { limits.last().map(LimitUse::cursor) } else { end };
    Ok(LimitPage { limits, next })
}

async fn search_end(
    client: &impl GenericClient,
    query: &LimitQuery,
) -> Result<Option<LimitCursor>, QueueError> {
    let after = query.after.as_ref();
    let params: [&dyn Param; 5] = [
        &query.kind.map(LimitKind::as_str),
        &after.map(|it| it.kind.as_str()),
        &after.map(|it| &it.name),
        &after.map(|it| it.run_id),
        /* searched */ &(SEARCH_LIMIT - 1),
    ];
    first(client, SEARCH_END, &params).await
}
