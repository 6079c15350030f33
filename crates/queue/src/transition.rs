//! Transitions of a task. There is one file per transition of the state graph in ARCHITECTURE.md.

pub mod bulk;
pub mod cancel;
pub mod change;
pub mod claim;
pub mod complete;
pub mod enqueue;
pub mod fail;
pub mod limit;
pub mod promote;
pub mod purge;
pub mod reclaim;
pub mod release;
pub mod resolve_commit;
pub mod resolve_receipt;
pub mod retry;
