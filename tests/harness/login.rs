//! The documented logins of the programs, and logins of a single test.

use tokio_postgres::Client;

use super::{Database, eventually, open_url};

/// Password of every login.
pub(crate) const PASSWORD: &str = "only-for-a-test";

/// The logins that docs/worker.md describes, with the same rights. All databases of a cluster share them.
const LOGINS: &str = "DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'mill_test_operator') THEN
        CREATE ROLE mill_test_fleet LOGIN PASSWORD '$password' IN ROLE mill_worker;
        CREATE ROLE mill_test_tasks LOGIN PASSWORD '$password';
        CREATE ROLE mill_test_producer LOGIN PASSWORD '$password' IN ROLE mill_producer, mill_viewer;
        CREATE ROLE mill_test_owner LOGIN PASSWORD '$password' IN ROLE mill_owner;
        CREATE ROLE mill_test_operator LOGIN PASSWORD '$password' IN ROLE mill_operator;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    -- Another database of the cluster is being prepared.
    NULL;
END
$$;
GRANT CREATE ON SCHEMA public TO mill_test_tasks;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO mill_test_tasks;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO mill_test_tasks";

impl Database {
    /// Returns the URL of the documented login of workers, which is a member of `mill_worker`.
    pub(crate) fn worker_url(&self) -> String {
        self.url_as("mill_test_fleet", PASSWORD)
    }

    /// Returns the URL of the documented login of tasks, which owns nothing. It has all rights on the tables
    /// of the tests, and may create its own.
    pub(crate) fn task_url(&self) -> String {
        self.url_as("mill_test_tasks", PASSWORD)
    }

    /// Returns the URL of the documented login of applications and `enqueue`.
    pub(crate) fn producer_url(&self) -> String {
        self.url_as("mill_test_producer", PASSWORD)
    }

    /// Returns the URL of a login of the schema's owner, who declares profiles and targets.
    pub(crate) fn owner_url(&self) -> String {
        self.url_as("mill_test_owner", PASSWORD)
    }

    /// Returns the URL of the documented login of a person who operates the fleet.
    pub(crate) fn operator_url(&self) -> String {
        self.url_as("mill_test_operator", PASSWORD)
    }

    /// Returns the URL with another login.
    pub(crate) fn url_as(&self, user: &str, password: &str) -> String {
        let url = self.url();
        let (_, place) = url.rsplit_once('@').unwrap();
        format!("postgres://{user}:{password}@{place}")
    }
}

/// Creates the logins of the programs, and gives them their rights in the database.
pub(crate) async fn create_logins(client: &Client) {
    client.batch_execute(&LOGINS.replace("$password", PASSWORD)).await.unwrap();
}

/// A login with a unique name (all databases of a cluster share its roles), dropped by
/// [`Login::drop`].
pub(crate) struct Login<'a> {
    database: &'a Database,
    pub(crate) name: String,
}

impl<'a> Login<'a> {
    /// Creates a login; `what` is part of the name, `grants` may be empty.
    pub(crate) async fn new(database: &'a Database, what: &str, grants: &str) -> Self {
        let place: String = database.value("SELECT current_database()::text").await;
        let name = format!("{place}_{what}");
        database.execute(&format!("CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")).await;
        if !grants.is_empty() {
            database.execute(&format!("GRANT {grants} TO {name}")).await;
        }
        Self { database, name }
    }

    /// Returns its connection string.
    pub(crate) fn url(&self) -> String {
        self.database.url_as(&self.name, PASSWORD)
    }

    /// Opens a session.
    pub(crate) async fn connect(&self) -> Client {
        open_url(&self.url()).await
    }

    /// Drops the login once the sessions of terminated programs are gone.
    pub(crate) async fn gone(self) {
        let left = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{}'", self.name);
        eventually("its sessions are gone", async || self.database.value::<i64>(&left).await == 0)
            .await;
        self.drop().await;
    }

    /// Drops the login. Its sessions must be closed.
    pub(crate) async fn drop(self) {
        let name = &self.name;
        self.database.execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}")).await;
    }
}

/// Returns the SQLSTATE of a statement, or `ok`.
pub(crate) async fn answer(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()),
    }
}

/// Asserts that each statement has this result.
pub(crate) async fn assert_answers(client: &Client, expected: &str, statements: &[&str]) {
    for sql in statements {
        assert_eq!(answer(client, sql).await, expected, "{sql}");
    }
}
