//! pending → running, when a reader claims a task.
//!
//! Relies on the index `tasks_pending (queue, priority, run_as, id) WHERE state = 'pending'`. Each
//! lane is one range of this index, and is read from the watermark upwards. Invariants: only one
//! reader at a time has a claim on a task; a claim takes at most as many tasks as it names readers;
//! each claim has its own token.

use std::time::Duration;

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Priority, TaskId};
use tokio_postgres::types::{Json, ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use crate::error::QueueError;
use crate::id::{Token, WorkerId};
use crate::receipt::Receipt;
use crate::row::{FromRow, Param, Position, column, duration, from_row, positions, query, scalar};
use crate::task::{Body, Claim, RetryPolicy};

/// The claim statement. Public for EXPLAIN. Its form has these reasons:
///
/// - The condition of the partial index contains only literals. A generic plan cannot prove that a
///   parameter matches a partial index, and would use a sequential scan.
/// - The common table expression enforces LIMIT. If it were a subquery in FROM or IN, a nested loop
///   would run it once per outer row, and each time skip the rows that it took before.
/// - Conditions use `now()`, because no index condition can use the volatile clock. The start of a
///   pause is compared with the clock, because a pause has to take effect with its commit.
///   `claimed_at` is taken after the claim has locked the row, so that in history the claim comes
///   after everything that it waited for.
/// - The commit of a claim waits for the disk only if one of its tasks requires this. The setting is
///   local to the transaction, which ends with the statement.
/// - The order of RETURNING is not guaranteed, so each row also returns its number, which
///   identifies the session that the claim assigned to the task.
/// - The lane is two equations and a range of one profile. The equations end the scan after the lane;
///   with only a comparison of rows, it continues over the rest of the queue, because a comparison of
///   rows ends a scan only where its first column differs. The range keeps `run_as` in the order,
///   which only the pending index has. With an equation, the planner could use the order of the
///   primary key: if its statistics have no rows, or those of one lane, a full scan of it seems as
///   cheap, and the plan stays cached after the table grows.
/// - A large statement or large params are left out: [`load`] fetches them when the task starts. So the
///   size of a claim is bounded, and a value that the server cannot send, such as one of megabytes whose
///   text exceeds a gigabyte, fails its own task and no claim. `mill.is_short` does not read the values.
pub const CLAIM: &str = "WITH /* queue.claim */ picked AS MATERIALIZED (
    SELECT head.id
    FROM unnest($1::text[], $2::text[], $3::bigint[], $8::bigint[], $9::text[])
        AS lane (queue, priority, after, max_tasks, run_as)
    CROSS JOIN LATERAL (
        SELECT t.id
        FROM mill.tasks t
        WHERE t.state = 'pending'
            AND t.queue = lane.queue AND t.priority = lane.priority::mill.priority
            AND (t.run_as, t.id) > (lane.run_as, lane.after) AND t.run_as <= lane.run_as
            AND NOT coalesce((SELECT q.paused OR q.held_back IS NOT NULL FROM mill.queues q WHERE q.name = lane.queue), false)
            -- A task that became pending before its queue or group got a limit requires a permit.
            AND coalesce((SELECT ARRAY[l.id] FROM mill.limits l
                WHERE l.kind = 'queue' AND l.name = lane.queue AND l.run_id = 0 AND l.requires_permit), '{}')
                <@ coalesce(t.limits, '{}')
            AND (t.group_name IS NULL OR mill.has_group_permit(t.group_name, t.limits))
            AND (t.start_by IS NULL OR t.start_by > now())
        ORDER BY t.run_as, t.id
        LIMIT lane.max_tasks
        FOR NO KEY UPDATE OF t SKIP LOCKED
    ) AS head
    -- As in mill.fleet_paused.
    WHERE NOT EXISTS (SELECT FROM mill.maintenance_windows w
        WHERE w.ends_at > now() AND w.starts_at <= greatest(clock_timestamp(), w.created_at))
    LIMIT $4
), batch AS MATERIALIZED (
    SELECT array_agg(picked.id) AS ids FROM picked
)
UPDATE mill.tasks t SET
    state = 'running',
    attempt = t.attempt + 1,
    claimed_at = clock_timestamp(),
    start_by = NULL,
    claimed_by = $5,
    token = gen_random_uuid(),
    session_pid = ($6::integer[])[array_position((SELECT batch.ids FROM batch), t.id)],
    session_started_at = ($7::timestamptz[])[array_position((SELECT batch.ids FROM batch), t.id)]
