//! The connection of one command.

use queue::connect::{self, Target};
use queue::{QueueError, schema};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Transaction};

use crate::args::Global;
use crate::failure::Failure;

/// An open connection and the task that drives it.
pub(crate) struct Session {
    pub(crate) client: Client,
    target: Target,
    _driver: JoinSet<()>,
}

impl Session {
    /// Connects.
    ///
    /// # Errors
    /// A malformed connection string or variable; no connection.
    pub(crate) async fn open(global: &Global) -> Result<Self, Failure> {
        let target = terminal::target(global.given.as_ref())?.with_application_name("pgmill");
        let (client, connection) = connect::open(&target).await?;
        let mut driver = JoinSet::new();
        // Its error reaches whoever waits for an answer.
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { client, target, _driver: driver })
    }

    /// Connects, and refuses a database whose schema this program does not know.
    ///
    /// # Errors
    /// As [`Session::open`]; no schema, another version of it, or no right to read it.
    pub(crate) async fn open_checked(global: &Global) -> Result<Self, Failure> {
        let session = Self::open(global).await?;
        schema::check_version(&session.client).await.map_err(|error| {
            Failure::from(error).with_missing_role(Some("mill_viewer"), session.user())
        })?;
        Ok(session)
    }

    /// Where the connection goes.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Who is connected.
    pub(crate) fn user(&self) -> &str {
        self.target.user()
    }
}

/// Ends a transaction: as if it had not been, with `--dry-run`.
///
/// # Errors
/// Database trouble.
pub(crate) async fn commit_unless_dry_run(
    transaction: Transaction<'_>,
    dry_run: bool,
) -> Result<(), QueueError> {
    if dry_run {
        transaction.rollback().await?;
    } else {
        transaction.commit().await?;
    }
    Ok(())
}
