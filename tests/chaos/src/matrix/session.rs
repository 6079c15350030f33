//! The suite's own sessions, which may break with the server and are made anew.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Row};

/// The longest that a statement of the suite's may take; those that wait for a fault say so.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A session, driven in the background until it is dropped.
pub(crate) struct Session {
    url: String,
    client: Client,
    _driver: JoinSet<()>,
}

impl Session {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let connecting = tokio_postgres::connect(url, NoTls);
        let (client, connection) =
            timeout(TIMEOUT, connecting).await.context("no answer from the server")??;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Its end shows in the client.
            let _ = connection.await;
        });
        Ok(Self { url: url.to_owned(), client, _driver: driver })
    }

    /// The client, for what takes one.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Makes it anew, if it has ended.
    pub(crate) async fn reconnect(&mut self) -> Result<()> {
        if self.client.is_closed() {
            *self = Self::open(&self.url).await?;
        }
        Ok(())
    }

    /// Statements that return nothing.
    pub(crate) async fn execute(&self, sql: &str) -> Result<()> {
        let done = timeout(TIMEOUT, self.client.batch_execute(sql)).await;
        done.context("no answer from the server")?.with_context(|| sql.to_owned())
    }

    /// Rows.
    pub(crate) async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let rows = timeout(TIMEOUT, self.client.query(sql, params)).await;
        rows.context("no answer from the server")?.with_context(|| sql.to_owned())
    }

    /// The first row's first column.
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
