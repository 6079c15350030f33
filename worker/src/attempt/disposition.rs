//! State of a task after an attempt, for log and metrics.

use queue::Outcome;

/// State of the task after the attempt, for log and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The task is finished.
    Finished(Outcome),
    /// Another attempt follows.
    Retried(Outcome),
    /// The claim was released; the attempt is not counted.
    Released,
    /// The claim had been lost.
    Lost,
}
