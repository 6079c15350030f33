//! Calls: tasks whose statement is `CALL name($1)` with one parameter, and that a handler in Rust runs.
//!
//! A handler stands in for the procedure of this name: the worker opens the transaction of the task,
//! awaits the handler instead of the answer to the statement, and completes the task in the same
//! transaction. `handlers` finds the handler, `run_call` runs it, and `transaction` and `call_error`
//! are what it works with.
//!
//! Invariant: a handler only borrows the transaction, and cannot send a statement that ends it. So
//! no statement of a handler runs after the end of its attempt.

pub(crate) mod call_error;
pub(crate) mod handlers;
pub(crate) mod run_call;
pub(crate) mod transaction;

use queue::Claim;
use serde::de::DeserializeOwned;

use crate::attempt::call::call_error::CallError;
use crate::attempt::call::transaction::Transaction;

/// A call: the task, its parameter and its open transaction.
pub struct Call<'a> {
    name: &'a str,
    claim: &'a Claim,
    transaction: &'a Transaction<'a>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(name: &'a str, claim: &'a Claim, transaction: &'a Transaction<'a>) -> Self {
        Self { name, claim, transaction }
    }

    /// Returns the name of the call, which is that of the handler.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the id of the task.
    #[must_use]
    pub fn task_id(&self) -> i64 {
        self.claim.id().0
    }

    /// Returns the number of the attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.claim.attempt()
    }

    /// Returns the parameter as JSON.
    #[must_use]
    pub fn json(&self) -> &'a str {
        self.claim.params().and_then(<[_]>::first).map_or("null", |value| value.get())
    }

    /// Returns the parameter as a value of this type.
    ///
    /// # Errors
    /// The JSON does not fit the type. The error is fatal, because a retry would have the same
    /// JSON.
    pub fn args<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        serde_json::from_str(self.json()).map_err(|error| {
            let name = self.name;
            CallError::fatal(format!("the parameter of {name} does not fit its handler: {error}"))
        })
    }

    /// Returns the transaction of the task. It commits together with the success of the task.
    #[must_use]
    pub fn transaction(&self) -> &'a Transaction<'a> {
        self.transaction
    }
}
