//! Upgrades the schema of a database while the fleet is running.
//!
//! A migration leads from one version to the next, in one transaction. It waits for a lock only
//! briefly: a session that waits for an exclusive lock blocks all sessions that come later, so a
//! migration that does not get its locks at once releases all of them, lets the fleet continue, and
//! tries again. `schema.sql` remains the complete current schema; applying `schema.sql` and
//! applying all migrations produce the same schema.

use std::time::Duration;

use rand::RngExt;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::error::QueueError;
use crate::schema;

/// The migration from the previous version to `version`.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The version that it produces.
    pub version: i32,
    /// Programs that were built for this schema version or a later one may continue to use it.
    pub min_compatible_version: i32,
    /// File name.
    pub name: &'static str,
    /// Statements, without transaction control.
    pub sql: &'static str,
}

/// Every file of `migrations/`, in order: from version 1 to [`schema::VERSION`].
pub const MIGRATIONS: &[Migration] = &[];

/// Maximum time that one attempt waits for a lock, and so the longest time that the attempt blocks
/// the fleet.
const LOCK_TIMEOUT: &str = "300ms";

/// Maximum time that a statement of a migration may hold its locks, unless its file sets another
/// one.
const STATEMENT_TIMEOUT: &str = "5s";

/// Maximum number of attempts to get the locks of a migration. All of them take about two minutes,
/// including the delays between them.
const MAX_ATTEMPTS: u32 = 100;

/// Delay between two attempts; random, so that the attempts do not synchronize with the short
/// transactions of the fleet.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(1500));

/// Result of an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upgrade {
    /// Names of the migrations that were applied here, in order.
    pub applied: Vec<&'static str>,
    /// Number of attempts that could not acquire their locks and were repeated.
    pub lock_retries: u32,
}

/// Returns the whole transaction of a migration, as [`upgrade`] runs it and psql accepts it.
#[must_use]
pub fn script(migration: &Migration) -> String {
    let Migration { version, min_compatible_version, name, sql } = migration;
    let before = version - 1;
    format!(
        "-- {name}: version {before} to {version}
BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog;
SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';
SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}';
SELECT pg_advisory_xact_lock(7236270911);
DO $guard$
BEGIN
    IF (SELECT v.version FROM mill.schema_version v) <> {before} THEN
        RAISE EXCEPTION 'this database does not have schema version {before}' USING ERRCODE = '55000';
    END IF;
END
$guard$;
SET LOCAL ROLE mill_owner;
{sql}
;
UPDATE mill.schema_version SET version = {version}, min_compatible_version = {min_compatible_version}, applied_at = now();
COMMIT;"
    )
}

/// Returns the migrations after this version, in order.
pub fn pending(migrations: &[Migration], version: i32) -> impl Iterator<Item = &Migration> {
    migrations.iter().filter(move |migration| migration.version > version)
}

/// Applies the missing migrations, one transaction each. Several processes may run it at the same
/// time. Migrations that were applied before an error remain.
///
/// # Errors
/// Fails if the database has no schema, a migration is missing, the role lacks the privileges, or
/// the locks are not available within the maximum number of attempts.
pub async fn upgrade(client: &Client, migrations: &[Migration]) -> Result<Upgrade, QueueError> {
    let mut done = Upgrade::default();
    let mut attempts = 0;
    loop {
        let version = schema::installed(client).await?.map_or(0, |found| found.version);
        let Some(next) = pending(migrations, version).next() else { return Ok(done) };
        if next.version != version + 1 {
            return Err(missing_migration(version, next.version));
        }
        let Err(error) = client.batch_execute(&script(next)).await else {
            done.applied.push(next.name);
            attempts = 0;
            continue;
        };
        client.batch_execute("ROLLBACK").await?;
        attempts += 1;
        let locked = [&SqlState::LOCK_NOT_AVAILABLE, &SqlState::T_R_DEADLOCK_DETECTED];
        let moved_on = schema::installed(client).await?.map_or(0, |found| found.version) != version;
        if moved_on {
            continue;
        }
        if !error.code().is_some_and(|code| locked.contains(&code)) {
            return Err(error.into());
        }
        if attempts >= MAX_ATTEMPTS {
            return Err(locks_unavailable(next.name));
        }
        done.lock_retries += 1;
        let wait = rand::rng().random_range(RETRY_DELAY.0..RETRY_DELAY.1);
        tracing::debug!(migration = next.name, attempts, "locks not available, retrying migration");
        sleep(wait).await;
    }
}

fn missing_migration(from: i32, to: i32) -> QueueError {
    QueueError::Refused {
        message: format!("no migration leads from schema version {from} to {}", to - 1),
        hint: Some("First upgrade with a version of pgmill between the two.".to_owned()),
    }
}

fn locks_unavailable(name: &str) -> QueueError {
    QueueError::Refused {
        message: format!(
            "could not acquire the locks for migration {name} after {MAX_ATTEMPTS} attempts; \
             the migration was rolled back"
        ),
        hint: Some(
            "Try again when no long transaction is running: pgmill doctor shows the oldest \
             transaction that uses the queue's tables."
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_lead_step_by_step_to_the_version_of_this_program() {
        let last = MIGRATIONS.last().map_or(1, |migration| migration.version);
        assert_eq!(last, schema::VERSION);
        for (before, migration) in (1..).zip(MIGRATIONS) {
            assert_eq!(migration.version, before + 1, "{}", migration.name);
            let number = format!("{:03}_", migration.version);
            assert!(migration.name.starts_with(&number), "{}", migration.name);
            assert!(
                migration.min_compatible_version >= migration.version - 1,
                "{}",
                migration.name
            );
            assert!(migration.min_compatible_version <= migration.version, "{}", migration.name);
        }
    }

    #[test]
    fn every_file_of_the_folder_is_compiled_in() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../migrations");
        let names = std::fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> = names.filter(|name| name.ends_with(".sql")).collect();
        files.sort();
        let known: Vec<&str> = MIGRATIONS.iter().map(|migration| migration.name).collect();
        assert_eq!(files, known);
    }
}
