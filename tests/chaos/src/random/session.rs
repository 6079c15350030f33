//! A session that comes back after every fault, and tells an answer from a lost one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use queue::connect::{self, Environment, Target};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Error, Row};

/// Longer than any fault lasts.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What came back.
pub(crate) enum Reply {
    /// It happened.
    Rows(Vec<Row>),
    /// The server refused it: it did not happen.
    Refused(String),
    /// The connection broke before the answer.
    Unknown,
}

/// One session, or the next one in its place.
pub(crate) struct Session {
    url: String,
    name: &'static str,
    open: Option<(Client, JoinSet<()>)>,
}

impl Session {
    /// For the writable server of those in the URL; connects when it is needed.
    pub(crate) fn new(url: &str, name: &'static str) -> Self {
        Self { url: url.to_owned(), name, open: None }
    }

    /// The open session; a new one if there is none.
    ///
    /// # Errors
    /// No server takes it for a minute.
    pub(crate) async fn client(&mut self) -> Result<&Client> {
        if self.open.as_ref().is_none_or(|(client, _)| client.is_closed()) {
            self.open = Some(self.connect().await?);
        }
        self.open.as_ref().map(|(client, _)| client).context("no session")
    }

    async fn connect(&self) -> Result<(Client, JoinSet<()>)> {
        let nothing = Environment::from_variables::<&str, &str>([], None);
        let target = Target::resolve(Some(&self.url), &nothing)?.with_application_name(self.name);
        let begun = Instant::now();
        loop {
            match connect::open(&target).await {
                Ok((client, connection)) => {
                    let mut driver = JoinSet::new();
                    driver.spawn(async move {
                        // Its end shows in the client.
                        let _ = connection.await;
                    });
                    return Ok((client, driver));
                }
                Err(error) if begun.elapsed() > TIMEOUT => {
                    return Err(error).context("no server for a minute");
                }
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Asks once.
    ///
    /// # Errors
    /// No server for a minute.
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

    /// Asks something that may be asked again, until there is an answer.
    ///
    /// # Errors
    /// No answer for a minute; the server refuses.
    pub(crate) async fn rows(&mut self, sql: &str) -> Result<Vec<Row>> {
        let begun = Instant::now();
        loop {
            match self.query(sql).await? {
                Reply::Rows(rows) => return Ok(rows),
                Reply::Refused(message) => anyhow::bail!("{message} in {sql}"),
                Reply::Unknown if begun.elapsed() > TIMEOUT => anyhow::bail!("no answer to {sql}"),
                Reply::Unknown => {}
            }
        }
    }

    /// One number.
    ///
    /// # Errors
    /// Those of [`rows`](Self::rows).
    pub(crate) async fn number(&mut self, sql: &str) -> Result<i64> {
        Ok(self.rows(sql).await?.first().context("no row")?.try_get(0)?)
    }
}

/// Whether the error says that the answer did not come: the connection broke, or the server goes down
/// and may have committed all the same (57P01 to 57P03).
fn lost(error: &Error) -> bool {
    error.code().is_none_or(|code| code.code().starts_with("57P0") || code.code().starts_with("08"))
}
