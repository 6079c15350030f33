//! Chain: a reader runs several short tasks one after another, each in its own transaction, and
//! sends COMMIT of one task in the same message as BEGIN and the statement of the next. A task then
//! takes one round trip instead of two.
//!
//! The server executes a message up to the first error. So if COMMIT fails, the next statement does
//! not run. The server parses the whole message first. So a syntax error of the next statement
//! rolls back the task before it, which is then run again alone. For the same reason, the server
//! reads the next statement with the `client_encoding` and the `standard_conforming_strings` that
//! the task before has set: only text that means the same with all their values runs in a chain.
//! Every other result is the task's own, as if it had run alone.
//!
//! A task of a chain waits for the tasks before it. Chains are therefore limited to queues whose
//! tasks take a few milliseconds, and a reader releases the waiting tasks if one task takes longer.
//! A task that has waited for seconds may wait a little longer: on a server with too few processors
//! for its readers, even short tasks take tens of milliseconds, and chains make them cheaper.

use std::time::Duration;

use queue::Claim;

use crate::context::in_flight::ClaimedTask;

/// Time that the tasks of a chain may take together, if they have waited for at most
/// `MIN_BUDGET * WAIT_DIVISOR`.
const MIN_BUDGET: Duration = Duration::from_millis(20);

/// Time that the tasks of a chain may take together, however long they have waited.
const MAX_BUDGET: Duration = Duration::from_millis(200);

/// Between these limits, a chain may prolong the wait of its tasks by one part in this number.
const WAIT_DIVISOR: u32 = 20;

/// Returns the time that a chain with this task may take. If a statement runs for this long, the
/// tasks that wait for it are released.
pub(crate) fn chain_budget(claim: &Claim) -> Duration {
    budget_after(claim.waited())
}

fn budget_after(waited: Duration) -> Duration {
    (waited / WAIT_DIVISOR).clamp(MIN_BUDGET, MAX_BUDGET)
}

/// Returns whether the task may wait in a chain. It may not if it has to run alone; if it holds permits,
/// which other tasks could use meanwhile; or if the text of its statement has several readings.
pub(crate) fn may_chain(task: &ClaimedTask) -> bool {
    task.may_run_among_others() && task.claim.limits().is_empty() && has_one_reading(&task.claim)
}

/// Returns whether the server reads the text of the task alike with every `client_encoding` and with
/// both values of `standard_conforming_strings`. Constants for queue and name are escaped, so
/// backslashes matter only in the statement.
fn has_one_reading(claim: &Claim) -> bool {
    let names = [claim.queue(), claim.name().unwrap_or_default()];
    claim.statement().is_ascii()
        && !claim.statement().contains('\\')
        && names.into_iter().all(str::is_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_prolongs_a_long_wait_by_a_twentieth() {
        assert_eq!(budget_after(Duration::ZERO), MIN_BUDGET);
        assert_eq!(budget_after(Duration::from_secs(1)), Duration::from_millis(50));
        assert_eq!(budget_after(Duration::from_secs(3600)), MAX_BUDGET);
    }
}
