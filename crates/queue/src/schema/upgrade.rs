//! Upgrades the schema of a database while the fleet is running.
//!
//! A migration changes what `schema.sql` cannot change by being applied again: tables, types, and
//! functions that get other arguments. An upgrade is one transaction, which applies every missing
//! migration and then `schema.sql`. The latter replaces the functions, views, comments and grants,
//! which therefore are written in one place only. An upgraded schema and a new schema are the same.
//!
//! The transaction waits for a lock only briefly, and is then tried again.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::schema;
use crate::schema::lock_retries::{LOCK_TIMEOUT, LockRetries};

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

/// Every file of `schema/migrations/`, in the order from the first version to
/// [`schema::VERSION`].
pub const MIGRATIONS: &[Migration] = &[];

/// Maximum time that a statement of an upgrade may hold its locks, unless the migration sets
/// another limit.
const STATEMENT_TIMEOUT: &str = "5s";

/// Result of an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upgrade {
    /// Names of the migrations that this call applied, in order.
    pub applied: Vec<&'static str>,
    /// Number of attempts that could not acquire their locks.
    pub lock_retries: u32,
}

/// Returns the whole transaction of an upgrade from `version`, and what `schema` executes after it,
/// in the form in which [`upgrade`] runs it and psql accepts it. `schema` is the `schema.sql` of the last migration. Returns `None`
/// if there is no migration to apply.
#[must_use]
pub fn script(migrations: &[Migration], schema: &str, version: i32) -> Option<String> {
    let missing: Vec<&Migration> = pending(migrations, version).collect();
    let Migration { version: to, min_compatible_version, .. } = missing.last()?;
    let changes: Vec<String> = missing
        .iter()
        .map(|migration| format!("-- {}\n{}\n;", migration.name, migration.sql.trim_end()))
        .collect();
    let changes = changes.join("\n");
    let statistics = schema::after_transaction(schema);
    let schema = schema::without_transaction(schema);
    Some(format!(
        "BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog;
SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';
SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}';
SET LOCAL ROLE mill_owner;
LOCK TABLE mill.schema_version IN SHARE ROW EXCLUSIVE MODE;
RESET ROLE;
DO $guard$
BEGIN
    IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'citus') THEN
        PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    END IF;
    IF (SELECT v.version FROM mill.schema_version v) <> {version} THEN
        RAISE EXCEPTION 'this database does not have schema version {version}' USING ERRCODE = '55000';
    END IF;
END
$guard$;
SET LOCAL ROLE mill_owner;
{changes}
UPDATE mill.schema_version SET version = {to}, min_compatible_version = {min_compatible_version}, applied_at = now();
RESET ROLE;
{schema}
COMMIT;
{statistics}"
    ))
}

/// Returns the migrations after this version, in order.
pub fn pending(migrations: &[Migration], version: i32) -> impl Iterator<Item = &Migration> {
    migrations.iter().filter(move |migration| migration.version > version)
}

/// Applies the missing migrations and `schema` in one transaction. Several processes may do this at
/// the same time.
///
/// # Errors
/// Fails if the database has no schema, a migration is missing, the role lacks the privileges, or
/// the locks are not available within the maximum number of attempts. In all of these cases the
/// schema is unchanged.
pub async fn upgrade(
    client: &impl GenericClient,
    migrations: &[Migration],
    schema: &str,
) -> Result<Upgrade, QueueError> {
    let mut lock_retries = LockRetries::default();
    loop {
        let version = schema::installed(client).await?.map_or(0, |found| found.version);
        let missing: Vec<&Migration> = pending(migrations, version).collect();
        if let Some(next) = missing.first().filter(|next| next.version != version + 1) {
            return Err(missing_migration(version, next.version));
        }
        let applied = missing.iter().map(|migration| migration.name).collect();
        let done = Upgrade { applied, lock_retries: lock_retries.count };
        let Some(script) = script(migrations, schema, version) else { return Ok(done) };
        let Err(error) = client.batch_execute(&script).await else { return Ok(done) };
        client.batch_execute("ROLLBACK").await?;
        let upgraded_by_another =
            schema::installed(client).await?.map_or(0, |found| found.version) != version;
        if !upgraded_by_another {
            lock_retries.wait(error).await?;
        }
    }
}

fn missing_migration(from: i32, to: i32) -> QueueError {
    QueueError::Refused {
        message: format!("no migration leads from schema version {from} to {}", to - 1),
        hint: Some("First upgrade with a version of pgmill between the two.".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_lead_step_by_step_to_the_version_of_this_program() {
        let last = MIGRATIONS.last();
        assert_eq!(last.map_or(1, |last| last.version), schema::VERSION);
        let oldest = last.map_or(1, |last| last.min_compatible_version);
        let oldest = format!("SET LOCAL mill.min_compatible_version = '{oldest}';");
        assert!(schema::SCHEMA.contains(&oldest), "schema.sql supports other programs");
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
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schema/migrations");
        let names = std::fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> = names.filter(|name| name.ends_with(".sql")).collect();
        files.sort();
        let known: Vec<&str> = MIGRATIONS.iter().map(|migration| migration.name).collect();
        assert_eq!(files, known);
    }
}
