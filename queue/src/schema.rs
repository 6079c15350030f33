//! The schema itself: applying it, and knowing whether this program fits it.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient};

use crate::error::QueueError;

/// `schema.sql` as it was when this program was built.
pub const SCHEMA: &str = include_str!("../../schema.sql");

/// The version this program works with.
pub const VERSION: i32 = 1;

const FOUND: &str = "/* queue.schema_version */ SELECT v.version FROM mill.schema_version v";

/// Applies the schema, or finds it applied. Does the same as `psql -f schema.sql`.
///
/// # Errors
/// Database trouble; missing rights; another version of the schema in place.
pub async fn init(client: &Client) -> Result<(), QueueError> {
    let applied = client.batch_execute(SCHEMA).await;
    if applied.is_err() {
        // The script's transaction is aborted and still open.
        client.batch_execute("ROLLBACK").await?;
    }
    applied.map_err(QueueError::from)
}

/// The version of the schema in this database; `None` if there is none.
///
/// # Errors
/// Database trouble; no right to read it.
pub async fn found_version(client: &impl GenericClient) -> Result<Option<i32>, QueueError> {
    match client.query_typed(FOUND, &[]).await {
        Ok(rows) => rows.first().map(|row| row.try_get(0)).transpose().map_err(QueueError::from),
        Err(error)
            if [Some(&SqlState::UNDEFINED_TABLE), Some(&SqlState::INVALID_SCHEMA_NAME)]
                .contains(&error.code()) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Refuses a database whose schema this program does not know, and says what to do.
///
/// # Errors
/// No schema, another version, or database trouble.
pub async fn check_version(client: &impl GenericClient) -> Result<(), QueueError> {
    let (message, hint) = match found_version(client).await? {
        Some(VERSION) => return Ok(()),
        None => (
            "this database has no pgmill schema".to_owned(),
            "Apply it: pgmill init, or psql -f schema.sql.".to_owned(),
        ),
        Some(found) if found > VERSION => (
            format!(
                "this database holds schema version {found}, this program knows up to {VERSION}"
            ),
            "Use the version of pgmill that the rest of the fleet runs.".to_owned(),
        ),
        Some(found) => (
            format!("this database holds schema version {found}, this program needs {VERSION}"),
            "Apply the migrations from that version on: pgmill init.".to_owned(),
        ),
    };
    Err(QueueError::Refused { message, hint: Some(hint) })
}
