//! Sessions of the test suite, which may break with the server and can reconnect.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Row};

/// Time limit for a statement of the suite; statements that wait for a fault set their own.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A session, driven in the background until dropped.
pub(crate) struct Session {
    url: String,
    client: Client,
    _driver: JoinSet<()>,
}

impl Session {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let connecting = tokio_postgres::connect(url, NoTls);
        let (client, connection) =
            timeout(TIMEOUT, connecting).await.context("no reply from the server")??;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The client reports the end of the connection.
            let _ = connection.await;
        });
        Ok(Self { url: url.to_owned(), client, _driver: driver })
    }

    /// Returns the client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Reconnects if the session has ended.
    pub(crate) async fn reconnect(&mut self) -> Result<()> {
        if self.client.is_closed() {
            *self = Self::open(&self.url).await?;
        }
        Ok(())
    }

    /// Runs statements that return nothing.
    pub(crate) async fn execute(&self, sql: &str) -> Result<()> {
        let done = timeout(TIMEOUT, self.client.batch_execute(sql)).await;
        done.context("no reply from the server")?.with_context(|| sql.to_owned())
    }

    /// Returns all rows.
    pub(crate) async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let rows = timeout(TIMEOUT, self.client.query(sql, params)).await;
        rows.context("no reply from the server")?.with_context(|| sql.to_owned())
    }

    /// Returns the first column of the first row.
    pub(crate) async fn one<T: tokio_postgres::types::FromSqlOwned>(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<T>> {
        let rows = self.rows(sql, params).await?;
        Ok(match rows.first() {
            Some(row) => Some(row.try_get(0)?),
            None => None,
        })
    }
}
