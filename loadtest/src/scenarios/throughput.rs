//! Scenarios about throughput: drains of a backlog, and things that must not slow them down.
//!
//! | scenario | file |
//! |---|---|
//! | backlog of INSERTs: one commit per task and shared commits, with their ceilings | `drain` |
//! | backlog of `SELECT 1`, with the same ceilings: the queue's own cost | `noop` |
//! | heads of a small and of large backlogs | `backlog` |
//! | the same drain in two databases, of which one contains something more | `control_case` |
//! | drain with an empty and with a long history | `history` |
//! | drain with and without millions of scheduled tasks | `scheduled` |
//! | drain with and without many tasks of a run at its limit | `capped` |
//! | long drain while an old snapshot keeps dead rows | `pinned` |
//! | drain in the queue's database and in a target | `targets` |
//! | drain without tracing, and with tracing of no, some and all tasks | `tracing` |
//! | one backlog for 1 to 64 worker processes | `fleet` |

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
