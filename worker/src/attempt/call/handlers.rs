//! The handlers of a worker, by the name of their call.

use std::collections::BTreeMap;
use std::pin::Pin;

use anyhow::{Result, ensure};
use queue::{Claim, Mode, scan};
use serde::Serialize;
use serde_json::Value;

use crate::attempt::call::Call;
use crate::attempt::error::ExecutionError;
use crate::context::attempt_end::call_name;

/// SQLSTATE feature_not_supported, which is not retried.
const REFUSED: &str = "0A000";
/// SQLSTATE undefined_function: no procedure has this name.
const UNDEFINED: &str = "42883";

/// The future of a handler: `Box::pin(async move { … })`.
pub type HandlerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A handler. Its result is JSON.
pub(crate) type Handler = Box<dyn for<'a> Fn(Call<'a>) -> HandlerFuture<'a, Value> + Send + Sync>;

/// All handlers of a worker; none in the program `worker`.
#[derive(Default)]
pub(crate) struct Handlers(BTreeMap<String, Handler>);

impl Handlers {
    /// Adds a handler.
    ///
    /// # Errors
    /// The name is not that of a call, or has a handler already.
    pub(crate) fn add<F, T>(&mut self, name: &str, handler: F) -> Result<()>
    where
        F: for<'a> Fn(Call<'a>) -> HandlerFuture<'a, T> + Send + Sync + 'static,
        T: Serialize + 'static,
    {
        ensure!(
            scan::call_with_one_parameter(&format!("CALL {name}($1)")).as_deref() == Some(name),
            "invalid name of a handler \"{name}\"; use the name of a procedure in lower case, such \
             as send_invoice or billing.send_invoice"
        );
        let handler: Handler = Box::new(move |call| {
            let handled = handler(call);
            Box::pin(async move { Ok(serde_json::to_value(handled.await?)?) })
        });
        let before = self.0.insert(name.to_owned(), handler);
        ensure!(before.is_none(), "two handlers have the name \"{name}\"");
        Ok(())
    }

    /// Returns the handler of the task with its name; `None` if the task is not a call, or if no
    /// handler has its name.
    pub(crate) fn find(&self, claim: &Claim) -> Option<(&str, &Handler)> {
        if self.0.is_empty() {
            return None;
        }
        let (name, handler) = self.0.get_key_value(&call_name(claim)?)?;
        Some((name.as_str(), handler))
    }
}

/// Refuses a call that has to run outside of a transaction.
///
/// # Errors
/// The error to record for the attempt.
pub(crate) fn check(claim: &Claim) -> Result<(), ExecutionError> {
    match claim.mode() {
        Mode::Transaction => Ok(()),
        Mode::Autocommit => Err(ExecutionError::refused(
            REFUSED,
            "a handler does not run in autocommit mode",
            "Enqueue the call in mode transaction, which is the default.",
        )),
    }
}

/// Returns the hint for a call that neither a procedure nor a handler of this worker can run.
pub(crate) fn missing_handler_hint(claim: &Claim, sqlstate: Option<&str>) -> Option<String> {
    let name = (sqlstate == Some(UNDEFINED)).then(|| call_name(claim)).flatten()?;
    Some(format!(
        "No procedure has this name and parameter, and this worker has no handler \"{name}\". If a \
         program has the handler, let only this program serve the queue \"{}\".",
        claim.queue()
    ))
}
