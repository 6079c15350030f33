//! A membership gives the rights of a role only if the member has them (INHERIT) or can assume them (SET).
//! PostgreSQL 16 and later know memberships without both.

use crate::harness::Database;
use crate::harness::login::{Login, answer};

/// A membership in a role, as PostgreSQL writes it after `GRANT role TO member`.
struct Membership {
    name: &'static str,
    options: &'static str,
    /// Result of an enqueue as a profile that is open to the role.
    acts: &'static str,
    /// Whether hidden texts are visible to a member of `mill_operator`.
    reads: bool,
}

const MEMBERSHIPS: [Membership; 5] = [
    Membership { name: "full", options: "INHERIT TRUE, SET TRUE", acts: "ok", reads: true },
    Membership { name: "inherits", options: "INHERIT TRUE, SET FALSE", acts: "ok", reads: true },
    // Reads after SET ROLE, as with any privilege.
    Membership { name: "assumes", options: "INHERIT FALSE, SET TRUE", acts: "ok", reads: false },
    Membership { name: "none", options: "INHERIT FALSE, SET FALSE", acts: "42501", reads: false },
    Membership {
        name: "admin",
        options: "INHERIT FALSE, SET FALSE, ADMIN TRUE",
        acts: "42501",
        reads: false,
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn a_membership_without_rights_opens_nothing() {
    let database = Database::new().await;
    if database.major().await < 16 {
        println!("skipped: before version 16, every membership gives the rights of the role");
        return;
    }
    let loaders = Login::new(&database, "loaders", "").await;
    database
        .execute(&format!(
            "SELECT mill.set_profile('etl', allowed => '{{{}}}');
             UPDATE mill.settings SET hide_statements = true;
             SELECT mill.enqueue('SELECT 42')",
            loaders.name
        ))
        .await;
    for Membership { name, options, acts, reads } in MEMBERSHIPS {
        let login = Login::new(&database, name, "mill_producer, mill_viewer").await;
        database
            .execute(&format!(
                "GRANT {}, mill_operator TO {} WITH {options}",
                loaders.name, login.name
            ))
            .await;
        let client = login.connect().await;
        let enqueue = "BEGIN; SELECT mill.enqueue('SELECT 1', run_as => 'etl'); ROLLBACK";
        assert_eq!(answer(&client, enqueue).await, acts, "{name} enqueues as the profile");
        client.batch_execute("ROLLBACK").await.unwrap();
        let texts = "SELECT count(statement) FROM mill.visible_tasks";
        let seen: i64 = client.query_one(texts, &[]).await.unwrap().get(0);
        assert_eq!(seen == 1, reads, "{name} reads the statement");
        drop(client);
        login.gone().await;
    }
    // Operators declare jobs by functions with the rights of their owner.
    let operator = Login::new(&database, "operator", "mill_operator").await;
    let declare =
        r#"SELECT mill.set_job('j', '[{"name": "t", "statement": "SELECT 1", "run_as": "etl"}]')"#;
    let client = operator.connect().await;
    for (options, expected) in [("INHERIT FALSE, SET FALSE", "42501"), ("SET TRUE", "ok")] {
        let grant = format!("GRANT {} TO {} WITH {options}", loaders.name, operator.name);
        database.execute(&grant).await;
        assert_eq!(answer(&client, declare).await, expected, "with {options}");
    }
    // The creator of a role becomes a member without rights.
    let maker = Login::new(&database, "maker", "mill_producer").await;
    database.execute(&format!("ALTER ROLE {} CREATEROLE", maker.name)).await;
    let client = maker.connect().await;
    let team = format!("{}_team", maker.name);
    client.batch_execute(&format!("CREATE ROLE {team}")).await.unwrap();
    database.execute(&format!("SELECT mill.set_profile('pay', allowed => '{{{team}}}')")).await;
    let enqueue = "SELECT mill.enqueue('SELECT 1', run_as => 'pay')";
    assert_eq!(answer(&client, enqueue).await, "42501", "the creator of the role");
    drop(client);
    database.execute(&format!("DROP ROLE {team}")).await;
    maker.gone().await;
    operator.drop().await;
    loaders.drop().await;
}
