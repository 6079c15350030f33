//! running → pending | blocked | finished, when the worker died.
//!
//! Any worker can reclaim the tasks of a dead worker, after it has terminated the backends that may
//! still run the dead worker's SQL. Takes row locks with SKIP LOCKED only, so it never waits for a
//! finish that is about to commit.

use std::time::{Duration, SystemTime};

use conninfo::GenericClient;
use pgmill_client::TaskId;

use crate::error::QueueError;
use crate::id::WorkerId;
use crate::row::{Param, column, execute, first, one, only, query};
use crate::transition::claim::SessionIdentity;

/// SQL condition: worker $1 has sent no heartbeat since the one at $2 (null if it was not
/// registered). So a worker that returns while it is being reclaimed keeps its claims.
macro_rules! still_dead {
    () => {
        "(SELECT w.heartbeat_at FROM mill.workers w WHERE w.id = $1) IS NOT DISTINCT FROM $2"
    };
}

/// Compares the start time as well, because the pid may belong to another backend by now.
const END_BACKENDS: &str = concat!(
    "SELECT /* queue.end_backends */ count(*) FILTER (WHERE pg_terminate_backend(a.pid))
FROM mill.tasks t JOIN pg_stat_activity a
    ON a.pid = t.session_pid AND a.backend_start = t.session_started_at
WHERE t.state = 'running' AND t.claimed_by = $1 AND ",
    still_dead!()
);

/// A worker that is cut off or frozen leaves sessions, and one that listens keeps the server's queue of
/// notifications from being cleaned. Their names end with the beginning of the worker's id. A COMMIT that
/// waits for a synchronous standby is not ended, because it would become visible.
const END_SESSIONS: &str = concat!(
    "SELECT /* queue.end_sessions */ count(*) FILTER (WHERE pg_terminate_backend(a.pid))
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name LIKE 'pgmill % worker ' || $3
    AND a.wait_event IS DISTINCT FROM 'SyncRep' AND ",
    still_dead!()
);

const END_SESSION: &str =
    "SELECT /* queue.end_session */ pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.pid = $1 AND a.backend_start = $2";

/// If the start time of a backend is hidden from this login, it is assumed to be the same backend. If
/// its state is hidden, the backend is assumed to execute a statement.
const SESSION_GONE: &str =
    "SELECT /* queue.session_gone */ NOT EXISTS (SELECT FROM pg_stat_activity a
    WHERE a.pid = $1 AND coalesce(a.backend_start = $2, true)
        AND NOT coalesce(a.state LIKE 'idle%'
            AND clock_timestamp() - a.state_change > $3 * interval '1 second', false)) AS gone";

/// A backend that waits for the rest of a message is active, and also waits for the client.
const END_IDLE_TRANSACTION: &str = "SELECT /* queue.end_idle_transaction */ count(*) = 0 AS ended,
    count(CASE WHEN a.state LIKE 'idle in transaction%' OR a.wait_event = 'ClientRead'
        THEN pg_terminate_backend(a.pid) END) AS signalled
FROM pg_stat_activity a WHERE a.pid = $1 AND a.backend_start = $2 AND a.xact_start IS NOT NULL";

const WAITS_FOR_STANDBY: &str =
    "SELECT /* queue.waits_for_standby */ EXISTS (SELECT FROM pg_stat_activity a
    WHERE a.pid = $1 AND a.backend_start = $2 AND a.wait_event = 'SyncRep') AS waits";

/// Maximum number of tasks in a transaction. Each task takes up to two subtransactions, for the log
/// of its schedule (`mill.log_schedule_event`) and for notifications (`mill.notify_first`). A backend
/// caches 64 of them: above that, every snapshot on the server becomes more expensive.
pub const BATCH_SIZE: u16 = 30;

const RECLAIM: &str = concat!(
    "SELECT /* queue.reclaim */ r.task_id, r.released
FROM (SELECT WHERE ",
    still_dead!(),
    ") AS dead CROSS JOIN LATERAL mill.reclaim($1, $3) AS r"
);

/// Returns no row if the worker is alive.
const REMAINING: &str = concat!(
    "SELECT /* queue.remaining_claims */ (SELECT count(*) FROM mill.tasks t
    WHERE t.state = 'running' AND t.claimed_by = $1 AND t.receipt IS NULL) AS remaining
WHERE ",
    still_dead!()
);

/// Deletes the worker unless it still holds a claim, and notifies subscribers of its loss.
const DELETE_WORKER: &str = "WITH /* queue.delete_worker */ gone AS (
    DELETE FROM mill.workers w WHERE w.id = $1 AND w.heartbeat_at = $2
        AND NOT EXISTS (SELECT FROM mill.tasks t WHERE t.state = 'running' AND t.claimed_by = $1)
    RETURNING w.id, w.heartbeat_at, w.readers
)
SELECT mill.notify('worker_lost', jsonb_build_object('worker', g.id, 'host', s.host, 'pid', s.pid),
    jsonb_build_object('heartbeat_at', g.heartbeat_at, 'readers', g.readers, 'tasks',
        (SELECT count(*) FROM mill.attempts a WHERE a.finished_at > g.heartbeat_at AND a.worker_id = g.id
            AND a.outcome <> 'succeeded' AND a.outcome <> 'cancelled' AND a.outcome IN ('lost', 'unknown'))))
