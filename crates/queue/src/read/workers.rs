//! The workers of the fleet, both live and stale.

use std::collections::BTreeMap;

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::types::Json;

use crate::error::QueueError;
use crate::heartbeat::UnconnectedReaders;
use crate::id::WorkerId;
use crate::row::{column, from_row, rows};
use crate::worker::poll::session_alive;

/// Counts running tasks through the index `tasks_running`, because `busy` is the older value of the
/// worker's last heartbeat.
const WORKERS: &str = concat!(
    "SELECT /* queue.workers */ w.id, s.host, s.pid, s.version, s.started_at, w.heartbeat_at,
    extract(epoch FROM now() - w.heartbeat_at)::float8 AS heartbeat_age_seconds,
    extract(epoch FROM w.orphan_timeout)::float8 AS orphan_timeout_seconds,
    now() - w.heartbeat_at < w.orphan_timeout AS alive,
    ",
    session_alive!(),
    " AS session_alive, w.draining, w.readers,
    (SELECT count(*) FROM mill.tasks t WHERE t.state = 'running' AND t.claimed_by = w.id) AS running,
    w.queues, coalesce(r.readers, 0) AS reserved, s.schema_version, w.error,
    extract(epoch FROM now() - w.error_since)::float8 AS error_seconds,
    w.profiles, coalesce(w.unconnected, '[]') AS unconnected
FROM mill.workers w LEFT JOIN mill.worker_starts s ON s.id = w.id
    LEFT JOIN (SELECT p.worker_id, sum(p.reserved)::int4 AS readers FROM mill.reserved_by_profile() p
        GROUP BY p.worker_id) AS r ON r.worker_id = w.id
ORDER BY s.host, s.pid, w.id"
);

/// A worker process.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Worker {
    /// Random id, new at each process start.
    pub id: WorkerId,
    /// Name of its host.
    pub host: Option<String>,
    /// Process id on that host.
    pub pid: Option<i32>,
    /// Version of pgmill.
    pub version: Option<String>,
    /// The schema version for which the program was built.
    pub schema_version: Option<i32>,
    /// Start of the process.
    pub started_at: Option<Timestamp>,
    /// Time of its last heartbeat.
    pub heartbeat_at: Timestamp,
    /// Age of its last heartbeat in seconds, by the database clock.
    pub heartbeat_age_seconds: f64,
    /// Seconds without a heartbeat after which the worker is considered dead.
    pub orphan_timeout_seconds: f64,
    /// Whether the age of the last heartbeat is below the orphan timeout.
    pub alive: bool,
    /// Whether the worker's control session is connected.
    pub session_alive: bool,
    /// Whether the worker has stopped claiming.
    pub draining: bool,
    /// Number of readers: the number of tasks that the worker can run at once.
    pub readers: i32,
    /// Number of readers that run only tasks of priority reserved.
    pub reserved: i32,
    /// Number of tasks that the worker is running.
    pub running: i64,
    /// Queues that the worker serves; `None` means every queue.
    pub queues: Option<Vec<String>>,
    /// Error that an operation of the worker meets again and again, such as recording the end of a
    /// task.
    pub error: Option<String>,
    /// Seconds since the heartbeat that first reported an error.
    pub error_seconds: Option<f64>,
    /// Number of readers per profile. The empty name stands for tasks without a profile.
    pub profiles: BTreeMap<String, u32>,
    /// Logins with readers that cannot open a session.
    pub unconnected: Vec<UnconnectedReaders>,
}

from_row! {
    row => Worker {
        id, host, pid, version, schema_version, started_at, heartbeat_at, heartbeat_age_seconds,
        orphan_timeout_seconds, alive, session_alive, draining, readers, reserved, running, queues,
        error, error_seconds, profiles: column::<Json<_>>(row, "profiles")?.0,
        unconnected: column::<Json<_>>(row, "unconnected")?.0,
    }
}

impl Worker {
    /// Returns whether the worker claims tasks of this queue.
    #[must_use]
    pub fn serves(&self, queue: &str) -> bool {
        self.alive
            && self.queues.as_ref().is_none_or(|queues| queues.iter().any(|name| name == queue))
    }

    /// Returns `host:pid`, or the id if host and pid are unknown.
    #[must_use]
    pub fn label(&self) -> String {
        worker_label(self.host.as_deref(), self.pid, Some(self.id)).unwrap_or_default()
    }
}

/// Returns `host:pid` of a worker, or else the first digits of its id, as `mill.why` does.
#[must_use]
pub fn worker_label(host: Option<&str>, pid: Option<i32>, id: Option<WorkerId>) -> Option<String> {
    match (host, pid) {
        (Some(host), Some(pid)) => Some(format!("{host}:{pid}")),
        _ => id.map(WorkerId::prefix),
    }
}

/// Returns every worker that has registered and has neither deregistered nor been reclaimed.
pub async fn workers(client: &impl GenericClient) -> Result<Vec<Worker>, QueueError> {
    rows(client, WORKERS, &[]).await
}
