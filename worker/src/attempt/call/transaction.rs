//! The open transaction of a call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use queue::scan;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::attempt::call::call_error::CallError;
use crate::attempt::error::ExecutionError;
use crate::attempt::statement::prepare::has_unknown_types;

/// SQLSTATE feature_not_supported, which is not retried.
const REFUSED: &str = "0A000";
/// SQLSTATE too_many_rows, and no_data_found, as PL/pgSQL raises them.
const TOO_MANY_ROWS: &str = "P0003";
const NO_ROWS: &str = "P0002";

/// Maximum number of statements that stay prepared during a call.
const MAX_PREPARED: usize = 100;

/// The open transaction of a task. The worker commits it together with the success of the task, or
/// rolls it back.
///
/// Parameters are bound in binary format, with the types that the server determines, as in the crate
/// tokio-postgres. A statement with parameters takes two round trips, and one when it is repeated in
/// the same call.
pub struct Transaction<'a> {
    client: &'a Client,
    prepared: Mutex<HashMap<String, Statement>>,
    /// Number of statements that may have made the client query types. The client prepares
    /// statements for that and keeps them for reuse, but the reset of the session drops them.
    type_queries: AtomicUsize,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self { client, prepared: Mutex::default(), type_queries: AtomicUsize::new(0) }
    }

    /// Returns whether a statement may have had a type that is not built in, so that the session must
    /// not be used for another task.
    pub(crate) fn queried_types(&self) -> bool {
        self.type_queries.load(Ordering::Relaxed) > 0
    }

    /// Runs a statement and returns its rows.
    ///
    /// # Errors
    /// The error of the server or the connection; the statement would end the transaction.
    pub async fn query(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, CallError> {
        let statement = self.prepare(sql).await?;
        Ok(self.client.query(&statement, params).await?)
    }

    /// Runs a statement that returns at most one row.
    ///
    /// # Errors
    /// As for [`query`](Self::query), and if there is more than one row.
    pub async fn query_opt(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, CallError> {
        let mut rows = self.query(sql, params).await?;
        match rows.len() {
            0 | 1 => Ok(rows.pop()),
            _ => Err(CallError::new(TOO_MANY_ROWS, "the query returned more than one row")),
        }
    }

    /// Runs a statement that returns exactly one row.
    ///
    /// # Errors
    /// As for [`query`](Self::query), and if the number of rows is not one.
    pub async fn query_one(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, CallError> {
        let row = self.query_opt(sql, params).await?;
        row.ok_or_else(|| CallError::new(NO_ROWS, "the query returned no rows"))
    }

    /// Runs a statement and returns the number of rows that it has returned or changed.
    ///
    /// # Errors
    /// As for [`query`](Self::query).
    pub async fn execute(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, CallError> {
        let statement = self.prepare(sql).await?;
        Ok(self.client.execute(&statement, params).await?)
    }

    /// Runs several statements without parameters, in one message.
    ///
    /// # Errors
    /// As for [`query`](Self::query).
    pub async fn batch_execute(&self, sql: &str) -> Result<(), CallError> {
        refuse_transaction_control(sql)?;
        Ok(self.client.batch_execute(sql).await?)
    }

    async fn prepare(&self, sql: &str) -> Result<Statement, CallError> {
        let known = self.prepared.lock().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        refuse_transaction_control(sql)?;
        // Counted before, because the handler may drop this future.
        self.type_queries.fetch_add(1, Ordering::Relaxed);
        let statement = self.client.prepare(sql).await?;
        if !has_unknown_types(&statement) {
            self.type_queries.fetch_sub(1, Ordering::Relaxed);
        }
        let mut prepared = self.prepared.lock();
        if prepared.len() < MAX_PREPARED {
            prepared.insert(sql.to_owned(), statement.clone());
        }
        Ok(statement)
    }
}

/// Refuses a statement that would end the transaction: its effects would be committed without the
/// completion of the task.
fn refuse_transaction_control(sql: &str) -> Result<(), CallError> {
    match scan::forbidden(sql) {
        None => Ok(()),
        Some(forbidden) => Err(ExecutionError::refused(
            REFUSED,
            &forbidden.to_string(),
            "Remove the statement from the handler.",
        )
        .into()),
    }
}