FROM gone g LEFT JOIN mill.worker_starts s ON s.id = g.id";

/// Another worker, as recorded in the database.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peer {
    /// The worker's id.
    pub worker: WorkerId,
    /// Heartbeat counter of the worker; `None` if the worker is not registered.
    pub heartbeat: Option<i64>,
    /// Whether the worker's control session exists.
    pub session_alive: bool,
    /// Time since the worker's last heartbeat, by the database clock; `None` if the worker is not
    /// registered, or if the heartbeat is in the future because the clock was set back.
    pub heartbeat_age: Option<Duration>,
    /// Time of its last heartbeat.
    pub last_heartbeat: Option<SystemTime>,
    /// Time between two heartbeats of the worker, by its settings.
    pub heartbeat_interval: Option<Duration>,
}

/// A worker that is considered dead, and the time of its last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadWorker {
    /// The worker's id.
    pub worker: WorkerId,
    /// Time of the last heartbeat, by the database clock; `None` if the worker was not registered.
    pub last_heartbeat: Option<SystemTime>,
}

impl DeadWorker {
    fn params(&self) -> [&dyn Param; 2] {
        [&self.worker.0, &self.last_heartbeat]
    }
}

/// Result of one pass over a dead worker.
#[derive(Debug, Default)]
pub struct Reclaimed {
    /// Tasks that may be claimed again.
    pub released: Vec<TaskId>,
    /// Tasks that ended as lost, unknown or cancelled.
    pub ended: Vec<TaskId>,
    /// Number of claims in the queue's database that remain, because their backend still exists or their completion is
    /// about to commit. 0 for a worker that sends heartbeats again, which keeps its claims.
    pub remaining: u64,
}

/// Terminates the backends of a dead worker's claims, unless the worker sends heartbeats again.
/// Returns the number of backends signalled.
///
/// # Errors
/// Fails if the role lacks `pg_signal_backend`. Without `pg_read_all_stats` it finds no backends.
pub async fn end_backends(
    client: &impl GenericClient,
    dead: DeadWorker,
) -> Result<i64, QueueError> {
    one(client, END_BACKENDS, &dead.params()).await
}

/// Terminates all other sessions of a dead worker, unless the worker sends heartbeats again. Returns
/// the number of sessions signalled.
///
/// # Errors
/// Fails if the role lacks `pg_signal_backend`.
pub async fn end_sessions(
    client: &impl GenericClient,
    dead: DeadWorker,
) -> Result<i64, QueueError> {
    let [worker, last_heartbeat] = dead.params();
    let prefix = dead.worker.prefix();
    one(client, END_SESSIONS, &[worker, last_heartbeat, &prefix]).await
}

/// Terminates one backend, if both pid and start time match.
///
/// # Errors
/// Fails if the role lacks the privilege.
pub async fn end_session(
    client: &impl GenericClient,
    session: SessionIdentity,
) -> Result<(), QueueError> {
    execute(client, END_SESSION, &session.params()).await
}

/// Terminates a backend if it waits for its client in a transaction. Returns whether it has no transaction any more.
///
/// # Errors
/// Fails if the role lacks the privilege to end the session.
pub async fn end_idle_transaction(
    client: &impl GenericClient,
    session: SessionIdentity,
) -> Result<bool, QueueError> {
    column(&only(client, END_IDLE_TRANSACTION, &session.params()).await?, "ended")
}

/// Returns whether the COMMIT of a backend waits for a synchronous standby.
///
/// # Errors
/// Fails if the role lacks the privilege to see other sessions.
pub async fn waits_for_standby(
    client: &impl GenericClient,
    session: SessionIdentity,
) -> Result<bool, QueueError> {
    one(client, WAITS_FOR_STANDBY, &session.params()).await
}

/// Returns whether a backend has ended, or has been idle for longer than `max_idle`.
pub async fn session_gone(
    client: &impl GenericClient,
    session: SessionIdentity,
    max_idle: Option<Duration>,
) -> Result<bool, QueueError> {
    let max_idle_seconds = max_idle.map(|max_idle| max_idle.as_secs_f64());
    let [pid, started_at] = session.params();
    one(client, SESSION_GONE, &[pid, started_at, &max_idle_seconds]).await
}

/// Releases the claims of a dead worker whose backends are gone, and deletes the worker once it
/// holds no claim. Does nothing if the worker has returned.
pub async fn reclaim(
    client: &impl GenericClient,
    dead: DeadWorker,
) -> Result<Reclaimed, QueueError> {
    let mut reclaimed = Reclaimed::default();
    let [worker, last_heartbeat] = dead.params();
    loop {
        let params = [worker, last_heartbeat, &i32::from(BATCH_SIZE)];
        let rows = query(client, RECLAIM, &params).await?;
        for row in &rows {
            let id = column(row, "task_id")?;
            if column(row, "released")? { &mut reclaimed.released } else { &mut reclaimed.ended }
                .push(id);
        }
        if rows.len() < usize::from(BATCH_SIZE) {
            break;
        }
    }
    if let Some(remaining) = first(client, REMAINING, &dead.params()).await? {
        reclaimed.remaining = i64::cast_unsigned(remaining);
        if reclaimed.remaining == 0 {
            execute(client, DELETE_WORKER, &dead.params()).await?;
        }
    }
    Ok(reclaimed)
}
