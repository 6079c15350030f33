//! The task queue: all SQL on the tasks table, with one file per transition.
//!
//! | task | file |
//! |---|---|
//! | the schema: installation, upgrade, version, comparison with the database | `schema` |
//! | transitions of tasks, from enqueue and claim to the end | `transition` |
//! | the worker's own statements: heartbeat, poll, pruning, notifications | `worker` |
//! | definitions, runs and settings that operators and producers change | `operator` |
//! | queries for the console, the command line and the metrics | `read` |
//! | receipts of tasks that ran in a target, where these statements run | `receipt` |
//! | SQL scanner: statements of a script, statements that a task may not contain | `scan` |
//! | the claim of a running task, retry policy, state after an attempt | `task` |
//! | default values of task options, for help texts | `task_defaults` |
//! | ids of workers and limits, fencing token | `id` |
//! | macro for enums of the schema, with a schema for OpenAPI | `pg_enum` |
//! | runs statements, and reads values and structs from rows, by the names of columns | `row` |
//! | errors of the queue, and conditions of the server behind them | `error` |
//!
//! Functions take `&impl GenericClient`, so that a caller may pass its own transaction. Each
//! statement has a comment with its name behind its first word, where it remains visible in
//! `pg_stat_statements`.

mod error;
mod id;
mod operator;
mod pg_enum;
mod read;
pub mod receipt;
pub mod row;
pub mod scan;
pub mod schema;
mod task;
pub mod task_defaults;
mod transition;
mod worker;

pub use operator::{
    group, idempotency, job, maintenance, operate, priority, profile, run, session, subscription,
    target,
};
/// For the macro `pg_enum!`.
#[doc(hidden)]
pub use pgmill_client as client;
pub use read::{
    attempt, audit, critical_path, doctor, fleet, history, insight, lineage, lock_wait, names,
    queue_status, run_attempts, run_queries, task_queries, workers,
};
pub use schema::{catalog, citus, drift, sequences, upgrade};
pub use transition::{
    bulk, cancel, change, claim, complete, enqueue, fail, limit, promote, purge, reclaim, release,
    resolve_commit, resolve_receipt, retry,
};
pub use worker::{
    heartbeat, lost_attempts, notification, poll, progress, prune, queue_conditions, server,
    target_conditions,
};

pub use error::{Condition, QueueError, READ_TIMEOUT};
pub use id::{LimitId, Token, WorkerId};
pub use pgmill_client::{
    Backoff, Isolation, Labels, Mode, Outcome, Priority, RunId, State, StoredOptions, TaskId,
    Traceparent, chain, database_message,
};
pub use task::{Claim, Disposition, LimitKind, ReservedCapacity, RetryPolicy};
