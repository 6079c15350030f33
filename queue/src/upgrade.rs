//! Bringing the schema of a database forward while the fleet works on it.
//!
//! A migration leads from one version to the next, in one transaction. It waits for a lock only
//! briefly: whoever waits for an exclusive lock has everybody behind it who comes later, so a
//! migration that does not get its locks at once gives up all of them, lets the fleet go on, and tries
//! again. `schema.sql` stays the whole present schema; both ways lead to the same one.

use std::time::Duration;

use rand::RngExt;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::error::QueueError;
use crate::schema;

/// The step from the version before to `version`.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The version that it leads to.
    pub version: i32,
    /// Programs that were built for this version of the schema, or a later one, may go on using it.
    pub works_with: i32,
    /// Name of its file.
    pub name: &'static str,
    /// Statements, without a transaction around them.
    pub sql: &'static str,
}

/// Every file of `migrations/`, in order: from version 1 to [`schema::VERSION`].
pub const MIGRATIONS: &[Migration] = &[];

/// How long one try waits for a lock, and so the longest that the fleet stands behind it.
const LOCK_TIMEOUT: &str = "300ms";

/// Longer than this no statement of a migration holds its locks, unless its file says so.
const STATEMENT_TIMEOUT: &str = "5s";

/// With the waits between them about two minutes.
const MAX_TRIES: u32 = 100;

/// Between two tries, drawn anew: a fleet of short transactions must not keep step with it.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(1500));

/// What an upgrade did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upgrade {
    /// Names of the migrations that were applied here, in order.
    pub applied: Vec<&'static str>,
    /// How often one of them gave way to the fleet and was tried again.
    pub lock_retries: u32,
}

/// The whole transaction of a migration, as it is run, and as psql would take it.
#[must_use]
pub fn script(migration: &Migration) -> String {
    let Migration { version, works_with, name, sql } = migration;
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
        RAISE EXCEPTION 'this database does not hold version {before} of the schema' USING ERRCODE = '55000';
    END IF;
END
$guard$;
SET LOCAL ROLE mill_owner;
{sql}
;
UPDATE mill.schema_version SET version = {version}, works_with = {works_with}, applied_at = now();
COMMIT;"
    )
}

/// Those that lead on from this version, in order.
pub fn pending(migrations: &[Migration], version: i32) -> impl Iterator<Item = &Migration> {
    migrations.iter().filter(move |migration| migration.version > version)
}

/// Applies what is missing in a database that holds an older version, one transaction each. Several
/// may do so at once. What was applied before an error stays.
///
/// # Errors
/// No schema; a step that is missing; missing rights; other database trouble; a lock that was not to
/// be had in as many tries as there are.
pub async fn upgrade(client: &Client, migrations: &[Migration]) -> Result<Upgrade, QueueError> {
    let mut done = Upgrade::default();
    let mut tries = 0;
    loop {
        let version = schema::installed(client).await?.map_or(0, |found| found.version);
        let Some(next) = pending(migrations, version).next() else { return Ok(done) };
        if next.version != version + 1 {
            return Err(missing_migration(version, next.version));
        }
        let Err(error) = client.batch_execute(&script(next)).await else {
            done.applied.push(next.name);
            tries = 0;
            continue;
        };
        client.batch_execute("ROLLBACK").await?;
        tries += 1;
        let locked = [&SqlState::LOCK_NOT_AVAILABLE, &SqlState::T_R_DEADLOCK_DETECTED];
        let moved_on = schema::installed(client).await?.map_or(0, |found| found.version) != version;
        if moved_on {
            continue;
        }
        if !error.code().is_some_and(|code| locked.contains(&code)) {
            return Err(error.into());
        }
        if tries >= MAX_TRIES {
            return Err(locks_unavailable(next.name));
        }
        done.lock_retries += 1;
        let wait = rand::rng().random_range(RETRY_DELAY.0..RETRY_DELAY.1);
        tracing::debug!(migration = next.name, tries, "gave way to the fleet");
        sleep(wait).await;
    }
}

fn missing_migration(from: i32, to: i32) -> QueueError {
    QueueError::Refused {
        message: format!("no migration leads from schema version {from} to {}", to - 1),
        hint: Some("Upgrade with a version of pgmill between the two first.".to_owned()),
    }
}

fn locks_unavailable(name: &str) -> QueueError {
    QueueError::Refused {
        message: format!("{name} did not get its locks in {MAX_TRIES} tries, and changed nothing"),
        hint: Some(
            "A transaction that has used the queue's tables stays open: pgmill doctor names the \
             oldest. Try again when it has ended."
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migrations_lead_to_the_version_of_this_program_step_by_step() {
        let last = MIGRATIONS.last().map_or(1, |migration| migration.version);
        assert_eq!(last, schema::VERSION);
        for (before, migration) in (1..).zip(MIGRATIONS) {
            assert_eq!(migration.version, before + 1, "{}", migration.name);
            let number = format!("{:03}_", migration.version);
            assert!(migration.name.starts_with(&number), "{}", migration.name);
            assert!(migration.works_with >= migration.version - 1, "{}", migration.name);
            assert!(migration.works_with <= migration.version, "{}", migration.name);
        }
    }

    #[test]
    fn every_file_of_the_folder_is_in_the_program() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../migrations");
        let names = std::fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> = names.filter(|name| name.ends_with(".sql")).collect();
        files.sort();
        let known: Vec<&str> = MIGRATIONS.iter().map(|migration| migration.name).collect();
        assert_eq!(files, known);
    }
}
