//! → scheduled | blocked | pending, when a task is enqueued.
//!
//! The client crate (`clients/rust`) has the statements, so that this program and applications
//! enqueue with the same code. This file adds a check that needs the scanner of statements. The
//! caller provides the transaction. The schema notifies idle workers (`schema/16_watched_lanes.sql`).

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::TaskId;

use crate::error::QueueError;
use crate::row::{execute, one};
use crate::scan;

pub use pgmill_client::{Due, Enqueued, NewTask, TaskOptions};

const LIMIT: &str =
    "SELECT /* queue.statement_limit */ s.statement_limit_bytes FROM mill.settings s";

/// The server merges notifications that are pending at the same time. If one is lost, the work starts
/// up to one poll interval later.
const NOTIFY: &str = "SELECT /* queue.notify */ pg_notify('mill', 'work')";

const NOW: &str = "SELECT /* queue.now */ clock_timestamp()";

/// Submits one task, under a deduplication key if one is given.
///
/// # Errors
/// Fails if the schema refuses a value (see [`QueueError::refused`]).
pub async fn enqueue(
    client: &impl tokio_postgres::GenericClient,
    task: &NewTask,
    options: &TaskOptions,
    key: Option<&str>,
) -> Result<Enqueued, QueueError> {
    check_explain(task, options)?;
    Ok(pgmill_client::enqueue(client, task, options, key).await?)
}

/// Submits many tasks in one statement, and returns their ids in order.
///
/// # Errors
/// As [`enqueue`]. After an error, none of the tasks is submitted.
pub async fn enqueue_many(
    client: &impl tokio_postgres::GenericClient,
    tasks: &[NewTask],
    options: &TaskOptions,
) -> Result<Vec<TaskId>, QueueError> {
    tasks.iter().try_for_each(|task| check_explain(task, options))?;
    Ok(pgmill_client::enqueue_many(client, tasks, options).await?)
}

/// Checks that EXPLAIN supports the whole statement, because the schema checks only its first
/// keyword.
fn check_explain(task: &NewTask, options: &TaskOptions) -> Result<(), QueueError> {
    if !options.explain || scan::explainable(&task.statement) {
        return Ok(());
    }
    Err(QueueError::Refused {
        message: "EXPLAIN does not support this statement".to_owned(),
        hint: Some(scan::EXPLAINABLE.to_owned()),
    })
}

/// Setting of a session that never prepares a transaction: what it enqueues always notifies the fleet.
pub const NOTIFIES: (&str, &str) = ("mill.notify", "on");

/// Notifies the fleet that there is work. A NOTIFY inside a transaction that writes would hold a
/// cluster-wide lock until its WAL is on disk, so this follows the commit.
///
/// # Errors
/// The work remains if the notification fails.
pub async fn notify(client: &impl GenericClient) -> Result<(), QueueError> {
    execute(client, NOTIFY, &[]).await
}

/// Returns the maximum size of a statement, in bytes.
///
/// # Errors
/// Fails if the role may not read the settings.
pub async fn statement_limit(client: &impl GenericClient) -> Result<u64, QueueError> {
    let limit: i32 = one(client, LIMIT, &[]).await?;
    Ok(u64::from(limit.cast_unsigned()))
}

/// Returns the time of the database clock, which is the only clock.
pub async fn database_now(client: &impl GenericClient) -> Result<Timestamp, QueueError> {
    one(client, NOW, &[]).await
}
