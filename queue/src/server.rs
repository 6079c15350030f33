//! Which server process and which database a session goes to.

use jiff::Timestamp;
use tokio_postgres::GenericClient;

use crate::error::QueueError;

const SERVER: &str = "/* queue.server */
SELECT (SELECT c.system_identifier FROM pg_control_system() AS c), d.oid, pg_postmaster_start_time()
FROM pg_database d WHERE d.datname = current_database()";

/// A database on a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Of the cluster; a physical standby has the one of its primary.
    system_identifier: i64,
    database: u32,
    /// Tells a server apart from its standbys, and from itself before a restart.
    started_at: Timestamp,
}

impl Server {
    /// Whether both sessions see the same tables, if perhaps one before a failover and one after it.
    #[must_use]
    pub fn same_database(&self, other: &Self) -> bool {
        (self.system_identifier, self.database) == (other.system_identifier, other.database)
    }
}

/// The server and database of the session.
///
/// # Errors
/// Database trouble.
pub async fn server(client: &impl GenericClient) -> Result<Server, QueueError> {
    let row = &client.query_typed(SERVER, &[]).await?[0];
    Ok(Server {
        system_identifier: row.try_get(0)?,
        database: row.try_get(1)?,
        started_at: row.try_get(2)?,
    })
}
