//! A superuser session of the cluster of the tests.

use anyhow::Result;
use conninfo::{ConnectionTarget, Environment};
use tokio_postgres::Client;

/// The session; closed with the value.
pub(crate) struct Session(Client);

impl Session {
    /// Opens a session.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let environment = Environment::from_variables::<&str, &str>([], None);
        let target = ConnectionTarget::resolve(Some(url), &environment)?;
        let (client, connection) = conninfo::open(&target).await?;
        #[expect(clippy::disallowed_methods, reason = "the session ends with the value")]
        tokio::spawn(connection);
        Ok(Self(client))
    }

    /// Removes the database of this name, and those whose name continues with an underscore.
    pub(crate) async fn drop_databases(&self, name: &str) -> Result<()> {
        let found = "SELECT datname::text FROM pg_database WHERE datname = $1 OR starts_with(datname, $1 || '_')";
        for row in self.0.query(found, &[&name]).await? {
            let name: String = row.get(0);
            self.0.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        }
        Ok(())
    }
}
