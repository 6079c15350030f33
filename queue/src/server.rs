//! Identifies the server process and the database of a session.

use jiff::Timestamp;
use tokio_postgres::GenericClient;

use crate::error::QueueError;

const SERVER: &str = "/* queue.server */
SELECT (SELECT c.system_identifier FROM pg_control_system() AS c), d.oid, pg_postmaster_start_time()
FROM pg_database d WHERE d.datname = current_database()";

/// A database on a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Identifier of the cluster; a physical standby has that of its primary.
    system_identifier: i64,
    database: u32,
    /// Distinguishes a server from its standbys, and from itself before a restart.
    started_at: Timestamp,
}

impl Server {
    /// Whether both sessions see the same tables, possibly before and after a failover.
    #[must_use]
    pub fn same_database(&self, other: &Self) -> bool {
        (self.system_identifier, self.database) == (other.system_identifier, other.database)
    }
}

/// Returns the server and database of the session.
pub async fn server(client: &impl GenericClient) -> Result<Server, QueueError> {
    let row = &client.query_typed(SERVER, &[]).await?[0];
    Ok(Server {
        system_identifier: row.try_get(0)?,
        database: row.try_get(1)?,
        started_at: row.try_get(2)?,
    })
}
