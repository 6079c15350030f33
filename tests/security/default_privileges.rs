//! A house rule about default privileges gives nobody rights on the objects of pgmill.

use queue::doctor::foreign_grants;
use queue::schema::SCHEMA;

use crate::harness::Database;
use crate::harness::login::Login;

/// Returns the roles with privileges on objects of the schema that are not pgmill's.
async fn found(database: &Database) -> Vec<String> {
    let grants = foreign_grants(database.client()).await.unwrap();
    grants.into_iter().map(|grant| format!("{} {}", grant.role, grant.example)).collect()
}

#[tokio::test]
async fn default_privileges_give_no_rights_on_tables_partitions_and_functions() {
    let database = Database::new().await;
    database.execute("DROP SCHEMA mill CASCADE").await;
    let login = Login::new(&database, "house", "").await;
    let rule = format!(
        "ALTER DEFAULT PRIVILEGES FOR ROLE mill_owner GRANT ALL ON TABLES TO {0};
         ALTER DEFAULT PRIVILEGES FOR ROLE mill_owner GRANT SELECT ON TABLES TO mill_viewer, PUBLIC;
         ALTER DEFAULT PRIVILEGES FOR ROLE mill_owner GRANT ALL ON SEQUENCES TO {0};
         ALTER DEFAULT PRIVILEGES FOR ROLE mill_owner GRANT EXECUTE ON ROUTINES TO {0}, PUBLIC;
         ALTER DEFAULT PRIVILEGES FOR ROLE mill_owner GRANT ALL ON SCHEMAS TO {0}",
        login.name
    );
    database.execute(&rule).await;
    database.execute(SCHEMA).await;
    assert_eq!(found(&database).await, [] as [&str; 0]);
    // The rule comes again, before the next partitions.
    database.execute(&rule).await;
    let days: i32 = database.value("SELECT mill.prepare_history(9)").await;
    assert_eq!(days, 2);
    assert_eq!(found(&database).await, [] as [&str; 0]);
    let readable = "SELECT count(*) FROM pg_class c WHERE c.relnamespace = 'mill'::regnamespace
        AND c.relname ~ '^attempts_' AND has_table_privilege('mill_viewer', c.oid, 'SELECT')";
    assert_eq!(database.value::<i64>(readable).await, 0);
    // What an object has got meanwhile ends with the next installation.
    database.execute("SET ROLE mill_owner; CREATE TABLE mill.added (id int); RESET ROLE").await;
    let both = ["PUBLIC added".to_owned(), format!("{} added", login.name)];
    assert_eq!(found(&database).await, both);
    database.execute(SCHEMA).await;
    assert_eq!(found(&database).await, [] as [&str; 0]);
    login.drop().await;
}

#[tokio::test]
async fn doctor_names_the_roles_that_have_rights_in_the_schema() {
    let database = Database::new().await;
    let login = Login::new(&database, "reader", "").await;
    database.execute(&format!("GRANT SELECT (token) ON mill.tasks TO {}", login.name)).await;
    database.execute(&format!("GRANT EXECUTE ON FUNCTION mill.prune TO {}", login.name)).await;
    assert_eq!(found(&database).await, [format!("{} prune", login.name)]);
    let grants = foreign_grants(database.client()).await.unwrap();
    assert_eq!((grants[0].privileges.as_str(), grants[0].objects), ("EXECUTE, SELECT", 2));
    login.drop().await;
}
