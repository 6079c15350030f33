//! The connection of one command.

use queue::connect::{self, Environment, Given, Layer, Target};
use queue::{QueueError, schema};
use terminal::tell;
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
        let target = target(global)?.with_application_name("pgmill");
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
        schema::check_version(&session.client)
            .await
            .map_err(|error| Failure::from(error).lacking(Some("mill_viewer"), session.user()))?;
        Ok(session)
    }

    /// Who is connected.
    pub(crate) fn user(&self) -> &str {
        self.target.user()
    }
}

/// Where to connect.
///
/// # Errors
/// A malformed connection string or variable, or a file of one that cannot be read.
pub(crate) fn target(global: &Global) -> Result<Target, Failure> {
    let in_arguments = matches!(global.given, Some((Given::Text(_), Layer::Arguments)));
    let url = global.given.clone().map(|(given, _)| given.read()).transpose()?;
    let target = Target::resolve(url.as_deref(), &Environment::from_process())?;
    for warning in target.warnings() {
        tell(format_args!("warning: {warning}"));
    }
    if in_arguments && target.password_given_inline() {
        tell(
            "warning: every user of this machine can read the password in --database-url; put it \
             in ~/.pgpass, or name another such file in PGPASSFILE",
        );
    }
    Ok(target)
}

/// Ends a transaction: as if it had not been, with `--dry-run`.
///
/// # Errors
/// Database trouble.
pub(crate) async fn end(transaction: Transaction<'_>, dry_run: bool) -> Result<(), QueueError> {
    if dry_run {
        transaction.rollback().await?;
    } else {
        transaction.commit().await?;
    }
    Ok(())
}
