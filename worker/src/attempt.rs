//! Attempts: runs a claimed task in a session (check, run, settle, record).
//!
//! `reader` owns a session and serves one claim after another; `execute` runs a task alone and
//! `shared_commit` several in one transaction, both under `supervise`; `finish` records the result.

pub mod decode;
pub(crate) mod disposition;
pub(crate) mod error;
pub(crate) mod execute;
pub(crate) mod explain;
pub(crate) mod finish;
pub(crate) mod notices;
pub mod params;
pub(crate) mod prepare;
pub(crate) mod progress;
pub(crate) mod reader;
pub(crate) mod rows;
pub(crate) mod session;
pub(crate) mod shared_commit;
pub(crate) mod statement;
pub(crate) mod supervise;
