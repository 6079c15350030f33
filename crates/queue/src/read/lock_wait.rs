//! Reports what an operator's session waits for. The query runs in another session.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::row::{column, one, query};

const BACKEND_PID: &str = "SELECT /* queue.backend_pid */ pg_backend_pid()";

/// Reads only the first blocking session, because all others wait for the same thing. Columns that
/// the role may not see are null.
const LOCK_WAIT: &str = "SELECT /* queue.lock_wait */ a.wait_event = 'SyncRep' AS standby, b.pid, b.usename::text AS login,
    b.wait_event = 'SyncRep' AS for_standby, extract(epoch FROM now() - b.xact_start)::float8 AS seconds
FROM pg_stat_activity a
LEFT JOIN LATERAL (SELECT s.* FROM unnest(pg_blocking_pids(a.pid)) AS blocking (pid)
    JOIN pg_stat_activity s ON s.pid = blocking.pid ORDER BY s.xact_start LIMIT 1) AS b ON true
WHERE a.pid = $1 AND a.state = 'active' AND (a.wait_event_type = 'Lock' OR a.wait_event = 'SyncRep')";

/// The reason why a statement waits.
#[derive(Clone, Debug, PartialEq)]
pub enum LockWait {
    /// The statement's commit is complete locally and waits for a synchronous standby.
    Standby,
    /// Another session holds a lock.
    Session {
        /// Process id of that session; `None` if it has just ended.
        pid: Option<i32>,
        /// Login of that session.
        login: Option<String>,
        /// Whether that session itself waits for a synchronous standby.
        for_standby: bool,
        /// Age of its transaction, in seconds.
        seconds: Option<f64>,
    },
}

/// Returns the process id of the session's backend.
pub async fn backend_pid(client: &impl GenericClient) -> Result<i32, QueueError> {
    one(client, BACKEND_PID, &[]).await
}

/// Returns what that backend waits for, or `None` if it is not blocked.
pub async fn lock_wait(
    client: &impl GenericClient,
    backend: i32,
) -> Result<Option<LockWait>, QueueError> {
    let rows = query(client, LOCK_WAIT, &[&backend]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    if column(row, "standby")? {
        return Ok(Some(LockWait::Standby));
    }
    Ok(Some(LockWait::Session {
        pid: column(row, "pid")?,
        login: column(row, "login")?,
        for_standby: column::<Option<_>>(row, "for_standby")?.unwrap_or(false),
        seconds: column(row, "seconds")?,
    }))
}
