//! A new version of the library that compares texts leaves indexes out of order, and doctor names them.

use crate::harness::{Database, Program};

/// Returns whether the server has collations with a version on every system. Not every build of a server has.
async fn has_icu(database: &Database) -> bool {
    let found: bool = database
        .value("SELECT EXISTS (SELECT FROM pg_collation WHERE collname = 'und-x-icu')")
        .await;
    if !found {
        println!("skipped: the server is built without ICU");
    }
    found
}

#[tokio::test]
async fn doctor_names_a_collation_in_use_whose_version_has_changed() {
    let database = Database::new().await;
    if !has_icu(&database).await {
        return;
    }
    let doctor = async || Program::pgmill(&database, &["doctor"]).run().await.1;
    let found = doctor().await;
    assert!(found.contains("ok       collations       no version has changed"), "{found}");
    // Nothing uses the second collation.
    database
        .execute(
            "CREATE COLLATION \"C d\" (provider = icu, locale = 'de'); CREATE COLLATION other FROM \"C d\";
             CREATE TABLE t (a text COLLATE \"C d\");
             UPDATE pg_collation SET collversion = '1.2' WHERE collname IN ('C d', 'other')",
        )
        .await;
    let found = doctor().await;
    let wanted = "the collation version of collation public.\"C d\" was 1.2 and is ";
    assert!(
        found.contains(wanted) && found.matches("the collation version of").count() == 1,
        "{found}"
    );
    assert!(found.contains("ALTER COLLATION public.\"C d\" REFRESH VERSION"), "{found}");
    database.execute("ALTER COLLATION \"C d\" REFRESH VERSION").await;
    let found = doctor().await;
    assert!(found.contains("no version has changed"), "{found}");
}

/// Databases have a version since PostgreSQL 15.
#[tokio::test]
async fn doctor_names_a_database_whose_collation_has_changed() {
    let old = Database::new().await;
    if old.major().await < 15 || !has_icu(&old).await {
        return;
    }
    let database = Database::with_icu().await;
    let name = database.name();
    database
        .execute(&format!("UPDATE pg_database SET datcollversion = '1.2' WHERE datname = '{name}'"))
        .await;
    let found = Program::pgmill(&database, &["doctor"]).run().await.1;
    let hint = format!(
        "hint: REINDEX DATABASE {name}, then ALTER DATABASE {name} REFRESH COLLATION VERSION."
    );
    assert!(
        found.contains(&format!("of database {name} was 1.2 and is ")) && found.contains(&hint),
        "{found}"
    );
    database.execute(&format!("ALTER DATABASE {name} REFRESH COLLATION VERSION")).await;
    let found = Program::pgmill(&database, &["doctor"]).run().await.1;
    assert!(found.contains("no version has changed"), "{found}");
}
