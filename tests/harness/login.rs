//! Logins of a single test.

use tokio_postgres::Client;

use super::{Database, eventually, open_url};

/// Password of every login.
pub(crate) const PASSWORD: &str = "only-for-a-test";

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
