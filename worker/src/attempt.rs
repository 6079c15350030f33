//! Attempts: runs a claimed task in a session, from the check of its statement to the record of its
//! result.
//!
//! `reader` owns a session and serves one claim after another. `check` refuses statements that must
//! not be sent. `execute` runs one task in its own transaction; `chain` says which tasks may wait for
//! each other; `shared_commit` runs several tasks in one transaction. `supervise` watches over the
//! statements of both. `commit` commits the effects of a task with its completion, and `finish`
//! records every other result.

pub(crate) mod chain;
pub(crate) mod check;
pub(crate) mod commit;
pub(crate) mod error;
pub(crate) mod execute;
pub(crate) mod explain;
pub(crate) mod finish;
pub mod output;
pub mod params;
pub(crate) mod prepare;
pub(crate) mod reader;
pub(crate) mod session;
pub(crate) mod shared_commit;
pub(crate) mod statement;
pub(crate) mod supervise;
