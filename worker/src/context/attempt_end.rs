//! Reports the end of each attempt to the program that embeds the worker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use queue::{Claim, Disposition, scan};

/// The function that is called at the end of each attempt.
pub(crate) type AttemptEndHook = Box<dyn Fn(&AttemptEnd<'_>) + Send + Sync>;

/// The end of an attempt of this worker.
#[derive(Debug)]
#[non_exhaustive]
pub struct AttemptEnd<'a> {
    /// Id of the task.
    pub task_id: i64,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Queue of the task.
    pub queue: &'a str,
    /// Name of the task, if it has one.
    pub name: Option<&'a str>,
    /// Name of the call; `None` for any other statement.
    pub call: Option<String>,
    /// What became of the task.
    pub disposition: Disposition,
    /// Run time of the attempt.
    pub duration: Duration,
}

/// Calls the hook. A panic of the hook is logged, because the attempt has ended already.
pub(crate) fn report(
    hook: &AttemptEndHook,
    claim: &Claim,
    disposition: Disposition,
    duration: Duration,
) {
    let end = AttemptEnd {
        task_id: claim.id().0,
        attempt: claim.attempt(),
        queue: claim.queue(),
        name: claim.name(),
        call: call_name(claim),
        disposition,
        duration,
    };
    if catch_unwind(AssertUnwindSafe(|| hook(&end))).is_err() {
        tracing::error!(task = end.task_id, "on_attempt_end panicked");
    }
}

/// Returns the name of the call; `None` if the task is not a call.
pub(crate) fn call_name(claim: &Claim) -> Option<String> {
    let [_] = claim.params()? else { return None };
    scan::call_with_one_parameter(claim.statement())
}
