//! Heartbeats of workers, and the requests that the response to a heartbeat contains.
//!
//! A heartbeat writes one row of an unlogged table. It never writes a task: a write to a running
//! task's row would make the finish of a REPEATABLE READ task fail.

use std::collections::BTreeMap;
use std::time::Duration;

use conninfo::GenericClient;
use pgmill_client::TaskId;
use serde::{Deserialize, Serialize};
use tokio_postgres::types::Json;

use crate::error::QueueError;
use crate::id::{Token, WorkerId};
use crate::row::{Param, column, execute, first, from_row, one, query};

/// Names the session as the control session, whose end shows that the worker is probably dead.
const REGISTER: &str = "WITH /* queue.register */ started AS (
    INSERT INTO mill.worker_starts (id, pid, host, version, schema_version) VALUES ($1, $2, $3, $4, $10)
    ON CONFLICT DO NOTHING
)
INSERT INTO mill.workers (id, session_pid, session_started_at, readers, queues, heartbeat_interval, orphan_timeout,
    profiles, destinations, draining)
SELECT $1, a.pid, a.backend_start, $5, $6, make_interval(secs => $7), make_interval(secs => $8), $9, $11, $12
    FROM pg_stat_get_activity(pg_backend_pid()) AS a
ON CONFLICT (id) DO UPDATE SET heartbeat_at = now(), heartbeat = workers.heartbeat + 1,
    session_pid = excluded.session_pid, session_started_at = excluded.session_started_at
RETURNING xmax = 0 AS new";

const DETECT_CRASH: &str = "SELECT /* queue.detect_crash */ mill.detect_crash()";

const HEARTBEAT: &str = "UPDATE /* queue.heartbeat */ mill.workers w SET heartbeat = w.heartbeat + 1, heartbeat_at = now(), busy = $2,
    error = $5, error_since = CASE WHEN $5 IS NOT NULL THEN coalesce(w.error_since, now()) END, unconnected = $6
WHERE w.id = $1
RETURNING w.draining,
    ARRAY(SELECT r.task_id FROM mill.cancel_requests r WHERE r.task_id = ANY ($3)) AS cancel,
    ARRAY(SELECT claim.token FROM unnest($3, $4) AS claim (id, token)
        WHERE NOT EXISTS (SELECT FROM mill.tasks t WHERE t.id = claim.id AND t.token = claim.token)) AS lost,
    (SELECT coalesce(jsonb_object_agg(r.profile, r.reserved), '{}') FROM mill.reserved_by_profile() r
        WHERE r.worker_id = w.id AND r.reserved > 0) AS reserved,
    ARRAY(SELECT r.rolname::text FROM pg_roles r WHERE r.rolsuper AND r.rolname = ANY ($7)) AS superusers,
    to_regclass('mill.attempts_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NULL AS history_missing";

const DEREGISTER: &str = "DELETE /* queue.deregister */ FROM mill.workers w WHERE w.id = $1";

/// Registration data of a worker.
#[derive(Clone, Debug)]
pub struct WorkerRegistration {
    /// The worker's id.
    pub worker: WorkerId,
    /// Process id of the worker on its host.
    pub pid: u32,
    /// Name of the worker's host.
    pub host: String,
    /// Version of pgmill.
    pub version: &'static str,
    /// Number of readers: the number of tasks that the worker runs at once.
    pub readers: u32,
    /// Number of readers per profile. The empty name stands for tasks without a profile.
    pub profiles: BTreeMap<String, u32>,
    /// Queues that the worker serves; `None` means every queue.
    pub queues: Option<Vec<String>>,
    /// Names of the destinations of notifications that the worker is configured for.
    pub destinations: Vec<String>,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
    /// Time without a heartbeat after which the worker is considered dead.
    pub orphan_timeout: Duration,
}

/// What a worker reports with a heartbeat.
#[derive(Debug, Default)]
pub struct HeartbeatReport<'a> {
    /// Number of readers that run a task.
    pub busy: usize,
    /// The claims of these tasks.
    pub claims: &'a [(TaskId, Token)],
    /// Error that the worker meets again and again.
    pub error: Option<&'a str>,
    /// Logins with readers that cannot connect.
    pub unconnected: &'a [UnconnectedReaders],
    /// Logins of the queue's database that must not be superusers.
    pub task_logins: &'a [&'a str],
}

