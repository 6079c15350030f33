//! Transitions of a task, one file each: the state graph of ARCHITECTURE.md.

pub mod bulk;
pub mod cancel;
pub mod claim;
pub mod complete;
pub mod enqueue;
pub mod fail;
pub mod limit;
pub mod promote;
pub mod reclaim;
pub mod release;
pub mod resolve_commit;
pub mod retry;
