//! A session that reconnects after a fault, and distinguishes a reply from a lost one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use conninfo::{ConnectionTarget, Environment};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, Error, Row};

/// Time limit for statements that are repeated until there is a reply. Longer than any fault lasts.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for a connection and for a statement that is not repeated.
const ONE_TIMEOUT: Duration = Duration::from_secs(20);

/// Result of a statement.
pub(crate) enum Reply {
    /// The statement was executed.
    Rows(Vec<Row>),
    /// The server refused the statement, which therefore had no effect.
    Refused(String),
    /// The connection was lost before the reply.
    Unknown,
}

/// A session, driven in the background until dropped.
pub(crate) struct Session {
    url: String,
    name: &'static str,
    open: Option<(Client, JoinSet<()>)>,
}

impl Session {
    /// Creates a session for the writable server of the URL; connects on first use.
    pub(crate) fn new(url: &str, name: &'static str) -> Self {
        Self { url: url.to_owned(), name, open: None }
    }

    /// Opens a session.
    ///
    /// # Errors
    /// Returns an error if the server does not accept the connection.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let mut session = Self::new(url, "chaos");
        session.reconnect().await?;
        Ok(session)
    }

    /// Connects once if the session has ended.
    ///
    /// # Errors
    /// Returns an error if the server does not accept the connection.
    pub(crate) async fn reconnect(&mut self) -> Result<()> {
        if self.has_ended() {
            let connected = timeout(ONE_TIMEOUT, self.connect()).await;
            self.open = Some(connected.context("no reply from the server")??);
        }
        Ok(())
    }

    /// Returns the client of the open session, or of a new one.
    ///
    /// # Errors
    /// Returns an error if no server accepts connections for a minute.
    pub(crate) async fn connected(&mut self) -> Result<&Client> {
        let begun = Instant::now();
        while self.has_ended() {
            match self.connect().await {
                Ok(open) => self.open = Some(open),
                Err(error) if begun.elapsed() > TIMEOUT => {
                    return Err(error).context("no server has accepted a connection for a minute");
                }
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
        self.client()
    }

    /// Returns the client.
    ///
    /// # Errors
    /// Returns an error if the session was never opened.
    pub(crate) fn client(&self) -> Result<&Client> {
        self.open.as_ref().map(|(client, _)| client).context("there is no session")
    }

    fn has_ended(&self) -> bool {
        self.open.as_ref().is_none_or(|(client, _)| client.is_closed())
    }

    async fn connect(&self) -> Result<(Client, JoinSet<()>)> {
        let nothing = Environment::from_variables::<&str, &str>([], None);
        let target =
            ConnectionTarget::resolve(Some(&self.url), &nothing)?.with_application_name(self.name);
        let (client, connection) = conninfo::open(&target).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The client reports the end of the connection.
            let _ = connection.await;
        });
        Ok((client, driver))
    }

    /// Runs statements that return nothing, without connecting again.
    ///
    /// # Errors
    /// Returns an error if the server refuses or does not reply.
    pub(crate) async fn execute(&self, sql: &str) -> Result<()> {
        let done = timeout(ONE_TIMEOUT, self.client()?.batch_execute(sql)).await;
        done.context("no reply from the server")?.with_context(|| sql.to_owned())
    }

    /// Returns all rows, without connecting again.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub(crate) async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let rows = timeout(ONE_TIMEOUT, self.client()?.query(sql, params)).await;
        rows.context("no reply from the server")?.with_context(|| sql.to_owned())
    }

    /// Returns the first column of the first row, without connecting again.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub(crate) async fn one<T: FromSqlOwned>(
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

    /// Runs a statement once, on a new connection if needed.
    ///
    /// # Errors
    /// Returns an error if no server is available for a minute.
    pub(crate) async fn ask(&mut self, sql: &str) -> Result<Reply> {
        let client = self.connected().await?;
        let answer = timeout(TIMEOUT, client.query_typed(sql, &[])).await;
        Ok(match answer {
            Ok(Ok(rows)) => Reply::Rows(rows),
            Ok(Err(error)) if !lost(&error) => {
                let message =
                    error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
                Reply::Refused(message)
            }
            Ok(Err(_)) | Err(_) => {
                self.open = None;
                Reply::Unknown
            }
        })
    }

    /// Runs an idempotent statement until there is a reply.
    ///
    /// # Errors
    /// Returns an error if there is no reply for a minute, or the server refuses.
    pub(crate) async fn until_answered(&mut self, sql: &str) -> Result<Vec<Row>> {
        let begun = Instant::now();
        loop {
            match self.ask(sql).await? {
                Reply::Rows(rows) => return Ok(rows),
                Reply::Refused(message) => anyhow::bail!("{message} in {sql}"),
                Reply::Unknown if begun.elapsed() > TIMEOUT => anyhow::bail!("no reply to {sql}"),
                Reply::Unknown => {}
            }
        }
    }

    /// Runs an idempotent statement until there is a reply, and returns its number.
    ///
    /// # Errors
    /// Returns the errors of [`until_answered`](Self::until_answered).
    pub(crate) async fn number(&mut self, sql: &str) -> Result<i64> {
        Ok(self.until_answered(sql).await?.first().context("no row")?.try_get(0)?)
    }
}

/// Returns whether the reply was lost: the connection broke, or the server shut down and may have
/// committed nevertheless (57P01 to 57P03).
fn lost(error: &Error) -> bool {
    error.code().is_none_or(|code| code.code().starts_with("57P0") || code.code().starts_with("08"))
}