/// Readers of one profile that cannot open a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct UnconnectedReaders {
    /// Name of the profile; empty for tasks without a profile.
    pub profile: String,
    /// Name of the login.
    pub login: String,
    /// Number of readers.
    pub readers: u32,
    /// Number of readers that have a session.
    pub connected: u32,
    /// Number of readers whose last try to open a session has failed.
    pub failed: u32,
    /// Error of the last failed try. It contains no secret.
    pub error: String,
    /// Seconds since the first failed try.
    pub seconds: f64,
}

/// The response to a heartbeat.
#[derive(Debug, Default)]
pub struct HeartbeatResponse {
    /// Whether the worker must stop claiming.
    pub draining: bool,
    /// Tasks that the worker is running and that have a cancel request.
    pub cancel: Vec<TaskId>,
    /// Tokens of claims that are no longer valid, because they were reclaimed or finished a moment
    /// ago. These are tokens and not task ids, because the same task may have been claimed again
    /// under a new token before the worker reads the response.
    pub lost: Vec<Token>,
    /// Number of readers of each profile that run only tasks of priority reserved.
    pub reserved: BTreeMap<String, u32>,
    /// Those of the reported task logins that are superusers.
    pub superusers: Vec<String>,
    /// Whether history has no partition for today, so that the end of no task can be recorded.
    pub history_missing: bool,
}

from_row! {
    row => HeartbeatResponse {
        draining, cancel, lost, reserved: column::<Json<_>>(row, "reserved")?.0, superusers, history_missing,
    }
}

/// Registers the worker, and returns whether it was not registered before. The session of `client`
/// becomes its control session. `draining`: whether the worker drained when
/// it lost its registration. Without effect if the worker is still registered, because an operator
/// may have ended the drain meanwhile.
pub async fn register(
    client: &impl GenericClient,
    registration: &WorkerRegistration,
    draining: bool,
) -> Result<bool, QueueError> {
    query(client, DETECT_CRASH, &[]).await?;
    let params: [&dyn Param; 12] = [
        /* id */ &registration.worker.0,
        &registration.pid.cast_signed(),
        &registration.host,
        &registration.version,
        &registration.readers.cast_signed(),
        &registration.queues,
        &registration.heartbeat_interval.as_secs_f64(),
        &registration.orphan_timeout.as_secs_f64(),
        &Json(&registration.profiles),
        /* schema_version */ &crate::schema::VERSION,
        &registration.destinations,
        &draining,
    ];
    one(client, REGISTER, &params).await
}

/// Sends a heartbeat. Returns `None` if the worker is not registered or no longer registered, and must
/// register again.
pub async fn heartbeat(
    client: &impl GenericClient,
    worker: WorkerId,
    report: &HeartbeatReport<'_>,
) -> Result<Option<HeartbeatResponse>, QueueError> {
    let HeartbeatReport { busy, claims, error, unconnected, task_logins } = *report;
    let unconnected = (!unconnected.is_empty()).then_some(Json(unconnected));
    let ids: Vec<i64> = claims.iter().map(|(id, _)| id.0).collect();
    let tokens: Vec<uuid::Uuid> = claims.iter().map(|(_, token)| token.0).collect();
    let busy = i32::try_from(busy).unwrap_or(i32::MAX);
    let params: [&dyn Param; 7] = [
        /* id */ &worker.0,
        &busy,
        /* claim ids */ &ids,
        /* claim tokens */ &tokens,
        &error,
        &unconnected,
        /* task logins */ &task_logins,
    ];
    first(client, HEARTBEAT, &params).await
}

/// Removes the worker from the list of live workers at a graceful shutdown.
pub async fn deregister(client: &impl GenericClient, worker: WorkerId) -> Result<(), QueueError> {
    execute(client, DEREGISTER, &[&worker.0]).await
}
