//! Declares schedules, and changes the settings that belong to operators.

use conninfo::GenericClient;
use jiff::Timestamp;
use queue::QueueError;
use queue::row::{Param, execute, from_row, one, rows};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio_postgres::Transaction;
use tokio_postgres::types::Json;

use crate::enums::DeclaredIn;
use crate::timing::Timing;

const PUT: &str = "SELECT /* schedule.put */ mill.put_schedule($1, $2::text::mill.declared_in, $3)";

const ACCEPT: &str = "SELECT /* schedule.accept_timing */ mill.accept_timing($1)";

const REMOVE: &str = "SELECT /* schedule.remove */ r FROM mill.remove_schedules($1) AS r";

const DECLARED: &str = "SELECT /* schedule.declared */ s.name, s.declared_in::text, s.declared_as, s.definition, s.enabled FROM mill.schedules s
WHERE s.removed_at IS NULL ORDER BY s.name";

const LOCK: &str = "SELECT /* schedule.lock */ mill.lock_schedule($1)";

const ENABLE: &str = "SELECT /* schedule.enable */ mill.enable_schedule($1, $2)";

const OVERRIDE: &str = "SELECT /* schedule.override */ mill.override_schedule($1, $2)";

const RUN_NOW: &str = "SELECT /* schedule.run_now */ mill.run_now($1, $2, $3)";

/// Result of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PutResult {
    /// The schedule did not exist.
    New,
    /// The schedule was changed.
    Changed,
    /// The schedule already was as declared.
    Unchanged,
}

/// A schedule whose declaration exists.
#[derive(Clone, Debug)]
pub struct DeclaredSchedule {
    /// Name of the schedule.
    pub name: String,
    /// Place of the declaration.
    pub declared_in: DeclaredIn,
    /// For a declaration in a comment, the procedure that has the comment.
    pub declared_as: Option<String>,
    /// The definition, as a document that [`put`] accepts.
    pub definition: Value,
    /// Whether the schedule is enabled, which operators decide.
    pub enabled: bool,
}

from_row! { DeclaredSchedule { name, declared_in, declared_as, definition, enabled } }

/// Checks that the timing has a time in the future.
///
/// # Errors
/// Returns a refusal if it has none, such as `once(…)` with a time in the past.
pub async fn check_future(client: &impl GenericClient, timing: &Timing) -> Result<(), QueueError> {
    let Some(cadence) = timing.cadence() else { return Ok(()) };
    let now = queue::task_queries::now(client).await?;
    if cadence.next_fire(now).is_some() {
        return Ok(());
    }
    Err(QueueError::Refused {
        message: format!("{timing} has no time in the future"),
        hint: Some("To start a run now, use pgmill schedule run-now.".to_owned()),
    })
}

/// Waits until no other session changes the schedule, and keeps others from it until the end of the
/// transaction, which then reads the declaration and puts it back changed. The transaction has to be READ
/// COMMITTED, so that it reads the result of the session before.
///
/// # Errors
/// Fails if another session takes longer than the `lock_timeout`, or the role lacks the privilege.
pub async fn lock(transaction: &Transaction<'_>, name: &str) -> Result<(), QueueError> {
    execute(transaction, LOCK, &[&name]).await
}

/// Creates or changes a schedule. `mill.put_schedule` describes the format of the document, whose
/// timing the caller has parsed. `declared_as` is the procedure whose comment contains the
/// declaration.
///
/// # Errors
/// Fails if the document is invalid, if the schedule is declared elsewhere, or if it is new and has
/// no time in the future.
pub async fn put(
    client: &impl GenericClient,
    definition: &Value,
    declared_in: DeclaredIn,
    declared_as: Option<&str>,
) -> Result<PutResult, QueueError> {
    let params: [&dyn Param; 3] = [&Json(definition), &declared_in.as_str(), &declared_as];
    match one::<String>(client, PUT, &params).await?.as_str() {
        "new" => {
            if let Some(Ok(timing)) = definition["timing"].as_str().map(Timing::parse) {
                check_future(client, &timing).await?;
            }
            Ok(PutResult::New)
        }
        "changed" => {
            let name = definition["name"].as_str();
            execute(client, ACCEPT, &[&name]).await?;
            Ok(PutResult::Changed)
        }
        "unchanged" => Ok(PutResult::Unchanged),
        other => Err(QueueError::Unexpected {
            column: "put_schedule".to_owned(),
            value: other.to_owned(),
        }),
    }
}

/// Removes the declarations of these schedules, so that they no longer fire. Deletes nothing.
/// Returns the names of those that existed.
///
/// # Errors
/// Fails if the role lacks the privilege.
pub async fn remove(
    client: &impl GenericClient,
    names: &[String],
) -> Result<Vec<String>, QueueError> {
    rows(client, REMOVE, &[&names]).await
}

/// Returns every schedule whose declaration exists, sorted by name.
pub async fn declared(client: &impl GenericClient) -> Result<Vec<DeclaredSchedule>, QueueError> {
    rows(client, DECLARED, &[]).await
}

/// Enables or disables a schedule. Returns `false` if it does not exist.
///
/// # Errors
/// Fails if the role lacks the privilege.
pub async fn enable(
    client: &impl GenericClient,
    name: &str,
    enabled: bool,
) -> Result<bool, QueueError> {
    one(client, ENABLE, &[&name, &enabled]).await
}

/// Overrides the settings that belong to operators: `max_attempts`, `retry_interval` and `jitter`.
/// A null restores the declared value. Returns `false` if the schedule does not exist.
///
/// # Errors
/// Fails if a value is out of range or the role lacks the privilege.
pub async fn override_settings(
    client: &impl GenericClient,
    name: &str,
    settings: &Map<String, Value>,
) -> Result<bool, QueueError> {
    one(client, OVERRIDE, &[&name, &Json(settings)]).await
}

/// Starts a run of a schedule without changing its timing: for the instant `fire_at`, or else for
/// the current time, with these parameters in addition to those of the schedule. The caller has to
/// notify the workers. Returns `None` if the schedule does not exist.
///
/// # Errors
/// Fails if a run is in progress that must not overlap, or if the instant has a run already, unless
/// `force` is set; if the instant is in the future; and if the role lacks the privilege.
pub async fn run_now(
    client: &impl GenericClient,
    name: &str,
    force: bool,
    params: &Map<String, Value>,
    fire_at: Option<Timestamp>,
) -> Result<Option<queue::RunId>, QueueError> {
    let options = json!({ "params": params, "fire_at": fire_at });
    one(client, RUN_NOW, &[&name, &force, &Json(options)]).await
}
