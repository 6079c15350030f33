#![doc = include_str!("../README.md")]
//!
//! # Layout
//!
//! | task | file |
//! |---|---|
//! | a new task with its options, options of a run, result of an enqueue | `request` |
//! | tags, metadata and other options that the schema stores as one document | `labels` |
//! | a `traceparent` of W3C Trace Context: check of the text, and its parts | `traceparent` |
//! | enqueue of one task or of many in one statement | `enqueue` |
//! | read, history, wait, cancel and retry of one task | `task` |
//! | start, wait and cancel of a run | `run` |
//! | execution of statements with text arguments, and of procedures that wait | `statement` |
//! | records that the functions return: started runs, tasks and attempts | `result` |
//! | ids of tasks and runs | `id` |
//! | enums of the schema: states, outcomes, priorities, modes | `vocabulary` |
//! | macro that defines such an enum | `pg_enum` |
//! | errors with the server's message, SQLSTATE and hint | `error` |

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
