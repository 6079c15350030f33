//! A role that may create schemas gains nothing by creating one of pgmill's schemas before pgmill is
//! installed.

use queue::{receipt, schema};

use crate::harness::login::{Login, assert_answers};
use crate::harness::{Database, Program};

/// Why the programs are started as the superuser.
const VICTIM: &str = "the attack is on the rights of a superuser";

/// Creates a login that may create schemas, and a function that makes this login a superuser if a
/// superuser calls the function.
async fn attacker<'a>(database: &'a Database, schema: &str) -> Login<'a> {
    let login = Login::new(database, "attacker", "").await;
    let (name, place) = (&login.name, database.name());
    database.execute(&format!("GRANT CREATE ON DATABASE {place} TO {name}")).await;
    let client = login.connect().await;
    let create = format!(
        "CREATE SCHEMA {schema};
         CREATE FUNCTION {schema}.gain() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
             RESET ROLE; ALTER ROLE {name} SUPERUSER; RETURN {}; END $$;
         CREATE FUNCTION {schema}.gain_by_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RESET ROLE; ALTER ROLE {name} SUPERUSER; RETURN new; END $$",
        schema::VERSION
    );
    assert_answers(&client, "ok", &[&create]).await;
    login
}

async fn gained(login: &Login<'_>, database: &Database) -> bool {
    let gained = format!("SELECT rolsuper FROM pg_roles WHERE rolname = '{}'", login.name);
    database.value(&gained).await
}

#[tokio::test]
async fn a_superuser_calls_no_function_of_a_schema_that_another_role_has_made_for_the_queue() {
    let database = Database::empty().await;
    let attacker = attacker(&database, "mill").await;
    let view = "CREATE VIEW mill.schema_version AS SELECT mill.gain() AS version, 1 AS min_compatible_version;
        GRANT USAGE ON SCHEMA mill TO PUBLIC; GRANT SELECT ON mill.schema_version TO PUBLIC";
    assert_answers(&attacker.connect().await, "ok", &[view]).await;
    let refused = format!("the schema mill belongs to role \"{}\"", attacker.name);
    for arguments in [&["init"][..], &["init", "--dry-run"], &["doctor"], &["status"]] {
        let program = Program::pgmill(&database, arguments).by_superuser(&database, VICTIM);
        let (code, out, err) = program.run().await;
        assert!(!gained(&attacker, &database).await, "{arguments:?}");
        assert!(code != 0 && format!("{out}{err}").contains(&refused), "{arguments:?}: {out}{err}");
    }
    let error = schema::init(database.client()).await.unwrap_err();
    assert!(error.to_string().contains(&refused), "{error}");
    assert!(!gained(&attacker, &database).await);
    database.execute("DROP SCHEMA mill CASCADE").await;
    schema::init(database.client()).await.unwrap();
    attacker.gone().await;
}

#[tokio::test]
async fn a_superuser_fires_no_trigger_of_a_table_that_another_role_has_made_for_a_target() {
    let database = Database::empty().await;
    let attacker = attacker(&database, "mill_target").await;
    let table = "CREATE TABLE mill_target.state (singleton boolean PRIMARY KEY DEFAULT true, epoch bigint DEFAULT 0);
        CREATE TRIGGER gain BEFORE INSERT ON mill_target.state FOR EACH ROW EXECUTE FUNCTION mill_target.gain_by_trigger()";
    assert_answers(&attacker.connect().await, "ok", &[table]).await;
    let refused = format!("belongs to role \"{}\"", attacker.name);
    // Also if only an object in the schema is another role's.
    for sql in ["", "ALTER SCHEMA mill_target OWNER TO CURRENT_USER"] {
        database.execute(sql).await;
        let program = Program::pgmill(&database, &["target", "init"]);
        let (code, _, err) = program.by_superuser(&database, VICTIM).run().await;
        assert!(!gained(&attacker, &database).await);
        assert!(code != 0 && err.contains(&refused), "{code} {err}");
    }
    database.execute("DROP SCHEMA mill_target CASCADE").await;
    receipt::init(database.client(), &[]).await.unwrap();
    attacker.gone().await;
}

#[tokio::test]
async fn roles_without_superuser_share_a_target_through_the_role_that_owns_it() {
    let database = Database::empty().await;
    let owner = Login::new(&database, "owner", "").await;
    let place = database.name();
    database.execute(&format!("GRANT CREATE ON DATABASE {place} TO {}", owner.name)).await;
    let member = Login::new(&database, "member", &owner.name).await;
    for login in [&owner, &owner, &member] {
        receipt::init(&login.connect().await, &[]).await.unwrap();
    }
    let other = Login::new(&database, "other", "").await;
    database.execute(&format!("GRANT CREATE ON DATABASE {place} TO {}", other.name)).await;
    let error = receipt::init(&other.connect().await, &[]).await.unwrap_err();
    assert!(error.to_string().contains(&owner.name), "{error}");
    for login in [other, member, owner] {
        login.gone().await;
    }
}
