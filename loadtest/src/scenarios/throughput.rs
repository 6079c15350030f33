//! Scenarios about throughput: drains of a backlog, and things that must not slow them down.

pub(crate) mod backlog;
pub(crate) mod capped;
mod control_case;
pub(crate) mod drain;
pub(crate) mod fleet;
pub(crate) mod history;
pub(crate) mod noop;
pub(crate) mod pinned;
pub(crate) mod scheduled;
pub(crate) mod targets;
pub(crate) mod tracing;
