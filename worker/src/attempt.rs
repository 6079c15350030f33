//! Attempts: runs a claimed task in a session (check, run, commit, record).
//!
//! `reader` owns a session and serves one claim after another. `check` refuses what must not be
//! sent; `execute` runs a task alone, `shared_commit` several in one transaction, both under
//! `supervise`; `commit` commits effects and completion; `finish` records every other result.

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
