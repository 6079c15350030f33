//! Transitions of a task, as in the state graph of ARCHITECTURE.md, and the retry by an operator. A waiting task in this table is
//! scheduled, blocked or pending.
//!
//! | transition | file |
//! |---|---|
//! | → waiting: a new task | `enqueue` |
//! | scheduled → pending or blocked: the task is due | `promote` |
//! | blocked → pending, and back: a permit is granted or revoked | `limit` |
//! | pending → running: a reader claims the task | `claim` |
//! | running → finished: success, recorded in the task's own transaction | `complete` |
//! | decision whether and when a failed attempt is repeated | `retry` |
//! | running → waiting or finished: an attempt without success | `fail` |
//! | running → waiting: an interrupted attempt, which does not count | `release` |
//! | running → pending, blocked or finished: the worker died | `reclaim` |
//! | decision whether a COMMIT without a response has taken effect | `resolve_commit` |
//! | running → finished or reclaimed: a receipt in the target decides | `resolve_receipt` |
//! | waiting → waiting: other options, due time or limits | `change` |
//! | waiting → finished: a cancel; finished or scheduled → pending or blocked: a retry | `cancel` |
//! | cancel, retry and change of many tasks, in chunks | `bulk` |
//! | waiting → finished: all waiting tasks of a queue | `purge` |

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
