//! Applies the schema, and checks whether this program is compatible with it.
//!
//! | task | file |
//! |---|---|
//! | upgrade by migrations while the fleet is running | `upgrade` |
//! | repetition of a change of the schema until it gets its locks | `lock_retries` |
//! | comparison of the database with the schema of this program | `drift` |
//! | collations, invalid indexes, NOTIFY queue, lock table, for `pgmill doctor` | `catalog` |
//! | sequences that are behind the rows of their tables, and their repair | `sequences` |
//! | check whether tasks of a Citus coordinator commit in two phases | `citus` |

pub mod catalog;
pub mod citus;
pub mod drift;
mod lock_retries;
pub mod sequences;
pub mod upgrade;

use conninfo::GenericClient;
use tokio_postgres::error::SqlState;

use crate::error::QueueError;
use crate::row::{first, from_row, one};
use crate::schema::lock_retries::{LOCK_TIMEOUT, LockRetries};

/// The text of `schema.sql` when this program was built.
pub const SCHEMA: &str = include_str!("../../../schema.sql");

/// The schema version for which this program was built.
pub const VERSION: i32 = version_in(SCHEMA);

/// Returns the number that the script assigns to `mill.version`.
const fn version_in(script: &str) -> i32 {
    const SETTING: &[u8] = b"SET LOCAL mill.version = '";
    let script = script.as_bytes();
    let (mut at, mut matched) = (0, 0);
    while matched < SETTING.len() {
        if script[at] == SETTING[matched] {
            (at, matched) = (at + 1, matched + 1);
        } else if matched == 0 {
            at += 1;
        } else {
            // Comparison restarts at the current byte. No earlier byte can start a match, because
            // `SETTING` contains its first letter only once.
            matched = 0;
        }
    }
    let mut version = 0;
    while script[at].is_ascii_digit() {
        version = version * 10 + (script[at] - b'0') as i32;
        at += 1;
    }
    assert!(version > 0 && script[at] == b'\'', "mill.version is not a number");
    version
}

/// Returns the transaction of the script, without the statements that begin and end it.
pub(crate) fn without_transaction(script: &str) -> String {
    script
        .lines()
        .take_while(|line| *line != "COMMIT;")
        .filter(|line| *line != "BEGIN;")
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// Returns what the script executes after its transaction.
pub(crate) fn after_transaction(script: &str) -> &str {
    script.split_once("\nCOMMIT;\n").map_or("", |(_, after)| after)
}

const OWNER: &str = "SELECT /* queue.schema_owner */ pg_get_userbyid(n.nspowner)::text FROM pg_namespace n WHERE n.nspname = 'mill'";

const INSTALLED: &str = "SELECT /* queue.schema_version */ v.version, v.min_compatible_version FROM mill.schema_version v";

/// Schema version of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstalledSchema {
    /// Version of the installed schema.
    pub version: i32,
    /// Programs that were built for this version or a later one may use the schema.
    pub min_compatible_version: i32,
}

from_row! { InstalledSchema { version, min_compatible_version } }

impl InstalledSchema {
    /// Returns whether a program that was built for this schema version may use the database. In an
    /// upgrade the schema comes first, and the programs follow one by one.
    #[must_use]
    pub fn supports(self, program: i32) -> bool {
        (self.min_compatible_version..=self.version).contains(&program)
    }
}

const ENCODING_HINT: &str =
    "Use a database that was created with ENCODING 'UTF8' TEMPLATE template0.";

/// Applies the schema as `psql -f schema.sql` does, also while the fleet works on it. Returns the
/// number of attempts that could not acquire their locks.
///
/// # Errors
/// Fails if the role lacks the privileges, if the database has another schema version or another
/// encoding than UTF8, or if the locks are not available within the maximum number of attempts.
pub async fn init(client: &impl GenericClient) -> Result<u32, QueueError> {
    // In another encoding, the server could not even read the text of the schema.
    let encoding: String = one(client, "SELECT current_setting('server_encoding')", &[]).await?;
    if encoding != "UTF8" {
        return Err(QueueError::Refused {
            message: format!("the encoding of the database is {encoding}, not UTF8"),
            hint: Some(ENCODING_HINT.to_owned()),
        });
    }
    let script = format!(
        "BEGIN;\nSET LOCAL lock_timeout = '{LOCK_TIMEOUT}';\n{}COMMIT;\n{}",
        without_transaction(SCHEMA),
        after_transaction(SCHEMA)
    );
    let mut lock_retries = LockRetries::default();
    while let Err(error) = client.batch_execute(&script).await {
        client.batch_execute("ROLLBACK").await?;
        lock_retries.wait(error).await?;
    }
    Ok(lock_retries.count)
}

/// Returns the schema version of this database; `None` if it has no schema.
///
/// # Errors
/// Fails if the role may not read it, or if the schema belongs to another role than `mill_owner`:
/// a view of this role could run its functions with the rights of the caller.
pub async fn installed(client: &impl GenericClient) -> Result<Option<InstalledSchema>, QueueError> {
    let owner: Option<String> = first(client, OWNER, &[]).await?;
    let Some(owner) = owner else { return Ok(None) };
    if owner != "mill_owner" {
        return Err(QueueError::Refused {
            message: format!("the schema mill belongs to role \"{owner}\", not to mill_owner"),
            hint: Some(
                "Drop the schema if pgmill has not created it, and then run pgmill init."
                    .to_owned(),
            ),
        });
    }
    match first(client, INSTALLED, &[]).await {
        Err(error)
            if [Some(&SqlState::UNDEFINED_TABLE), Some(&SqlState::INVALID_SCHEMA_NAME)]
                .contains(&error.sqlstate()) =>
        {
            Ok(None)
        }
        found => found,
    }
}

/// Returns the error for a database without the schema.
pub(crate) fn missing() -> QueueError {
    QueueError::Refused {
        message: "this database has no pgmill schema".to_owned(),
        hint: Some("Install it with pgmill init, or with psql -f schema.sql.".to_owned()),
    }
}

/// Refuses a database whose schema is incompatible with this program. The error has a hint.
///
/// # Errors
/// Fails if the database has no schema or an incompatible one.
pub async fn check_version(client: &impl GenericClient) -> Result<(), QueueError> {
    let (message, hint) = match installed(client).await? {
        Some(found) if found.supports(VERSION) => return Ok(()),
        None => return Err(missing()),
        Some(InstalledSchema { version, min_compatible_version }) if version > VERSION => (
            format!(
                "this database has schema version {version}; this program supports up to {VERSION}"
            ),
            format!(
                "The schema supports programs that were built for schema version \
                 {min_compatible_version} or later. Use the version of pgmill that the rest of the \
                 fleet runs."
            ),
        ),
        Some(InstalledSchema { version, .. }) => (
            format!("this database has schema version {version}; this program requires {VERSION}"),
            "Upgrade the schema with pgmill init.".to_owned(),
        ),
    };
    Err(QueueError::Refused { message, hint: Some(hint) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_script() {
        let script = "-- mill.version\nSET LOCAL mill.v = '2';\nSET LOCAL mill.version = '13';\n";
        assert_eq!(version_in(script), 13);
    }

    #[test]
    fn a_schema_supports_programs_from_its_oldest_version_up_to_its_own() {
        let found = InstalledSchema { version: 4, min_compatible_version: 3 };
        let served: Vec<i32> = (1..6).filter(|program| found.supports(*program)).collect();
        assert_eq!(served, [3, 4]);
    }
}
