//! A session that reconnects after every fault, and distinguishes a reply from a lost one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use conninfo::{ConnectionTarget, Environment};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Error, Row};

/// Longer than any fault lasts.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Result of a statement.
pub(crate) enum Reply {
    /// The statement was executed.
    Rows(Vec<Row>),
    /// The server refused the statement, which therefore had no effect.
    Refused(String),
    /// The connection was lost before the reply.
    Unknown,
}

/// A session that reconnects when needed.
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

    /// Returns the open session, or a new one.
    ///
    /// # Errors
    /// Returns an error if no server accepts connections for a minute.
    pub(crate) async fn client(&mut self) -> Result<&Client> {
        if self.open.as_ref().is_none_or(|(client, _)| client.is_closed()) {
            self.open = Some(self.connect().await?);
        }
        self.open.as_ref().map(|(client, _)| client).context("there is no session")
    }

    async fn connect(&self) -> Result<(Client, JoinSet<()>)> {
        let nothing = Environment::from_variables::<&str, &str>([], None);
        let target =
            ConnectionTarget::resolve(Some(&self.url), &nothing)?.with_application_name(self.name);
        let begun = Instant::now();
        loop {
            match conninfo::open(&target).await {
                Ok((client, connection)) => {
                    let mut driver = JoinSet::new();
                    driver.spawn(async move {
                        // The client reports the end of the connection.
                        let _ = connection.await;
                    });
                    return Ok((client, driver));
                }
                Err(error) if begun.elapsed() > TIMEOUT => {
                    return Err(error).context("no server has accepted a connection for a minute");
                }
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Runs a statement once.
    ///
    /// # Errors
    /// Returns an error if no server is available for a minute.
    pub(crate) async fn query(&mut self, sql: &str) -> Result<Reply> {
        let client = self.client().await?;
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
    pub(crate) async fn rows(&mut self, sql: &str) -> Result<Vec<Row>> {
        let begun = Instant::now();
        loop {
            match self.query(sql).await? {
                Reply::Rows(rows) => return Ok(rows),
                Reply::Refused(message) => anyhow::bail!("{message} in {sql}"),
                Reply::Unknown if begun.elapsed() > TIMEOUT => anyhow::bail!("no reply to {sql}"),
                Reply::Unknown => {}
            }
        }
    }

    /// Returns one number.
    ///
    /// # Errors
    /// Returns the errors of [`rows`](Self::rows).
    pub(crate) async fn number(&mut self, sql: &str) -> Result<i64> {
        Ok(self.rows(sql).await?.first().context("no row")?.try_get(0)?)
    }
}

/// Returns whether the reply was lost: the connection broke, or the server shut down and may have
/// committed nevertheless (57P01 to 57P03).
fn lost(error: &Error) -> bool {
    error.code().is_none_or(|code| code.code().starts_with("57P0") || code.code().starts_with("08"))
}
