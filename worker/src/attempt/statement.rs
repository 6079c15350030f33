//! Sends a task's SQL and reads the result as a stream, so that a result of any size passes through
//! a bounded buffer. `check` refuses statements that must not be sent, `explain` runs those whose plan is
//! wanted, `prepare` those with parameters, and `invalid_index` explains an error of others.

pub(crate) mod check;
mod explain;
mod invalid_index;
pub(crate) mod prepare;

use std::pin::{Pin, pin};

use futures_util::{Stream, TryStreamExt};
use queue::{Claim, scan};
use tokio_postgres::{Column, Error, SimpleColumn, SimpleQueryMessage, SimpleQueryStream};

use crate::attempt::error::ExecutionError;
use crate::attempt::output::rows::Rows;
use crate::attempt::params::Param;
use crate::attempt::session::{OpenedTransaction, Session, last_column};
use crate::attempt::statement::prepare::prepare;

/// Runs the task's whole statement inside its own transaction. Returns the transaction id.
///
/// # Errors
/// Returns the error of the statement or the connection; the transaction is still open.
pub(crate) async fn in_transaction(
    session: &mut Session,
    claim: &Claim,
    rows: &mut Rows,
) -> Result<String, ExecutionError> {
    if claim.explain() {
        let xact = session.begin(claim).await.map_err(ExecutionError::before_statement)?;
        explain::run(session, claim, rows).await?;
        return Ok(xact);
    }
    if claim.params().is_some() {
        let xact = session.begin(claim).await.map_err(ExecutionError::before_statement)?;
        with_params(session, claim.statement(), claim, rows).await?;
        return Ok(xact);
    }
    let opened = session.begin_with_statement(claim).await;
    in_opened_transaction(opened.map_err(ExecutionError::before_statement)?, rows).await
}

/// Reads the answers of a transaction that was opened together with its statement. Returns the
/// transaction id.
///
/// # Errors
/// Returns the error of the statement or the connection; the transaction is still open.
pub(crate) async fn in_opened_transaction(
    mut opened: OpenedTransaction,
    rows: &mut Rows,
) -> Result<String, ExecutionError> {
    opened.read_commit().await.map_err(ExecutionError::before_statement)?;
    // A syntax error of the statement is the first answer of all.
    read_opened(opened.answers, rows)
        .await
        .map_err(|error| error.shift_position_back(opened.offset))
}

async fn read_opened(
    mut answers: Pin<Box<SimpleQueryStream>>,
    rows: &mut Rows,
) -> Result<String, ExecutionError> {
    let mut xact = None;
    while xact.is_none() {
        let answer = answers.try_next().await;
        // The server sends the results of a message in order, also before it ends the session.
        match answer.map_err(ExecutionError::before_statement)? {
            Some(SimpleQueryMessage::Row(row)) => {
                xact = last_column(&row)?;
            }
            Some(_) => {}
            None => break,
        }
    }
    // The end of the SELECT that returned the id.
    answers.try_next().await?;
    read_results(answers, rows, None).await?;
    Ok(xact.unwrap_or_default())
}

/// Runs the task's statements one by one, each in its own transaction. Sets `sent` before it sends
/// the first one.
///
/// # Errors
/// Returns the error of the first statement that fails; earlier statements have taken effect.
pub(crate) async fn one_by_one(
    session: &mut Session,
    claim: &Claim,
    rows: &mut Rows,
    sent: &mut bool,
) -> Result<(), ExecutionError> {
    session.set_task_settings(claim).await.map_err(ExecutionError::before_statement)?;
    *sent = true;
    for statement in scan::statements(claim.statement()) {
        let ran = if claim.params().is_some() {
            with_params(session, statement.text(), claim, rows).await
        } else {
            match session.client().simple_query_raw(&claim.with_comment(statement.text())).await {
                Ok(stream) => read_results(stream, rows, None).await,
                Err(error) => Err(error.into()),
            }
        };
        let ran = match scan::concurrent_build(&statement) {
            Some(build) => invalid_index::check(session.client(), build, ran).await,
            None => ran,
        };
        let before = &claim.statement()[..statement.offset()];
        let in_task = |error: ExecutionError| {
            error.limit_position(statement.text()).shift_position(before.chars().count())
        };
        ran.map_err(in_task)?;
    }
    Ok(())
}

/// Reads the results to their end. Keeps the results before the result set whose first column is
/// the boundary to the next task, if there is one.
///
/// # Errors
/// Returns the error of the statement or the connection.
pub(crate) async fn read_results(
    stream: impl Stream<Item = Result<SimpleQueryMessage, Error>>,
    rows: &mut Rows,
    boundary: Option<&str>,
) -> Result<(), ExecutionError> {
    let mut stream = pin!(stream);
    let mut own = true;
    while let Some(message) = stream.try_next().await? {
        match message {
            _ if !own => {}
            SimpleQueryMessage::RowDescription(columns) => {
                let first = columns.first().map(SimpleColumn::name);
                own = boundary.is_none() || first != boundary;
                if own {
                    rows.begin(columns.iter().map(SimpleColumn::name));
                }
            }
            SimpleQueryMessage::Row(row) => rows.push_text(&row),
            SimpleQueryMessage::CommandComplete(count) => rows.end(count),
            _ => {}
        }
    }
    Ok(())
}

/// Runs one statement with parameters, in the extended protocol. The server determines the types of
/// the parameters.
async fn with_params(
    session: &mut Session,
    sql: &str,
    claim: &Claim,
    rows: &mut Rows,
) -> Result<(), ExecutionError> {
    let values = claim.params().unwrap_or_default();
    let statement = prepare(session, &claim.with_comment(sql), values.len()).await?;
    let columns = statement.columns();
    if !columns.is_empty() {
        rows.begin(columns.iter().map(Column::name));
    }
    let stream =
        session.client().query_raw(&statement, values.iter().map(|value| Param(value))).await?;
    let mut stream = pin!(stream);
    while let Some(row) = stream.try_next().await? {
        rows.push_binary(&row);
    }
    rows.end(stream.rows_affected().unwrap_or(0));
    Ok(())
}
