//! The database connection of one command.
//!
//! | task | file |
//! |---|---|
//! | the contexts file, which names databases; `pgmill context` | `contexts` |
//! | one command on the databases of all contexts at the same time | `all_contexts` |
//! | changes in a transaction, with dry run and report | `change` |
//! | a second session that reports lock waits, and cancels after a timeout | `lock_wait` |

pub(crate) mod all_contexts;
mod change;
pub(crate) mod contexts;
pub(crate) mod lock_wait;

use std::path::Path;

use cli::Failure;
use conninfo::{Client, ConnectionTarget};
use queue::{READ_TIMEOUT, schema};
use tokio::task::JoinSet;

use crate::args::{GivenDatabase, Global};
use crate::session::contexts::ContextsFile;
pub(crate) use change::{Action, change, missing};

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
        let target = connection_target(global.given.as_ref(), global.contexts_file.as_deref())?;
        Self::open_at(&target).await
    }

    /// Connects; each statement may take as long as [`READ_TIMEOUT`].
    ///
    /// # Errors
    /// Fails as [`Session::open`].
    pub(crate) async fn open_reading(global: &Global) -> Result<Self, Failure> {
        let target = connection_target(global.given.as_ref(), global.contexts_file.as_deref())?;
        Self::open_at(&target.with_statement_timeout(READ_TIMEOUT)).await
    }

    /// Connects to this database.
    ///
    /// # Errors
    /// Fails if the connection fails.
    pub(crate) async fn open_at(target: &ConnectionTarget) -> Result<Self, Failure> {
        let target = target.with_application_name("pgmill");
        let (client, connection) = conninfo::open_client(&target).await?;
        let mut driver = JoinSet::new();
        // Queries on the client return the error of the connection.
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { client, target, _driver: driver })
    }

    /// As [`Session::open_reading`], and refuses an unsupported schema version.
    ///
    /// # Errors
    /// Fails as [`Session::open`] and [`Session::checked`].
    pub(crate) async fn open_checked(global: &Global) -> Result<Self, Failure> {
        Self::open_reading(global).await?.checked().await
    }

    /// Refuses an unsupported schema version.
    ///
    /// # Errors
    /// Fails without a schema, with an unsupported version, or without the privilege to read it.
    pub(crate) async fn checked(self) -> Result<Self, Failure> {
        match schema::check_version(&self.client).await {
            Ok(_) => Ok(self),
            Err(error) => Err(self.explained(error.into(), Some("mill_viewer")).await),
        }
    }

    /// Adds to an error what causes it in this session, or the GRANT of the role that is missing.
    pub(crate) async fn explained(&self, failure: Failure, role: Option<&str>) -> Failure {
        let cause = match failure.refusal() {
            Some(refusal) => refusal.cause(&self.client).await,
            None => None,
        };
        match cause {
            Some(cause) => failure.because(&cause),
            None => failure.with_missing_role(role, self.user()),
        }
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

/// Returns the database that the command line or the environment names, or else that of psql.
///
/// # Errors
/// Fails for a malformed connection string or variable, and for an unknown context.
pub(crate) fn connection_target(
    given: Option<&GivenDatabase>,
    contexts_file: Option<&Path>,
) -> Result<ConnectionTarget, Failure> {
    match given {
        Some(GivenDatabase::Context(name)) => {
            ContextsFile::read(contexts_file)?.find(name)?.target()
        }
        Some(GivenDatabase::Source(source, layer)) => {
            Ok(terminal::connection_target(Some(&(source.clone(), *layer)))?)
        }
        None => Ok(terminal::connection_target(None)?),
    }
}
