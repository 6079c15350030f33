//! Versions of the schema: an upgraded database has the same schema as a new one, and programs of
//! the previous version keep working with it.
//!
//! `tests/upgrade/` holds each earlier version as it was: `schema_N.sql`, and `statements_N.json`
//! with the statements of the programs by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use queue::schema::{SCHEMA, VERSION};
use queue::upgrade::{MIGRATIONS, upgrade};

use crate::harness::login::create_logins;
use crate::harness::{Database, Worker};
use crate::project::schema::{dump, no_drift};
use crate::project::tidy::{files, literals, root, statement_name, without_tests};

type Statements = BTreeMap<String, String>;

pub(crate) fn recorded(name: &str) -> String {
    fs::read_to_string(root().join("tests/upgrade").join(name)).unwrap()
}

/// A clause of functions of version 1. PostgreSQL 16 and later refuse it, so they never had this
/// version. Without the clause, the upgrade can be tested on them too.
const REFUSED_CLAUSE: &str = " SET transaction_read_only = on";

/// Creates a database with the schema of an earlier version.
pub(crate) async fn at_version(version: i32) -> Database {
    let database = Database::empty().await;
    let mut schema = recorded(&format!("schema_{version}.sql"));
    if database.major().await >= 16 {
        schema = schema.replace(REFUSED_CLAUSE, "");
    }
    database.execute(&schema).await;
    create_logins(database.client()).await;
    database
}

async fn upgrade_to_current(database: &Database) {
    let done = upgrade(database.client(), MIGRATIONS, SCHEMA).await.unwrap();
    assert!(!done.applied.is_empty());
}

/// Returns, by name, every statement that is a single literal in the source of the programs.
fn statements() -> Statements {
    let mut found = BTreeMap::new();
    for (path, text) in
        files(&["clients/rust/src", "crates/queue/src", "crates/schedule/src"], &[".rs"])
    {
        if path.contains("/tests") {
            continue;
        }
        for (_, literal) in literals(without_tests(&text)) {
            if let Some(name) = statement_name(literal) {
                let sql = literal.replace("\\\n", "").replace("\\\"", "\"").replace("\\\\", "\\");
                found.insert(name.to_owned(), sql);
            }
        }
    }
    found
}

/// Returns the columns of each statement that the server can prepare, as `name type`.
async fn understood(
    database: &Database,
    statements: &Statements,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut columns = BTreeMap::new();
    for (name, sql) in statements {
        if let Ok(prepared) = database.client().prepare(sql).await {
            let described = prepared.columns().iter();
            let described = described.map(|column| format!("{} {}", column.name(), column.type_()));
            columns.insert(name.clone(), described.collect());
        }
    }
    columns
}

#[tokio::test]
async fn an_upgraded_schema_equals_a_new_one() {
    let new = Database::new().await;
    for version in 1..VERSION {
        let old = at_version(version).await;
        // Insert rows, and create the partitions of today.
        old.execute("SELECT mill.prepare_history(); SELECT mill.enqueue('SELECT 1', key => 'k')")
            .await;
        upgrade_to_current(&old).await;
        no_drift(&old).await;
        new.execute("SELECT mill.prepare_history()").await;
        let (Some(upgraded), Some(expected)) = (dump(&old), dump(&new)) else { return };
        assert!(
            upgraded == expected,
            "the upgrade from version {version} differs:\n{}",
            similar(&expected, &upgraded)
        );
        let worker = Worker::start(&old, &[]);
        old.until_empty().await;
        drop(worker);
    }
}

/// Returns the lines that only one of the texts contains.
fn similar(expected: &str, found: &str) -> String {
    let (expected, found): (BTreeSet<&str>, BTreeSet<&str>) =
        (expected.lines().collect(), found.lines().collect());
    let missing = expected.difference(&found).map(|line| format!("- {line}\n"));
    let added = found.difference(&expected).map(|line| format!("+ {line}\n"));
    missing.chain(added).collect()
}

#[tokio::test]
async fn the_schema_accepts_every_statement_of_the_previous_programs() {
    let statements: Statements =
        serde_json::from_str(&recorded(&format!("statements_{}.json", VERSION - 1))).unwrap();
    assert!(statements.len() > 80, "{} statements are recorded", statements.len());
    let database = at_version(VERSION - 1).await;
    let before = understood(&database, &statements).await;
    // The other literals are fragments of statements, or statements whose parameter types depend on
    // the programs.
    println!("{} of {} statements can be prepared alone", before.len(), statements.len());
    assert!(before.len() * 5 > statements.len() * 4);
    upgrade_to_current(&database).await;
    for (name, columns) in &before {
        let after = understood(&database, &[(name.clone(), statements[name].clone())].into()).await;
        let after = after.get(name).unwrap_or_else(|| panic!("{name} is no longer accepted"));
        assert!(columns.is_subset(after), "{name} returned {columns:?}, and now {after:?}");
    }
    // Check that this test would find an incompatible change.
    database.execute("ALTER TABLE mill.worker_starts RENAME COLUMN host TO computer").await;
    let after = understood(&database, &statements).await;
    for name in ["queue.register", "queue.workers"] {
        assert!(before.contains_key(name) && !after.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn calls_of_version_1_work_on_the_current_schema() {
    let database = at_version(1).await;
    let calls = [
        "SELECT mill.enqueue('SELECT 1', NULL, 'a', 'default', 'high')",
        "SELECT mill.enqueue_many('{SELECT 1,SELECT 2}', queue => 'etl')",
        "SELECT id, created FROM mill.submit('SELECT 1', key => 'k', max_attempts => 2)",
        "SELECT mill.set_job('j', '[{\"name\": \"t\", \"statement\": \"SELECT 1\"}]')",
        "SELECT run_id, dropped FROM mill.start_run('{j}', '{}')",
        "SELECT mill.set_schedule('s', 'daily(03:15)', 'SELECT 1')",
        "SELECT mill.run_now('s', true)",
    ];
    for call in calls {
        database.execute(call).await;
    }
    upgrade_to_current(&database).await;
    for call in calls {
        database.execute(call).await;
    }
}

/// Writes the current version to `tests/upgrade/`. Run it before the version changes.
#[test]
#[ignore = "writes files: cargo test -p tests -- --ignored records_this_version"]
fn records_this_version() {
    let folder = root().join("tests/upgrade");
    fs::write(folder.join(format!("schema_{VERSION}.sql")), SCHEMA).unwrap();
    let text = serde_json::to_string_pretty(&statements()).unwrap();
    fs::write(folder.join(format!("statements_{VERSION}.json")), text + "\n").unwrap();
}
