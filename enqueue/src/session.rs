//! The database connection of one command.

use std::time::{Duration, Instant};

use conninfo::{Client, ConnectError, ConnectionTarget};
use queue::session::Refusal;
use queue::{QueueError, schema};
use tokio::task::JoinSet;

use crate::failure::Failure;

/// Maximum time for reconnecting. A failover takes some seconds.
const RECONNECT_FOR: Duration = Duration::from_secs(60);
const RECONNECT_EVERY: Duration = Duration::from_millis(500);

/// An open connection, and the tokio task that drives it.
pub(crate) struct Session {
    target: ConnectionTarget,
    pub(crate) client: Client,
    driver: JoinSet<()>,
}

impl Session {
    /// Connects, and refuses an unsupported schema version.
    ///
    /// # Errors
    /// Returns an error if the connection fails or the schema version is not supported.
    pub(crate) async fn open(target: ConnectionTarget) -> Result<Self, Failure> {
        let mut driver = JoinSet::new();
        let client = drive(&target, &mut driver).await?;
        let session = Self { target, client, driver };
        match schema::check_version(&session.client).await {
            Ok(_) => Ok(session),
            Err(error) => Err(session.explained(error.into()).await),
        }
    }

    /// Adds to an error of the server what causes it in this session.
    pub(crate) async fn explained(&self, failure: Failure) -> Failure {
        let Failure::Database(error) = failure else { return failure };
        let cause = match Refusal::of(&error) {
            Some(refusal) => refusal.cause(&self.client).await,
            None => None,
        };
        match cause {
            Some(cause) => Failure::InSession { error: Box::new(error), cause },
            None => error.into(),
        }
    }

    /// Reconnects after the connection was lost.
    ///
    /// # Errors
    /// Returns the last error when [`RECONNECT_FOR`] is over.
    pub(crate) async fn reopen(&mut self) -> Result<(), ConnectError> {
        let began = Instant::now();
        loop {
            let mut driver = JoinSet::new();
            match drive(&self.target, &mut driver).await {
                Ok(client) => {
                    self.client = client;
                    self.driver = driver;
                    return Ok(());
                }
                Err(error) if began.elapsed() > RECONNECT_FOR => return Err(error),
                Err(_) => tokio::time::sleep(RECONNECT_EVERY).await,
            }
        }
    }

    /// Returns whether the error means that the connection is lost.
    pub(crate) fn lost(&self, error: &QueueError) -> bool {
        self.client.is_closed() || error.temporary()
    }
}

async fn drive(
    target: &ConnectionTarget,
    driver: &mut JoinSet<()>,
) -> Result<Client, ConnectError> {
    let (client, connection) = conninfo::open_client(target).await?;
    // The error of the connection is dropped here, because queries on the client return it too.
    driver.spawn(async move { drop(connection.await) });
    Ok(client)
}
