//! The task queue: everything that touches the tasks table, one file per transition.
//!
//! Functions take `&impl GenericClient`, so that a caller may pass its own transaction. Statements
//! carry a comment with their name, which survives into `pg_stat_statements`.

pub mod attempt;
pub mod audit;
pub mod backlog;
pub mod beat;
pub mod bulk;
pub mod cancel;
pub mod claim;
pub mod complete;
pub mod connect;
pub mod critical_path;
pub mod doctor;
pub mod drift;
pub mod enqueue;
mod error;
pub mod exit;
pub mod fail;
pub mod fleet;
pub mod give_back;
pub mod graph;
pub mod group;
pub mod history;
pub mod insight;
pub mod job;
pub mod limit;
pub mod lineage;
pub mod look;
pub mod operate;
pub mod priority;
pub mod profile;
pub mod progress;
pub mod promote;
pub mod prune;
pub mod reclaim;
pub mod retry;
pub mod roster;
pub mod run;
pub mod scan;
pub mod schema;
pub mod server;
pub mod settle;
pub mod show;
mod task;
pub mod upgrade;
pub mod waiting;
mod words;

pub use error::{QueueError, chain, database_message};
pub use task::{
    Backoff, Claim, LimitKind, Mode, Outcome, Priority, ReservedCapacity, RetryPolicy, State,
    TaskId, Token, WorkerId,
};
pub use words::word;
