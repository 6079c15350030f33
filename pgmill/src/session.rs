//! The database connection of one command.

use cli::Failure;
use conninfo::ConnectionTarget;
use queue::{QueueError, schema};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Transaction};

use crate::args::Global;

/// An open connection, and the tokio task that drives it.
pub(crate) struct Session {
    pub(crate) client: Client,
    target: ConnectionTarget,
    _driver: JoinSet<()>,
}

impl Session {
    /// Connects.
    ///
    /// # Errors
    /// Fails for a malformed connection string or variable, or if the connection fails.
    pub(crate) async fn open(global: &Global) -> Result<Self, Failure> {
        Self::open_at(&terminal::connection_target(global.given.as_ref())?).await
    }

    /// Connects to this database.
    ///
    /// # Errors
    /// Fails if the connection fails.
    pub(crate) async fn open_at(target: &ConnectionTarget) -> Result<Self, Failure> {
        let target = target.with_application_name("pgmill");
        let (client, connection) = conninfo::open(&target).await?;
        let mut driver = JoinSet::new();
        // Queries on the client return the error of the connection.
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { client, target, _driver: driver })
    }

    /// Connects, and refuses an unsupported schema version.
    ///
    /// # Errors
    /// As [`Session::open`]; also without a schema, with an unsupported version, or without the
    /// privilege to read it.
    pub(crate) async fn open_checked(global: &Global) -> Result<Self, Failure> {
        let session = Self::open(global).await?;
        schema::check_version(&session.client).await.map_err(|error| {
            Failure::from(error).with_missing_role(Some("mill_viewer"), session.user())
        })?;
        Ok(session)
    }

    /// The target of the connection.
    pub(crate) fn target(&self) -> &ConnectionTarget {
        &self.target
    }

    /// The user of the connection.
    pub(crate) fn user(&self) -> &str {
        self.target.user()
    }
}

/// Commits a transaction; with `--dry-run` rolls it back.
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
