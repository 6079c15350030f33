//! Polls for an idle worker in one statement: whether there is work, when the next task or schedule
//! is due, which runs have pending events, and the state of the other workers.

use std::time::{Duration, SystemTime};

use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use crate::error::QueueError;
use crate::reclaim::Peer;
use crate::run::RunId;
use crate::task::WorkerId;

/// Peers are registered workers, and workers that hold claims without being registered (a loose
/// index scan over `tasks_running`): after a crash of the server no worker is registered.
const POLL: &str = "/* queue.poll */
WITH RECURSIVE holder (id) AS (
    (SELECT t.claimed_by FROM mill.tasks t WHERE t.state = 'running' AND $5
     ORDER BY t.claimed_by LIMIT 1)
    UNION ALL
    SELECT next.claimed_by FROM holder CROSS JOIN LATERAL (
        SELECT t.claimed_by FROM mill.tasks t
        WHERE t.state = 'running' AND t.claimed_by > holder.id
        ORDER BY t.claimed_by LIMIT 1) AS next
), peer (id, heartbeat, session_alive, heartbeat_age, last_heartbeat) AS (
    SELECT w.id, w.heartbeat, w.session_lock_key IN (SELECT mill.live_sessions()),
        extract(epoch FROM now() - w.heartbeat_at)::float8, w.heartbeat_at
    FROM mill.workers w WHERE w.id <> $1 AND $3
    UNION ALL
    SELECT h.id, NULL, false, NULL, NULL FROM holder h
    WHERE h.id <> $1 AND NOT EXISTS (SELECT FROM mill.workers w WHERE w.id = h.id)
), pending_run (run) AS (
    (SELECT e.run_id FROM mill.run_events e ORDER BY e.run_id LIMIT 1)
    UNION ALL
    SELECT next.run_id FROM pending_run CROSS JOIN LATERAL (
        SELECT e.run_id FROM mill.run_events e WHERE e.run_id > pending_run.run
        ORDER BY e.run_id LIMIT 1) AS next
)
SELECT
    CASE WHEN NOT $4 THEN true WHEN $2::text[] IS NULL THEN EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'pending')
        ELSE EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'pending' AND t.queue = ANY ($2)) END,
    (SELECT extract(epoch FROM t.due_at - now())::float8 FROM mill.tasks t
        WHERE t.state = 'scheduled' ORDER BY t.due_at LIMIT 1),
    p.ids, p.heartbeats, p.sessions_alive, p.heartbeat_ages,
    EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'blocked'), EXISTS (SELECT FROM mill.limits),
    ARRAY(SELECT w.weight FROM mill.priorities w ORDER BY w.priority), p.last_heartbeats,
    ARRAY(SELECT t.run FROM pending_run t LIMIT 100),
    (SELECT extract(epoch FROM s.next_tick_at - now())::float8 FROM mill.schedules s
        WHERE s.next_tick_at IS NOT NULL ORDER BY s.next_tick_at LIMIT 1)
FROM (SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(heartbeat), '{}') AS heartbeats,
        coalesce(array_agg(session_alive), '{}') AS sessions_alive, coalesce(array_agg(heartbeat_age), '{}') AS heartbeat_ages,
        coalesce(array_agg(last_heartbeat), '{}') AS last_heartbeats
    FROM peer) AS p";

/// Result of a poll.
#[derive(Clone, Debug, PartialEq)]
pub struct PollResult {
    /// Whether a task is pending in the requested queues, possibly only in a paused one.
    pub pending: bool,
    /// Time until the next scheduled task is due, if there is one; zero if it is due.
    pub next_due_in: Option<Duration>,
    /// Time until the next tick of a schedule, if there is one; zero if it is due.
    pub next_tick_in: Option<Duration>,
    /// Whether a task waits for a permit.
    pub blocked: bool,
    /// Whether any limits exist.
    pub limits: bool,
    /// Weights of the priorities, lowest first.
    pub weights: Vec<f64>,
    /// Runs with pending events, up to 100.
    pub runs: Vec<RunId>,
    /// Every other worker that is registered or, if requested, holds claims; `None` if not
    /// requested.
    pub peers: Option<Vec<Peer>>,
}

/// The optional parts of a poll, which cost extra.
#[derive(Clone, Copy, Debug)]
pub struct PollOptions {
    /// Reads the other workers; the cost is proportional to their number.
    pub peers: bool,
    /// Also reads workers that hold claims without being registered; the cost is proportional to
    /// the number of workers that hold claims, and three times as high. Only with `peers`.
    pub unregistered: bool,
    /// Checks whether a task is pending; with an old snapshot, the cost is proportional to the
    /// number of entries that died since. Without the check, `pending` is true.
    pub pending: bool,
}

/// Polls on behalf of a worker that serves these queues; `None` means all.
pub async fn poll(
    client: &impl GenericClient,
    me: WorkerId,
    queues: Option<&[String]>,
    options: PollOptions,
) -> Result<PollResult, QueueError> {
    let params: [(&(dyn ToSql + Sync), Type); 5] = [
        (&me.0, Type::UUID),
        (&queues, Type::TEXT_ARRAY),
        (&options.peers, Type::BOOL),
        (&options.pending, Type::BOOL),
        (&(options.peers && options.unregistered), Type::BOOL),
    ];
    let rows = client.query_typed(POLL, &params).await?;
    let row = &rows[0];
    let ids: Vec<uuid::Uuid> = row.try_get(2)?;
    let heartbeats: Vec<Option<i64>> = row.try_get(3)?;
    let session_alive: Vec<bool> = row.try_get(4)?;
    let heartbeat_ages: Vec<Option<f64>> = row.try_get(5)?;
    let last_heartbeats: Vec<Option<SystemTime>> = row.try_get(9)?;
    let seen = ids
        .into_iter()
        .zip(heartbeats)
        .zip(session_alive)
        .zip(heartbeat_ages)
        .zip(last_heartbeats)
        .map(|((((id, heartbeat), session_alive), heartbeat_age), last_heartbeat)| Peer {
            worker: WorkerId(id),
            heartbeat,
            session_alive,
            heartbeat_age: heartbeat_age.map(seconds),
            last_heartbeat,
        });
    Ok(PollResult {
        pending: row.try_get(0)?,
        next_due_in: row.try_get::<_, Option<f64>>(1)?.map(seconds),
        next_tick_in: row.try_get::<_, Option<f64>>(11)?.map(seconds),
        blocked: row.try_get(6)?,
        limits: row.try_get(7)?,
        weights: row.try_get(8)?,
        runs: row.try_get::<_, Vec<i64>>(10)?.into_iter().map(RunId).collect(),
        peers: options.peers.then(|| seen.collect()),
    })
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.max(0.0))
}
