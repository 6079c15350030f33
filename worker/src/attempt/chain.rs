//! Chain: a reader runs several short tasks one after another, each in its own transaction, and
//! sends COMMIT of one task in the same message as BEGIN and the statement of the next. A task then
//! takes one round trip instead of two.
//!
//! The server executes a message up to the first error. So if COMMIT fails, the next statement does
//! not run. The server parses the whole message first. So a syntax error of the next statement
//! rolls back the task before it, which is then run again alone. Every other result is the task's
//! own, as if it had run alone.
//!
//! A task of a chain waits for the tasks before it. Chains are therefore limited to queues whose
//! tasks take a few milliseconds, and a reader releases the waiting tasks if one task takes longer.

use std::time::Duration;

use queue::{Mode, scan};

use crate::claim::in_flight::ClaimedTask;

/// Time that the tasks of a chain may take together. If a statement runs for this long, the tasks
/// that wait for it are released.
pub(crate) const CHAIN_BUDGET: Duration = Duration::from_millis(20);

/// Maximum number of tasks in a chain.
pub(crate) const MAX_CHAIN: usize = 8;

/// Returns whether the task may wait in a chain. It may not if it holds permits, which other tasks
/// could use meanwhile; if its claim has to be durable before it starts; or if its statement cannot
/// be sent together with BEGIN.
pub(crate) fn may_chain(task: &ClaimedTask) -> bool {
    let claim = &task.claim;
    claim.mode() == Mode::Transaction
        && !claim.external()
        && !claim.explain()
        && claim.isolation().is_none()
        && claim.params().is_none()
        && claim.limits().is_empty()
        && task.stop.borrow().is_none()
        && scan::forbidden(claim.statement()).is_none()
}