WHERE t.id = ANY ((SELECT batch.ids FROM batch)::bigint[])
RETURNING array_position((SELECT batch.ids FROM batch), t.id)::bigint AS n, t.id, t.token, t.attempt,
    t.failures, t.transient_failures, (mill.effective(t.options)).max_attempts,
    extract(epoch FROM (mill.effective(t.options)).retry_interval)::float8 AS retry_interval,
    (mill.effective(t.options)).backoff::text, (mill.effective(t.options)).jitter,
    extract(epoch FROM (t.options).timeout)::float8 AS timeout, (mill.effective(t.options)).mode::text,
    (mill.effective(t.options)).at_most_once, (mill.effective(t.options)).external,
    t.queue, t.priority::text, t.name,
    CASE WHEN mill.is_short(t.statement, t.params) THEN t.statement END AS statement,
    CASE WHEN mill.is_short(t.statement, t.params) THEN t.params END AS params, t.enqueued_at, t.due_at, t.claimed_at, t.limits,
    CASE WHEN t.node IS NOT NULL THEN t.run_id END AS run_id, t.run_as,
    (mill.effective(t.options)).explain, (t.options).isolation::text AS isolation, (t.options).traceparent, t.receipt, CASE WHEN t.receipt IS NOT NULL THEN nextval('mill.target_epochs') END AS epoch,
    CASE WHEN (t.options).external OR (t.options).at_most_once OR t.receipt IS NOT NULL
        OR (SELECT s.crashed_at > now() - interval '10 minutes' FROM mill.server s WHERE s.only_row)
        THEN set_config('synchronous_commit', 'on', true) END AS durable";

positions! {
    /// Columns of [`CLAIM`].
    ClaimColumns {
        n, id, token, attempt, failures, transient_failures, max_attempts, retry_interval, backoff,
        jitter, timeout, mode, at_most_once, external, queue, priority, name, statement, params,
        enqueued_at, due_at, claimed_at, limits, run_id, run_as, explain, isolation, traceparent, receipt,
        epoch,
    }
}

/// Settings of the session that claims. Public for EXPLAIN. A plan that is made while the table is
/// small or empty reads and sorts the whole table, and stays cached while the table grows. These
/// settings leave only index scans, and one plan for all parameters.
pub const SESSION_SETTINGS: &str = "SET synchronous_commit = off; SET lock_timeout = '500ms';
SET default_transaction_isolation = 'read committed'; SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
SET enable_hashjoin = off; SET enable_mergejoin = off";

const LOAD: &str = "SELECT /* queue.load */ t.statement, t.params FROM mill.tasks t
WHERE t.id = $1 AND t.token = $2";

/// Finds the next distinct (queue, priority, run_as) of the pending index with a loose index scan, one
/// probe per lane.
const LANES: &str = "WITH /* queue.lanes */ RECURSIVE lane AS (
    (SELECT t.queue, t.priority, t.run_as FROM mill.tasks t
     WHERE t.state = 'pending' AND (t.queue, t.priority, t.run_as) > ($1, $2::text::mill.priority, $3)
     ORDER BY t.queue, t.priority, t.run_as LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority, next.run_as
    FROM lane CROSS JOIN LATERAL (
        SELECT t.queue, t.priority, t.run_as FROM mill.tasks t
        WHERE t.state = 'pending'
            AND (t.queue, t.priority, t.run_as) > (lane.queue, lane.priority, lane.run_as)
        ORDER BY t.queue, t.priority, t.run_as LIMIT 1) AS next
)
SELECT lane.queue, lane.priority::text, lane.run_as,
    extract(epoch FROM q.shared_commit)::float8 AS shared_commit
FROM (SELECT * FROM lane LIMIT $4) AS lane LEFT JOIN mill.queues q ON q.name = lane.queue";

