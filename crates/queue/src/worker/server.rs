//! Identifies the server process and the database of a session.

use conninfo::GenericClient;
use jiff::Timestamp;

use crate::error::QueueError;
use crate::row::{from_row, one};

/// Runs in sessions of tasks, too, whose search_path may contain functions of tasks.
const SERVER: &str = "SELECT /* queue.server */
    (SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c) AS system_identifier,
    d.oid AS database, pg_catalog.pg_postmaster_start_time() AS started_at
FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()";

/// A database on a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Identifier of the cluster. A physical standby has the identifier of its primary.
    system_identifier: i64,
    database: u32,
    /// Start time of the server. It distinguishes a server from its standbys, and from itself
    /// before a restart.
    started_at: Timestamp,
}

from_row! { Server { system_identifier, database, started_at } }

impl Server {
    /// Returns whether both sessions see the same tables, even if one is from before a failover.
    #[must_use]
    pub fn same_database(&self, other: &Self) -> bool {
        (self.system_identifier, self.database) == (other.system_identifier, other.database)
    }

    /// Returns bytes that identify the database: the same for all sessions and servers with the same
    /// tables, others for another database.
    #[must_use]
    pub fn database_id(&self) -> [u8; 12] {
        let mut id = [0; 12];
        id[..8].copy_from_slice(&self.system_identifier.to_be_bytes());
        id[8..].copy_from_slice(&self.database.to_be_bytes());
        id
    }
}

/// Returns the server and database of the session.
pub async fn server(client: &impl GenericClient) -> Result<Server, QueueError> {
    one(client, SERVER, &[]).await
}
