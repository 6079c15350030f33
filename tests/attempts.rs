//! One attempt: its session, its input and what it reports.

pub(crate) mod bad_input;
pub(crate) mod calls;
pub(crate) mod calls_stopped;
pub(crate) mod chain;
pub(crate) mod citus;
pub(crate) mod clean_session;
pub(crate) mod explain;
pub(crate) mod invalid_indexes;
pub(crate) mod isolation;
pub(crate) mod malformed_answers;
pub(crate) mod parameters;
pub(crate) mod poison;
pub(crate) mod pooler;
pub(crate) mod progress;
pub(crate) mod sd_notify;
