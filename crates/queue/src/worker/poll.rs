//! The poll of an idle worker. One statement returns whether there is work, when the next task or
//! schedule is due, which runs have pending events, and the state of the other workers.

use std::time::{Duration, SystemTime};

use conninfo::GenericClient;
use pgmill_client::RunId;

use crate::error::QueueError;
use crate::id::WorkerId;
use crate::row::{Param, column, duration, only};
use crate::transition::reclaim::Peer;

/// SQL expression: whether the control session of worker `w` exists. A session that the server hides
/// counts as alive.
macro_rules! session_alive {
    () => {
        "coalesce((w.session_pid, w.session_started_at)
            IN (SELECT b.pid, b.started_at FROM mill.live_backends() b), true)"
    };
}
pub(crate) use session_alive;

/// Peers are registered workers, and workers that hold claims but are not registered. The latter
/// exist after a crash of the server, when no worker is registered, and are found with a loose
/// index scan over `tasks_running`.
///
/// Whether a task is pending or blocked is read in the order of an index, which makes the planner
/// read that index. EXISTS has no order, so it scans the table if many tasks have the state, and reads
/// all tasks of other states that come before.
const POLL: &str = concat!(
    "WITH /* queue.poll */ RECURSIVE holder (id) AS (
    (SELECT t.claimed_by FROM mill.tasks t WHERE t.state = 'running' AND $5
     ORDER BY t.claimed_by LIMIT 1)
    UNION ALL
    SELECT next.claimed_by FROM holder CROSS JOIN LATERAL (
        SELECT t.claimed_by FROM mill.tasks t
        WHERE t.state = 'running' AND t.claimed_by > holder.id
        ORDER BY t.claimed_by LIMIT 1) AS next
), peer (id, heartbeat, session_alive, heartbeat_age, last_heartbeat, heartbeat_interval) AS (
    SELECT w.id, w.heartbeat, ",
    session_alive!(),
    ", extract(epoch FROM now() - w.heartbeat_at)::float8, w.heartbeat_at,
        extract(epoch FROM w.heartbeat_interval)::float8
    FROM mill.workers w WHERE w.id <> $1 AND $3
    UNION ALL
    SELECT h.id, NULL, false, NULL, NULL, NULL FROM holder h
    WHERE h.id <> $1 AND NOT EXISTS (SELECT FROM mill.workers w WHERE w.id = h.id)
), pending_run (run) AS (
    (SELECT e.run_id FROM mill.run_events e WHERE e.run_id > $8 ORDER BY e.run_id LIMIT 1)
    UNION ALL
    SELECT next.run_id FROM pending_run CROSS JOIN LATERAL (
        SELECT e.run_id FROM mill.run_events e WHERE e.run_id > pending_run.run
        ORDER BY e.run_id LIMIT 1) AS next
)
SELECT
    CASE WHEN NOT $4 THEN true WHEN $2::text[] IS NULL
        THEN (SELECT t.id FROM mill.tasks t WHERE t.state = 'pending' ORDER BY t.queue LIMIT 1) IS NOT NULL
        ELSE EXISTS (SELECT FROM unnest($2) AS s (queue) WHERE (SELECT t.id FROM mill.tasks t
            WHERE t.state = 'pending' AND t.queue = s.queue ORDER BY t.priority LIMIT 1) IS NOT NULL) END AS pending,
    (SELECT extract(epoch FROM t.due_at - now())::float8 FROM mill.tasks t
        WHERE t.state = 'scheduled' ORDER BY t.due_at LIMIT 1) AS next_due_in,
    p.ids, p.heartbeats, p.sessions_alive, p.heartbeat_ages, p.heartbeat_intervals,
    (SELECT t.id FROM mill.tasks t WHERE t.state = 'blocked' ORDER BY t.blocking_limit_id LIMIT 1) IS NOT NULL AS blocked,
    EXISTS (SELECT FROM mill.limits) AS limits,
    ARRAY(SELECT w.weight FROM mill.priorities w ORDER BY w.priority) AS weights, p.last_heartbeats,
    ARRAY(SELECT t.run FROM pending_run t LIMIT 100) AS runs,
    EXISTS (SELECT FROM mill.backfills b WHERE b.state = 'running' AND NOT (SELECT mill.fleet_paused())
        AND (SELECT count(*) FROM mill.runs r WHERE r.schedule_id = b.schedule_id AND r.state = 'running'
            AND r.backfill_id = b.id) < CASE WHEN b.next_at IS NULL THEN 1 ELSE b.max_running END) AS backfills,
    extract(epoch FROM (SELECT s.next_tick_at FROM mill.schedules s WHERE s.next_tick_at IS NOT NULL
        AND NOT (SELECT mill.fleet_paused()) ORDER BY s.next_tick_at LIMIT 1) - now())::float8 AS next_tick_in,
    extract(epoch FROM least((SELECT r.late_at FROM mill.runs r WHERE r.state = 'running' AND r.late_at IS NOT NULL
            AND r.late_since IS NULL ORDER BY r.late_at LIMIT 1),
        (SELECT r.timeout_at FROM mill.runs r WHERE r.state = 'running' AND r.timeout_at IS NOT NULL
            AND r.cancel_reason IS NULL ORDER BY r.timeout_at LIMIT 1)) - now())::float8 AS next_deadline_in,
    mill.notifications_due($6) AS notifications_due, mill.conditions_due() AS conditions_due,
    CASE WHEN $7 = '{}' THEN $7 ELSE mill.targets_with_conditions($7) END AS targets_to_check,
    CASE WHEN $7 = '{}' THEN $7 ELSE mill.held_targets($7) END AS held_targets