/// Maximum number of lanes that one execution of [`LANES`] reads, so that a claim with a sweep does not
/// take longer with more lanes: 10,000 take 100 ms.
const MAX_LANES: usize = 1000;

/// Finds the lanes of the given queues that have a pending task, one probe per lane.
const LANES_OF: &str = "SELECT /* queue.lanes_of */ served.queue, p.priority::text, login.run_as,
    extract(epoch FROM q.shared_commit)::float8 AS shared_commit
FROM unnest($2::text[]) AS served (queue)
CROSS JOIN unnest(enum_range(NULL::mill.priority)) AS p (priority)
CROSS JOIN unnest($1::text[]) AS login (run_as)
LEFT JOIN mill.queues q ON q.name = served.queue
WHERE EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'pending'
    AND (t.queue, t.priority, t.run_as) = (served.queue, p.priority, login.run_as))";

const WATCH_LANES: &str = "SELECT /* queue.watch_lanes */ mill.watch_lanes($1, $2, $3, $4, $5)";

/// A queue, a priority and a profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// Name of the queue.
    pub queue: String,
    /// Priority of the tasks.
    pub priority: Priority,
    /// Profile whose login the tasks run as; empty for tasks without a profile.
    pub run_as: String,
}

from_row! { Lane { queue, priority, run_as } }

/// The part of a lane from which a claim takes tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRange {
    /// The lane.
    pub lane: Lane,
    /// Tasks are claimed only if their id is higher than this.
    pub after: TaskId,
    /// Maximum number of tasks to claim.
    pub limit: usize,
}

impl LaneRange {
    /// Returns the range of the whole lane, without a watermark or limit.
    #[must_use]
    pub fn whole(lane: Lane) -> Self {
        Self { lane, after: TaskId(0), limit: usize::MAX }
    }
}

/// The session of an idle reader. The reclaimer uses it to terminate the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionIdentity {
    /// Backend pid.
    pub pid: i32,
    /// Start time of that backend.
    pub started_at: Timestamp,
}

impl SessionIdentity {
    /// Returns the pid and the start time as parameters of a statement.
    pub(crate) fn params(&self) -> [&dyn Param; 2] {
        [&self.pid, &self.started_at]
    }
}

/// A claim, the session that it is for, and the lane that it came from.
#[derive(Debug)]
#[must_use = "a claim that is dropped leaves its task running until the worker is declared dead"]
pub struct Claimed {
    /// Index into the sessions given to [`ClaimSession::claim`].
    pub session: usize,
    /// The lane in which the task was found.
    pub lane: Lane,
    /// The claimed task.
    pub claim: Claim,
}

/// The worker's session for claims, with its prepared statements.
#[derive(Debug)]
pub struct ClaimSession {
    client: Client,
    statement: Statement,
    /// [`LANES`] or [`LANES_OF`]. Planning them took ten times as long as executing them.
    lanes: Statement,
    watch_lanes: Statement,
    columns: ClaimColumns,
    queues: Option<Vec<String>>,
    worker: WorkerId,
}

impl ClaimSession {
    /// Prepares the claim on a connection of its own, whose commits do not wait for the disk. This
    /// is safe because WAL is written in order: if an effect of a task survives a crash, its claim
    /// does too.
    ///
    /// `queues`: the queues that the worker serves, any queue if it is `None`.
    pub async fn new(
        client: Client,
        worker: WorkerId,
        queues: Option<Vec<String>>,
    ) -> Result<Self, QueueError> {
        client.batch_execute(SESSION_SETTINGS).await?;
        let types = [
            Type::TEXT_ARRAY,
            Type::TEXT_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8,
            Type::UUID,
            Type::INT4_ARRAY,
            Type::TIMESTAMPTZ_ARRAY,
            Type::INT8_ARRAY,
            Type::TEXT_ARRAY,
        ];
        let statement = client.prepare_typed(CLAIM, &types).await?;
        let columns = ClaimColumns::of(&statement)?;
        let lanes = match &queues {
            Some(_) => {
                client.prepare_typed(LANES_OF, &[Type::TEXT_ARRAY, Type::TEXT_ARRAY]).await?
            }
            None => {
                client
                    .prepare_typed(LANES, &[Type::TEXT, Type::TEXT, Type::TEXT, Type::INT8])
                    .await?
            }
        };
        let types = [Type::UUID, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT4];
        let watch_lanes = client.prepare_typed(WATCH_LANES, &types).await?;
        Ok(Self { client, statement, columns, lanes, watch_lanes, queues, worker })
    }

