//! The schema itself: applying it, and knowing whether this program fits it.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient};

use crate::error::QueueError;

/// `schema.sql` as it was when this program was built.
pub const SCHEMA: &str = include_str!("../../schema.sql");

/// The version of the schema that this program was built for.
pub const VERSION: i32 = 1;

const INSTALLED: &str = "/* queue.schema_version */
SELECT v.version, v.works_with FROM mill.schema_version v";

/// What a database says of its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstalledSchema {
    /// Its version.
    pub version: i32,
    /// Programs that were built for this version, or a later one, may use it.
    pub works_with: i32,
}

impl InstalledSchema {
    /// Whether a program that was built for this version of the schema may use it: during an upgrade
    /// the schema goes first, and the programs follow one after the other.
    #[must_use]
    pub fn serves(self, program: i32) -> bool {
        (self.works_with..=self.version).contains(&program)
    }
}

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

/// The schema in this database; `None` if there is none.
///
/// # Errors
/// Database trouble; no right to read it.
pub async fn installed(client: &impl GenericClient) -> Result<Option<InstalledSchema>, QueueError> {
    match client.query_typed(INSTALLED, &[]).await {
        Ok(rows) => {
            let Some(row) = rows.first() else { return Ok(None) };
            Ok(Some(InstalledSchema { version: row.try_get(0)?, works_with: row.try_get(1)? }))
        }
        Err(error)
            if [Some(&SqlState::UNDEFINED_TABLE), Some(&SqlState::INVALID_SCHEMA_NAME)]
                .contains(&error.code()) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// A database without the schema.
pub(crate) fn missing() -> QueueError {
    QueueError::Refused {
        message: "this database has no pgmill schema".to_owned(),
        hint: Some("Apply it: pgmill init, or psql -f schema.sql.".to_owned()),
    }
}

/// Refuses a database whose schema this program does not fit, and says what to do.
///
/// # Errors
/// No schema, one that does not work with this program, or database trouble.
pub async fn check_version(client: &impl GenericClient) -> Result<(), QueueError> {
    let (message, hint) = match installed(client).await? {
        Some(found) if found.serves(VERSION) => return Ok(()),
        None => return Err(missing()),
        Some(InstalledSchema { version, works_with }) if version > VERSION => (
            format!(
                "this database holds schema version {version}, this program knows up to {VERSION}"
            ),
            format!(
                "It works with programs of version {works_with} of the schema and later. Use the \
                 version of pgmill that the rest of the fleet runs."
            ),
        ),
        Some(InstalledSchema { version, .. }) => (
            format!("this database holds schema version {version}, this program needs {VERSION}"),
            "Apply the migrations from that version on: pgmill init.".to_owned(),
        ),
    };
    Err(QueueError::Refused { message, hint: Some(hint) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_serves_programs_from_the_oldest_it_names_up_to_its_own() {
        let found = InstalledSchema { version: 4, works_with: 3 };
        let served: Vec<i32> = (1..6).filter(|program| found.serves(*program)).collect();
        assert_eq!(served, [3, 4]);
    }
}
