//! Throughput and backlog of the last hours, read minute by minute and cached.

pub(crate) mod backlog_history;
pub(crate) mod cache;
pub(crate) mod minutes;
