//! The notes on upgrades: their commands work on an installed schema.

use std::fs;

use queue::schema::VERSION;

use crate::harness::program::PathFolder;
use crate::harness::{Database, Worker};
use crate::project::book::cookbook::{blocks, shell};
use crate::project::tidy::root;

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_upgrade_notes_run() {
    let page = fs::read_to_string(root().join("docs/upgrade.md")).unwrap();
    let section = format!("(schema version {VERSION})");
    assert!(page.contains(&section), "docs/upgrade.md has no notes on {section}");
    let database = Database::new().await;
    database.execute("SELECT mill.enqueue('SELECT 1')").await;
    let programs = PathFolder::new();
    let mut ran = 0;
    for (language, block) in blocks(&page) {
        if language == "sql" {
            database.execute(&block).await;
        } else {
            let mut shell = shell(&programs, root().as_path(), &block);
            shell.env("DATABASE_URL", database.url());
            let output =
                tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
            assert!(
                output.status.success(),
                "{block}\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        ran += 1;
    }
    assert!(ran >= 2, "{ran} blocks");
    let version = "SELECT version FROM mill.schema_version";
    assert_eq!(database.value::<i32>(version).await, VERSION);
    let _worker = Worker::start(&database, &["--readers", "1", "--poll-interval", "100ms"]);
    database.until_empty().await;
    let outcome = "SELECT outcome::text FROM mill.attempts";
    assert_eq!(database.value::<String>(outcome).await, "succeeded");
}