    /// Whether the connection is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Claims up to one task for each entry of `sessions`; a session may be listed several times.
    /// Takes tasks from the lanes in the given order, and the oldest tasks of each lane first.
    ///
    /// # Errors
    /// After an error, the claim may have taken effect nevertheless. See
    /// [`crate::transition::release::release_unknown_claims`].
    pub async fn claim(
        &self,
        lanes: &[LaneRange],
        sessions: &[SessionIdentity],
    ) -> Result<Vec<Claimed>, QueueError> {
        let queues: Vec<&str> = lanes.iter().map(|slice| slice.lane.queue.as_str()).collect();
        let priorities: Vec<&str> =
            lanes.iter().map(|slice| slice.lane.priority.as_str()).collect();
        let run_as: Vec<&str> = lanes.iter().map(|slice| slice.lane.run_as.as_str()).collect();
        let after: Vec<i64> = lanes.iter().map(|slice| slice.after.0).collect();
        let of_each: Vec<i64> = lanes.iter().map(|slice| count_of(slice.limit)).collect();
        let pids: Vec<i32> = sessions.iter().map(|session| session.pid).collect();
        let started: Vec<Timestamp> = sessions.iter().map(|session| session.started_at).collect();
        let max_tasks = count_of(sessions.len());
        let rows = self
            .client
            .query(
                &self.statement,
                &[
                    /* queues */ &queues,
                    /* priorities */ &priorities,
                    /* after */ &after,
                    /* limit */ &max_tasks,
                    /* claimed_by */ &self.worker.0,
                    /* session_pids */ &pids,
                    /* sessions_started_at */ &started,
                    /* limits of lanes */ &of_each,
                    /* run_as */ &run_as,
                ],
            )
            .await?;
        let claimed = rows.iter().map(|row| claimed_from_row(row, &self.columns));
        claimed.collect()
    }

    /// Records for `time` that the worker looks for tasks in these lanes all the time, so that enqueues
    /// need not notify. Returns `false` if another worker does so already. Without lanes, ends the
    /// record.
    pub async fn watch_lanes(&self, lanes: &[&Lane], time: Duration) -> Result<bool, QueueError> {
        let queues: Vec<&str> = lanes.iter().map(|lane| lane.queue.as_str()).collect();
        let priorities: Vec<&str> = lanes.iter().map(|lane| lane.priority.as_str()).collect();
        let run_as: Vec<&str> = lanes.iter().map(|lane| lane.run_as.as_str()).collect();
        let milliseconds = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        let params: [&(dyn ToSql + Sync); 5] = [
            /* worker */ &self.worker.0,
            /* queues */ &queues,
            /* priorities */ &priorities,
            /* run_as */ &run_as,
            /* milliseconds */ &milliseconds,
        ];
        scalar(&self.client.query_one(&self.watch_lanes, &params).await?)
    }

