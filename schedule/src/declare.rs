//! Schedules as they are declared, and what a person sets on them.

use queue::QueueError;
use queue::enum_column;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio_postgres::GenericClient;
use tokio_postgres::types::{Json, Type};

use crate::enums::DeclaredIn;

const PUT: &str = "/* schedule.put */ SELECT mill.put_schedule($1, $2::text::mill.declared_in, $3)";

const REMOVE: &str = "/* schedule.remove */ SELECT r FROM mill.remove_schedules($1) AS r";

const DECLARED: &str = "/* schedule.declared */
SELECT s.name, s.declared_in::text, s.definition, s.enabled FROM mill.schedules s
WHERE s.removed_at IS NULL ORDER BY s.name";

const ENABLE: &str = "/* schedule.enable */ SELECT mill.enable_schedule($1, $2)";

const ADJUST: &str = "/* schedule.adjust */ SELECT mill.adjust_schedule($1, $2)";

const RUN_NOW: &str = "/* schedule.run_now */ SELECT mill.run_now($1, $2)";

/// What a declaration came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PutResult {
    /// There was no such schedule.
    New,
    /// It is another one now.
    Changed,
    /// It is what it was.
    Unchanged,
}

/// A schedule whose declaration is there.
#[derive(Clone, Debug)]
pub struct DeclaredSchedule {
    /// Its name.
    pub name: String,
    /// Where it is declared.
    pub declared_in: DeclaredIn,
    /// The document that [`put`] would take for it.
    pub definition: Value,
    /// Whether a person lets it fire.
    pub enabled: bool,
}

/// Makes a schedule what the document says, as `mill.put_schedule` describes it. `declared_as`: the
/// procedure whose comment it is.
///
/// # Errors
/// What a schedule cannot be; it is declared elsewhere; database trouble.
pub async fn put(
    client: &impl GenericClient,
    definition: &Value,
    declared_in: DeclaredIn,
    declared_as: Option<&str>,
) -> Result<PutResult, QueueError> {
    let rows = client
        .query_typed(
            PUT,
            &[
                (&Json(definition), Type::JSONB),
                (&declared_in.as_str(), Type::TEXT),
                (&declared_as, Type::TEXT),
            ],
        )
        .await?;
    match rows[0].try_get::<_, &str>(0)? {
        "new" => Ok(PutResult::New),
        "changed" => Ok(PutResult::Changed),
        "unchanged" => Ok(PutResult::Unchanged),
        other => Err(QueueError::Unexpected { column: "put_schedule", value: other.to_owned() }),
    }
}

/// These schedules do not fire any more; nothing is deleted. Returns which of them there were.
///
/// # Errors
/// Database trouble; a missing right.
pub async fn remove(
    client: &impl GenericClient,
    names: &[String],
) -> Result<Vec<String>, QueueError> {
    let rows = client.query_typed(REMOVE, &[(&names, Type::TEXT_ARRAY)]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// Every schedule whose declaration is there, by name.
///
/// # Errors
/// Database trouble.
pub async fn declared(client: &impl GenericClient) -> Result<Vec<DeclaredSchedule>, QueueError> {
    let rows = client.query_typed(DECLARED, &[]).await?;
    let declared = |row: &tokio_postgres::Row| {
        Ok(DeclaredSchedule {
            name: row.try_get(0)?,
            declared_in: enum_column(row, 1, "declared_in")?,
            definition: row.try_get::<_, Json<Value>>(2)?.0,
            enabled: row.try_get(3)?,
        })
    };
    rows.iter().map(declared).collect()
}

/// Lets a schedule fire, from now on, or not; `false`: there is none of that name.
///
/// # Errors
/// Database trouble; a missing right.
pub async fn enable(
    client: &impl GenericClient,
    name: &str,
    enabled: bool,
) -> Result<bool, QueueError> {
    let params = [(&name as _, Type::TEXT), (&enabled as _, Type::BOOL)];
    Ok(client.query_typed(ENABLE, &params).await?[0].try_get(0)?)
}

/// Sets what is a person's: `max_attempts`, `retry_interval`, `jitter`; null: as it is declared.
/// `false`: there is none of that name.
///
/// # Errors
/// A value out of its range; database trouble; a missing right.
pub async fn adjust(
    client: &impl GenericClient,
    name: &str,
    settings: &Map<String, Value>,
) -> Result<bool, QueueError> {
    let params = [(&name as _, Type::TEXT), (&Json(settings) as _, Type::JSONB)];
    Ok(client.query_typed(ADJUST, &params).await?[0].try_get(0)?)
}

/// Starts a run of a schedule and leaves its timing alone; the caller rings. `None`: there is none
/// of that name.
///
/// # Errors
/// A run goes on that another must not overlap, but for `force`; database trouble; a missing right.
pub async fn run_now(
    client: &impl GenericClient,
    name: &str,
    force: bool,
) -> Result<Option<queue::run::RunId>, QueueError> {
    let params = [(&name as _, Type::TEXT), (&force as _, Type::BOOL)];
    let started: Option<i64> = client.query_typed(RUN_NOW, &params).await?[0].try_get(0)?;
    Ok(started.map(queue::run::RunId))
}
