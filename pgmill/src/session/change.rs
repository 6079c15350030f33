//! A change by a command, in one transaction, which `--dry-run` rolls back.

use cli::{Exit, Failure};
use conninfo::Client;
use queue::QueueError;
use serde_json::json;
use tokio_postgres::Transaction;

use crate::args::{DryRun, ObjectName};
use crate::output::Output;

/// Makes a change in one transaction, and commits it. With `--dry-run` the database makes the change,
/// too, so that its checks and its answer are the same, but the transaction is rolled back.
///
/// The isolation level is READ COMMITTED, which functions of the schema require: at other levels they
/// fail if a session changes the same rows, and the database or the login may have another default.
///
/// # Errors
/// Fails with the error of the change, or as [`Failure::of_commit`] if the server refuses the commit or
/// the connection is lost.
pub(crate) async fn change<T>(
    client: &mut Client,
    dry_run: DryRun,
    make: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut transaction = client.begin_read_committed().await.map_err(QueueError::from)?;
    let made = make(&mut transaction).await?;
    if dry_run.is_set() {
        transaction.rollback().await.map_err(QueueError::from)?;
    } else {
        transaction.commit().await.map_err(|error| Failure::of_commit(error.into()))?;
    }
    Ok(made)
}

/// A kind of object, and what a command does to one.
pub(crate) struct Action {
    /// The kind, as in the commands on it.
    pub(crate) kind: &'static str,
    /// What is done: `removed`.
    pub(crate) done: &'static str,
}

impl Action {
    /// Makes the change of an object, and reports it. `make` returns whether the object exists.
    ///
    /// # Errors
    /// Fails as [`change`], and if there is no such object.
    pub(crate) async fn run(
        &self,
        (client, out): (&mut Client, &Output),
        args: &ObjectName,
        make: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<bool, Failure>,
    ) -> Exit {
        let (Self { kind, done }, ObjectName { name, dry_run }) = (self, args);
        if !change(client, *dry_run, make).await? {
            return Err(missing(kind, name));
        }
        let document = json!({ *kind: name, "dry_run": dry_run, *done: true });
        out.answer(document, format!("{kind} {name} {}{done}", dry_run.or("would be ", "")))
    }
}

/// The failure for an object that does not exist.
pub(crate) fn missing(kind: &str, name: impl std::fmt::Display) -> Failure {
    Failure::not_found(format!("there is no {kind} {name}")).hint(format!("pgmill {kind} list"))
}