    /// Returns lanes with a pending task that belong to these profiles and to the served queues. Each
    /// lane comes with the time budget of the shared commits of its queue, if the queue has one. Reads
    /// up to 1000 lanes after the given one, or from the first lane on if it is `None`. Also returns
    /// the last of them, if there may be more. If the worker serves certain queues, reads all their
    /// lanes.
    pub async fn lanes(
        &self,
        profiles: &[String],
        after: Option<&Lane>,
    ) -> Result<(Vec<(Lane, Option<Duration>)>, Option<Lane>), QueueError> {
        let lane = |row: &Row| {
            let budget: Option<f64> = column(row, "shared_commit")?;
            Ok((Lane::from_row(row)?, budget.map(duration)))
        };
        if let Some(queues) = &self.queues {
            let params =
                [/* profiles */ &profiles as &(dyn ToSql + Sync), /* queues */ queues];
            let rows = self.client.query(&self.lanes, &params).await?;
            return Ok((rows.iter().map(lane).collect::<Result<_, QueueError>>()?, None));
        }
        // No lane has an empty queue, so this is before the first one.
        let (queue, priority, run_as) = after.map_or(("", Priority::ALL[0].as_str(), ""), |lane| {
            (lane.queue.as_str(), lane.priority.as_str(), lane.run_as.as_str())
        });
        let params: [&(dyn ToSql + Sync); 4] = [
            /* queue */ &queue,
            /* priority */ &priority,
            /* run_as */ &run_as,
            /* limit */ &count_of(MAX_LANES),
        ];
        let rows = self.client.query(&self.lanes, &params).await?;
        let mut lanes = rows.iter().map(lane).collect::<Result<Vec<_>, QueueError>>()?;
        let last = lanes.last().filter(|_| lanes.len() == MAX_LANES).map(|(lane, _)| lane.clone());
        lanes.retain(|(lane, _)| profiles.contains(&lane.run_as));
        Ok((lanes, last))
    }
}

fn receipt(row: &Row, at: &ClaimColumns) -> Result<Option<Receipt>, QueueError> {
    let Some(id) = at.receipt.get(row)? else { return Ok(None) };
    Ok(Some(Receipt { id, epoch: at.epoch.get(row)? }))
}

fn claimed_from_row(row: &Row, at: &ClaimColumns) -> Result<Claimed, QueueError> {
    let count = |position: Position| position.get(row).map(i32::cast_unsigned);
    let n: i64 = at.n.get(row)?;
    let queue: String = at.queue.get(row)?;
    let claim = Claim {
        id: at.id.get(row)?,
        token: at.token.get(row)?,
        attempt: count(at.attempt)?,
        failures: count(at.failures)?,
        transient_failures: count(at.transient_failures)?,
        retry: RetryPolicy {
            max_attempts: count(at.max_attempts)?,
            interval: at.retry_interval.get(row).map(duration)?,
            backoff: at.backoff.get(row)?,
            jitter: at.jitter.get(row)?,
        },
        timeout: at.timeout.get::<Option<_>>(row)?.map(duration),
        mode: at.mode.get(row)?,
        at_most_once: at.at_most_once.get(row)?,
        external: at.external.get(row)?,
        explain: at.explain.get(row)?,
        isolation: at.isolation.get(row)?,
        traceparent: at.traceparent.get::<Option<&str>>(row)?.and_then(|text| text.parse().ok()),
        comment: None,
        queue: queue.clone(),
        name: at.name.get(row)?,
        body: at
            .statement
            .get::<Option<_>>(row)?
            .map(|statement| {
                let params = at.params.get::<Option<Json<_>>>(row)?.map(|Json(values)| values);
                Ok::<_, QueueError>(Body { statement, params })
            })
            .transpose()?,
        enqueued_at: at.enqueued_at.get(row)?,
        due_at: at.due_at.get(row)?,
        claimed_at: at.claimed_at.get(row)?,
        limits: at.limits.get::<Option<_>>(row)?.unwrap_or_default(),
        run: at.run_id.get(row)?,
        receipt: receipt(row, at)?,
    };
    let session = usize::try_from(n - 1)
        .map_err(|_| QueueError::Unexpected { column: "n".to_owned(), value: n.to_string() })?;
    let lane = Lane { queue, priority: at.priority.get(row)?, run_as: at.run_as.get(row)? };
    Ok(Claimed { session, lane, claim })
}

/// Fetches statement and params of a task whose claim left them out. Returns `None` if the claim is lost.
///
/// # Errors
/// The server cannot send them, or does not answer.
pub async fn load(
    client: &impl GenericClient,
    (task, token): (TaskId, Token),
) -> Result<Option<Body>, QueueError> {
    let rows = query(client, LOAD, &[&task.0, &token.0]).await?;
    let body = |row: &Row| {
        let params = column::<Option<Json<_>>>(row, "params")?.map(|Json(values)| values);
        Ok(Body { statement: column(row, "statement")?, params })
    };
    rows.first().map(body).transpose()
}

fn count_of(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
