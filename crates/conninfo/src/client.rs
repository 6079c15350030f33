//! The client of a session whose `search_path` and other settings a pooler may have dropped.
//!
//! A pooler in transaction mode may give each transaction another session of the server. So `SET` would not last, and
//! would change the sessions of others. In such a session, each statement has a transaction of its own, which begins
//! with `SET LOCAL`.

use std::future::Future;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{CancelToken, Error, IsolationLevel, Row, Transaction};

const BEGIN: &str = "BEGIN /* conninfo.begin */";
const SET: &str = "SET LOCAL /* conninfo.search_path */ search_path = pg_catalog, pg_temp";
const COMMIT: &str = "COMMIT /* conninfo.commit */";

/// Parameters of a statement, with their types.
type Params<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// A session or a transaction, which takes statements. Everything that implements the trait of this name of
/// tokio-postgres, and [`Client`], which cannot implement that one.
pub trait GenericClient: Send + Sync {
    /// As [`tokio_postgres::Client::query_typed`].
    fn query_typed(
        &self,
        statement: &str,
        params: &Params<'_>,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// As [`tokio_postgres::Client::batch_execute`].
    fn batch_execute(&self, sql: &str) -> impl Future<Output = Result<(), Error>> + Send;

    /// As [`tokio_postgres::Client::transaction`].
    fn transaction(&mut self) -> impl Future<Output = Result<Transaction<'_>, Error>> + Send;
}

impl<C: tokio_postgres::GenericClient + Send + Sync> GenericClient for C {
    async fn query_typed(&self, statement: &str, params: &Params<'_>) -> Result<Vec<Row>, Error> {
        tokio_postgres::GenericClient::query_typed(self, statement, params).await
    }

    async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        tokio_postgres::GenericClient::batch_execute(self, sql).await
    }

    async fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        tokio_postgres::GenericClient::transaction(self).await
    }
}

/// The client of a session in which no name resolves to an object of another role.
pub struct Client {
    session: tokio_postgres::Client,
    /// Sets, in a transaction, the settings of the session that a pooler has dropped; `None` if it has not.
    settings: Option<String>,
}

impl Client {
    /// `dropped` is whether a pooler has dropped the search_path, and with it the timeout.
    pub(crate) fn new(
        session: tokio_postgres::Client,
        dropped: bool,
        statement_timeout: Option<&str>,
    ) -> Self {
        let timeout = statement_timeout.map(|it| format!("; SET LOCAL statement_timeout = '{it}'"));
        let settings = dropped.then(|| format!("{SET}{}", timeout.unwrap_or_default()));
        Self { session, settings }
    }

    /// Returns whether the connection is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    /// Returns a value that cancels the running statement.
    #[must_use]
    pub fn cancel_token(&self) -> CancelToken {
        self.session.cancel_token()
    }

    /// Begins a transaction at READ COMMITTED, whatever the default of the session is.
    ///
    /// # Errors
    /// The server refuses, or the connection is lost.
    pub async fn begin_read_committed(&mut self) -> Result<Transaction<'_>, Error> {
        let builder = self.session.build_transaction();
        let transaction = builder.isolation_level(IsolationLevel::ReadCommitted).start().await?;
        with_settings(transaction, self.settings.as_deref()).await
    }

    /// Returns the client of the driver, if its statements need no transactions of their own.
    #[must_use]
    pub fn driver(&self) -> Option<&tokio_postgres::Client> {
        self.settings.is_none().then_some(&self.session)
    }

    /// Returns the client of the driver, whose statements have no transactions of their own.
    pub(crate) fn into_session(self) -> tokio_postgres::Client {
        self.session
    }

    /// Sends a statement; in a transaction of its own if the search_path was dropped. All of it is one round trip.
    async fn send<T: Send>(
        &self,
        statement: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let Some(settings) = &self.settings else { return statement.await };
        let begin = format!("{BEGIN}; {settings}");
        let (begun, answer, committed) = futures_util::future::join3(
            self.session.batch_execute(&begin),
            statement,
            self.session.batch_execute(COMMIT),
        )
        .await;
        begun?;
        let answer = answer?;
        committed.map(|()| answer)
    }
}

impl GenericClient for Client {
    async fn query_typed(&self, statement: &str, params: &Params<'_>) -> Result<Vec<Row>, Error> {
        self.send(self.session.query_typed(statement, params)).await
    }

    async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.send(self.session.batch_execute(sql)).await
    }

    async fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        let transaction = self.session.transaction().await?;
        with_settings(transaction, self.settings.as_deref()).await
    }
}

async fn with_settings<'a>(
    transaction: Transaction<'a>,
    settings: Option<&str>,
) -> Result<Transaction<'a>, Error> {
    if let Some(settings) = settings {
        transaction.batch_execute(settings).await?;
    }
    Ok(transaction)
}