FROM (SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(heartbeat), '{}') AS heartbeats,
        coalesce(array_agg(session_alive), '{}') AS sessions_alive, coalesce(array_agg(heartbeat_age), '{}') AS heartbeat_ages,
        coalesce(array_agg(last_heartbeat), '{}') AS last_heartbeats,
        coalesce(array_agg(heartbeat_interval), '{}') AS heartbeat_intervals
    FROM peer) AS p"
);

/// The limit of runs in [`POLL`].
const MAX_RUNS: usize = 100;

/// Result of a poll.
#[derive(Clone, Debug, PartialEq)]
pub struct PollResult {
    /// Whether a task is pending in the requested queues. The queue of the task may be paused.
    pub pending: bool,
    /// Time until the next scheduled task is due, if there is one; zero if it is due already.
    pub next_due_in: Option<Duration>,
    /// Time until the next tick of a schedule, if there is one; zero if it is due already. `None`
    /// while the fleet is paused.
    pub next_tick_in: Option<Duration>,
    /// Time until the next deadline or timeout of a run, if there is one; zero if it has passed. A
    /// pause of the fleet does not stop it.
    pub next_deadline_in: Option<Duration>,
    /// Whether a backfill can continue.
    pub backfills: bool,
    /// Whether a task waits for a permit.
    pub blocked: bool,
    /// Whether any limits exist.
    pub limits: bool,
    /// Weights of the priorities, lowest first.
    pub weights: Vec<f64>,
    /// Runs with pending events, up to 100, in the order of their ids.
    pub runs: Vec<RunId>,
    /// [`PollOptions::runs_after`] of the poll that returns the next runs; 0 if there are none.
    pub runs_after: RunId,
    /// Whether there are notifications to send or backlogs to check.
    pub notifications_due: bool,
    /// Whether the conditions of queues are to be checked.
    pub conditions_due: bool,
    /// Those of the worker's targets that have conditions to check.
    pub targets_to_check: Vec<String>,
    /// Those of the worker's targets that are held back.
    pub held_targets: Vec<String>,
    /// Every other worker that is registered and, if requested, every other worker that holds
    /// claims; `None` if the poll did not read the other workers.
    pub peers: Option<Vec<Peer>>,
}

/// The parts of a poll that cost extra and are optional.
#[derive(Clone, Copy, Debug)]
pub struct PollOptions {
    /// Whether to read the other workers. The cost is proportional to their number.
    pub peers: bool,
    /// Whether to also read workers that hold claims but are not registered. The cost is
    /// proportional to the number of workers that hold claims, and three times as high per worker.
    /// Requires `peers`.
    pub unregistered: bool,
    /// Whether to check if a task is pending. While an old snapshot is open, the cost is
    /// proportional to the number of index entries that became dead since. Without the check,
    /// `pending` is true.
    pub pending: bool,
    /// The run after which to look for runs with pending events; 0 for the first one.
    pub runs_after: RunId,
}

/// What a worker serves, and where it can send to.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The queues; `None` means all queues.
    pub queues: Option<Vec<String>>,
    /// Destinations of notifications.
    pub destinations: Vec<String>,
    /// Targets that the worker reaches.
    pub targets: Vec<String>,
}

/// Polls for a worker.
pub async fn poll(
    client: &impl GenericClient,
    me: WorkerId,
    served: &Served,
    options: PollOptions,
) -> Result<PollResult, QueueError> {
    let params: [&dyn Param; 8] = [
        &me.0,
        &served.queues,
        &options.peers,
        &options.pending,
        &(options.peers && options.unregistered),
        &served.destinations,
        &served.targets,
        &options.runs_after.0,
    ];
    let row = &only(client, POLL, &params).await?;
    let ids: Vec<WorkerId> = column(row, "ids")?;
    let heartbeats: Vec<Option<i64>> = column(row, "heartbeats")?;
    let sessions_alive: Vec<bool> = column(row, "sessions_alive")?;
    let heartbeat_ages: Vec<Option<f64>> = column(row, "heartbeat_ages")?;
    let last_heartbeats: Vec<Option<SystemTime>> = column(row, "last_heartbeats")?;
    let heartbeat_intervals: Vec<Option<f64>> = column(row, "heartbeat_intervals")?;
    let seen = ids
        .into_iter()
        .zip(heartbeats)
        .zip(sessions_alive)
        .zip(heartbeat_ages)
        .zip(last_heartbeats.into_iter().zip(heartbeat_intervals))
        .map(|((((worker, heartbeat), session_alive), age), (last_heartbeat, interval))| Peer {
            worker,
            heartbeat,
            session_alive,
            // The clock was set back after the heartbeat.
            heartbeat_age: age.filter(|age| *age >= 0.0).map(duration),
            last_heartbeat,
            heartbeat_interval: interval.map(duration),
        });
    let runs: Vec<RunId> = column(row, "runs")?;
    let last = runs.last().filter(|_| runs.len() == MAX_RUNS);
    Ok(PollResult {
        pending: column(row, "pending")?,
        next_due_in: column::<Option<_>>(row, "next_due_in")?.map(duration),
        next_tick_in: column::<Option<_>>(row, "next_tick_in")?.map(duration),
        next_deadline_in: column::<Option<_>>(row, "next_deadline_in")?.map(duration),
        backfills: column(row, "backfills")?,
        blocked: column(row, "blocked")?,
        limits: column(row, "limits")?,
        weights: column(row, "weights")?,
        runs_after: last.copied().unwrap_or(RunId(0)),
        runs,
        notifications_due: column(row, "notifications_due")?,
        conditions_due: column(row, "conditions_due")?,
        targets_to_check: column(row, "targets_to_check")?,
        held_targets: column(row, "held_targets")?,
        peers: options.peers.then(|| seen.collect()),
    })
}
