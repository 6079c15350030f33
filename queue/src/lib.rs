//! The task queue: all SQL on the tasks table, one file per transition.
//!
//! Functions take `&impl GenericClient`, so that a caller may pass its own transaction. Each
//! statement contains a comment with its name, which remains visible in `pg_stat_statements`.

pub mod attempt;
pub mod audit;
pub mod bulk;
pub mod cancel;
pub mod claim;
pub mod complete;
pub mod critical_path;
pub mod doctor;
pub mod drift;
pub mod enqueue;
mod error;
pub mod exit;
pub mod fail;
pub mod fleet;
pub mod group;
pub mod heartbeat;
pub mod history;
pub mod insight;
pub mod job;
pub mod limit;
pub mod lineage;
pub mod lock_wait;
pub mod operate;
mod pg_enum;
pub mod poll;
pub mod priority;
pub mod profile;
pub mod progress;
pub mod promote;
pub mod prune;
pub mod queue_status;
pub mod reclaim;
pub mod release;
pub mod resolve_commit;
pub mod retry;
pub mod row;
pub mod run;
pub mod run_queries;
pub mod scan;
pub mod schema;
pub mod server;
mod task;
pub mod task_defaults;
pub mod task_queries;
pub mod upgrade;
pub mod workers;

pub use error::{QueueError, chain, database_message};
pub use task::{
    Backoff, Claim, LimitKind, Mode, Outcome, Priority, ReservedCapacity, RetryPolicy, State,
    TaskId, Token, WorkerId,
};
