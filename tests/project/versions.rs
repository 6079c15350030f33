//! The next version of the schema: an upgraded database has the same schema as a new one, and the programs of this
//! version keep working with it.
//!
//! No version was released yet, so the next one is a fixture with the typical parts of a change: a column, a value of an
//! enum, a changed view, and changed functions. `upgrade.rs` applies it under a working fleet.

use std::collections::{BTreeMap, BTreeSet};

use queue::schema::{SCHEMA, VERSION};
use queue::upgrade::{Migration, upgrade};

use crate::harness::login::create_logins;
use crate::harness::{Database, Worker};
use crate::project::schema::dump;
use crate::project::tidy::{files, literals, statement_name, without_tests};

type Statements = BTreeMap<String, String>;

/// What applying the next schema.sql does not change.
pub(crate) const NEXT: Migration = Migration {
    version: VERSION + 1,
    min_compatible_version: VERSION,
    name: "002_colour.sql",
    sql: "
ALTER TYPE mill.outcome ADD VALUE 'shelved';
ALTER TABLE mill.tasks ADD COLUMN colour text NOT NULL DEFAULT 'none';
DROP FUNCTION mill.reserved_readers;",
};

/// Returns schema.sql of the next version.
pub(crate) fn next_schema() -> String {
    let setting = |version: i32| format!("SET LOCAL mill.version = '{version}';");
    let (own, next) = (setting(VERSION), setting(VERSION + 1));
    let changes = [
        (own.as_str(), next.as_str()),
        ("'unknown', 'interrupted');", "'unknown', 'interrupted', 'shelved');"),
        (
            "    receipt uuid,\n    CONSTRAINT node_of_a_run",
            "    receipt uuid,\n    colour text NOT NULL DEFAULT 'none',\n    CONSTRAINT node_of_a_run",
        ),
        (
            "COMMENT ON TABLE mill.tasks IS",
            "CREATE INDEX IF NOT EXISTS tasks_colour ON mill.tasks (colour) WHERE colour <> 'none';\n\
             COMMENT ON TABLE mill.tasks IS",
        ),
        (
            "AS oldest_pending_age\n    FROM mill.priorities p",
            "AS oldest_pending_age, 2 AS colours\n    FROM mill.priorities p",
        ),
        (
            "BEGIN\n    -- If the statement ended its transaction,",
            "BEGIN\n    PERFORM 2;\n    -- If the statement ended its transaction,",
        ),
        (
            "mill.reserved_readers(worker_id uuid) RETURNS",
            "mill.reserved_readers(worker_id uuid, colour text DEFAULT NULL) RETURNS",
        ),
    ];
    changes.into_iter().fold(SCHEMA.to_owned(), |schema, (old, new)| {
        assert_eq!(schema.matches(old).count(), 1, "{old}");
        schema.replace(old, new)
    })
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
    let (old, new) = (Database::new().await, Database::empty().await);
    old.execute("SELECT mill.enqueue('SELECT 1', key => 'k')").await;
    let done = upgrade(old.client(), &[NEXT], &next_schema()).await.unwrap();
    assert_eq!(done.applied, [NEXT.name]);
    new.execute(&next_schema()).await;
    create_logins(new.client()).await;
    new.execute("SELECT mill.prepare_history()").await;
    let (Some(upgraded), Some(expected)) = (dump(&old), dump(&new)) else { return };
    assert!(upgraded == expected, "the upgrade differs:\n{}", difference(&expected, &upgraded));
    let worker = Worker::start(&old, &[]);
    old.until_empty().await;
    drop(worker);
}

/// Returns the lines that only one of the texts contains.
fn difference(expected: &str, found: &str) -> String {
    let (expected, found): (BTreeSet<&str>, BTreeSet<&str>) =
        (expected.lines().collect(), found.lines().collect());
    let missing = expected.difference(&found).map(|line| format!("- {line}\n"));
    let added = found.difference(&expected).map(|line| format!("+ {line}\n"));
    missing.chain(added).collect()
}

#[tokio::test]
async fn the_next_schema_accepts_every_statement_of_these_programs() {
    let statements = statements();
    assert!(statements.len() > 80, "{} statements are found", statements.len());
    let database = Database::new().await;
    let before = understood(&database, &statements).await;
    // The other literals are fragments of statements, or statements whose parameter types depend on
    // the programs.
    println!("{} of {} statements can be prepared alone", before.len(), statements.len());
    assert!(before.len() * 5 > statements.len() * 4);
    upgrade(database.client(), &[NEXT], &next_schema()).await.unwrap();
    for (name, columns) in &before {
        let after = understood(&database, &[(name.clone(), statements[name].clone())].into()).await;
        let after = after.get(name).unwrap_or_else(|| panic!("{name} is no longer accepted"));
        assert!(columns.is_subset(after), "{name} returned {columns:?}, and now {after:?}");
    }
    // Check that this test would find an incompatible change.
    database.execute("ALTER TABLE mill.worker_starts RENAME COLUMN host TO computer").await;
    let after = understood(&database, &statements).await;
    let name = "queue.register";
    assert!(before.contains_key(name) && !after.contains_key(name));
}
