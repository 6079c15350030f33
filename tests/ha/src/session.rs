//! A session that reconnects after a fault, and waits for no answer longer than a limited time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use conninfo::{ConnectionTarget, Environment};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Error, Row};

/// Time limit for one answer, as an application would set it.
const ANSWER: Duration = Duration::from_secs(5);
/// Time limit for an answer with all repetitions: longer than every fault.
const LIMIT: Duration = Duration::from_secs(120);
/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(100);

/// Result of a statement.
pub(crate) enum Reply {
    /// The statement was executed.
    Rows(Vec<Row>),
    /// The server cannot write, or there is no server. The statement had no effect.
    NotExecuted,
    /// The connection was lost before the reply, or the reply took too long.
    Unknown,
}

/// A session that connects when needed.
pub(crate) struct Session {
    url: String,
    open: Option<(Client, JoinSet<()>)>,
}

impl Session {
    /// Creates a session; connects on first use.
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), open: None }
    }

    /// Runs a statement once, in an open or in a new session.
    ///
    /// # Errors
    /// Returns an error if the server refuses the statement itself.
    pub(crate) async fn query(&mut self, sql: &str) -> Result<Reply> {
        if self.open.as_ref().is_none_or(|(client, _)| client.is_closed()) {
            let Ok(Ok(opened)) = timeout(ANSWER, open(&self.url)).await else {
                sleep(RETRY).await;
                return Ok(Reply::NotExecuted);
            };
            self.open = Some(opened);
        }
        let (client, _) = self.open.as_ref().context("there is no session")?;
        match timeout(ANSWER, client.query_typed(sql, &[])).await {
            Ok(Ok(rows)) => Ok(Reply::Rows(rows)),
            Ok(Err(error)) if read_only(&error) => {
                self.open = None;
                Ok(Reply::NotExecuted)
            }
            Ok(Err(error)) if !lost(&error) => Err(error).with_context(|| format!("in {sql}")),
            Ok(Err(_)) | Err(_) => {
                self.open = None;
                Ok(Reply::Unknown)
            }
        }
    }

    /// Runs an idempotent statement until there is a reply.
    ///
    /// # Errors
    /// Returns an error if there is no reply for two minutes, or the server refuses.
    pub(crate) async fn rows(&mut self, sql: &str) -> Result<Vec<Row>> {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            if let Reply::Rows(rows) = self.query(sql).await? {
                return Ok(rows);
            }
        }
        bail!("no reply to {sql}")
    }

    /// Returns one number.
    ///
    /// # Errors
    /// Returns the errors of [`rows`](Self::rows).
    pub(crate) async fn number(&mut self, sql: &str) -> Result<i64> {
        Ok(self.rows(sql).await?.first().context("no row")?.try_get(0)?)
    }
}

/// Opens a session with its driver.
pub(crate) async fn open(url: &str) -> Result<(Client, JoinSet<()>)> {
    let nothing = Environment::from_variables::<&str, &str>([], None);
    let target = ConnectionTarget::resolve(Some(url), &nothing)?.with_application_name("ha");
    let (client, connection) = conninfo::open(&target).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // The client reports the end of the connection.
        let _ = connection.await;
    });
    Ok((client, driver))
}

/// Returns whether the server became a standby after the session was opened.
fn read_only(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code() == "25006")
}

/// Returns whether the reply was lost: the connection broke, or the server shut down and may have
/// committed nevertheless (57P01 to 57P03).
fn lost(error: &Error) -> bool {
    error.code().is_none_or(|code| code.code().starts_with("57P0") || code.code().starts_with("08"))
}
