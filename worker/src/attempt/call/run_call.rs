//! Runs the handler of a call in the transaction of its task.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use queue::Claim;
use queue::fail::DatabaseError;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::attempt::call::Call;
use crate::attempt::call::call_error::CallError;
use crate::attempt::call::handlers::Handler;
use crate::attempt::call::transaction::Transaction;
use crate::attempt::error::ExecutionError;
use crate::attempt::output::rows::Rows;
use crate::attempt::session::Session;

/// SQLSTATE raise_exception, for errors without a SQLSTATE of their own.
const RAISED: &str = "P0001";
/// SQLSTATE internal_error, for panics.
const PANICKED: &str = "XX000";
/// SQLSTATE query_canceled, for handlers that were stopped.
const STOPPED: &str = "57014";

/// How the future of a handler ended.
enum Handled {
    Returned(anyhow::Result<Value>),
    Panicked(Box<dyn Any + Send>),
    Stopped,
    ConnectionLost,
}

/// Opens the transaction and runs the handler. Returns the transaction id.
///
/// When `stopping` is cancelled, drops the handler, and returns as soon as the server no longer runs
/// a statement of the handler.
///
/// # Errors
/// Returns the error of the handler or the connection; the transaction may still be open.
pub(crate) async fn run_call(
    session: &mut Session,
    claim: &Claim,
    (name, handler): (&str, &Handler),
    stopping: &CancellationToken,
    rows: &mut Rows,
) -> Result<String, ExecutionError> {
    let xact = session.begin(claim).await?;
    let transaction = Transaction::new(session.client());
    let handled = handle(session, Call::new(name, claim, &transaction), handler, stopping).await;
    if transaction.queried_types() {
        session.retire();
    }
    let error = match handled {
        Handled::Returned(Ok(value)) => {
            rows.push_json(name, &value);
            return Ok(xact);
        }
        Handled::Returned(Err(error)) => execution_error(&error, session.is_closed()),
        Handled::Panicked(panic) => {
            session.retire();
            let message = format!("the handler panicked: {}", message_of(&*panic));
            CallError::new(PANICKED, message).execution_error().clone()
        }
        Handled::Stopped => {
            // The answer comes after that of the statement that the handler had sent.
            let _ = session.client().batch_execute("ROLLBACK /* worker.stop_call */").await;
            CallError::new(STOPPED, "the handler was stopped").execution_error().clone()
        }
        Handled::ConnectionLost => ExecutionError::backend_gone(),
    };
    if matches!(error, ExecutionError::Protocol(_)) {
        session.retire();
    }
    Err(error)
}

/// Runs the handler until it returns, panics or is dropped.
async fn handle(
    session: &Session,
    call: Call<'_>,
    handler: &Handler,
    stopping: &CancellationToken,
) -> Handled {
    let handled = AssertUnwindSafe(async { handler(call).await }).catch_unwind();
    tokio::select! {
        biased;
        () = stopping.cancelled() => Handled::Stopped,
        handled = handled => match handled {
            Ok(returned) => Handled::Returned(returned),
            Err(panic) => Handled::Panicked(panic),
        },
        () = session.ended() => Handled::ConnectionLost,
    }
}

/// Returns the error to record. An error of the task's transaction is a [`CallError`]. A
/// [`tokio_postgres::Error`] comes from a connection of the handler itself.
fn execution_error(error: &anyhow::Error, connection_lost: bool) -> ExecutionError {
    let in_chain = error.chain().find_map(|cause| {
        let own = cause.downcast_ref().map(CallError::execution_error).cloned();
        own.or_else(|| {
            let other = ExecutionError::from_ref(cause.downcast_ref()?);
            Some(ExecutionError::Database(Box::new(other.database_error().clone())))
        })
    });
    let mut error = in_chain.unwrap_or_else(|| {
        let message = format!("{error:#}");
        ExecutionError::Database(Box::new(DatabaseError { message, ..DatabaseError::default() }))
    });
    if connection_lost {
        error = ExecutionError::ConnectionLost(Box::new(error.database_error().clone()));
    }
    if let ExecutionError::Database(recorded) | ExecutionError::Protocol(recorded) = &mut error {
        recorded.sqlstate.get_or_insert_with(|| RAISED.to_owned());
        // The position in a statement of the handler, which the task does not show.
        recorded.position = None;
    }
    error
}

/// Returns the message of a panic, if it has one.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
