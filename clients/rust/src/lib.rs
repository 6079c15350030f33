#![doc = include_str!("../README.md")]
//!
//! # Layout
//!
//! `request` and `enqueue` submit tasks, `task` reads and steers them, `run` starts runs.

mod enqueue;
mod error;
mod id;
mod labels;
mod pg_enum;
mod request;
mod result;
mod run;
mod statement;
mod task;
mod traceparent;
mod vocabulary;

pub use enqueue::{enqueue, enqueue_many};
pub use error::{Error, chain, database_message, is_refused, out_of_transaction_ids};
pub use id::{RunId, TaskId};
pub use labels::{Labels, StoredOptions};
pub use request::{Due, Enqueued, NewTask, RunOptions, TaskOptions};
pub use result::{Attempt, Run, Task};
pub use run::{cancel_run, start_run, wait_run};
pub use task::{cancel, history, retry, task, wait, why};
pub use traceparent::Traceparent;
pub use vocabulary::{Backoff, Isolation, Mode, Outcome, Priority, RunState, State};

/// What the macros of this crate refer to.
#[doc(hidden)]
pub mod macro_support {
    pub use serde;
    pub use tokio_postgres;
}
