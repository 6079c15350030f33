//! The worker as a library: a Rust program embeds a worker, and runs calls with handlers in Rust.
//!
//! | part | file |
//! |---|---|
//! | settings and handlers of a worker, and its run in the program | `builder` |
//! | handlers by the name of their call | `handlers` |
//! | run of a handler in the transaction of its task; panics and stops | `run_call` |
//! | what a handler receives: task id, parameter, open transaction | `call` |
//! | statements of a handler, except those that would end the transaction | `transaction` |
//! | errors of handlers, with the SQLSTATE that decides about the retry | `call_error` |
//! | report to the program at the end of each attempt | `attempt_end` |
//!
//! A call is a task whose statement is `CALL name($1)` with one parameter. A handler stands in for
//! the procedure of this name: the worker opens the transaction of the task, awaits the handler
//! instead of the answer to the statement, and completes the task in the same transaction.
//!
//! Invariant: a handler only borrows the transaction, and cannot send a statement that ends it. So
//! no statement of a handler runs after the end of its attempt.

pub(crate) mod attempt_end;
mod builder;
mod call;
mod call_error;
pub(crate) mod handlers;
pub(crate) mod run_call;
mod transaction;

pub use attempt_end::AttemptEnd;
pub use builder::{Builder, Worker};
pub use call::Call;
pub use call_error::CallError;
pub use handlers::HandlerFuture;
pub use transaction::Transaction;
