//! Tasks of runs that wait for approval.

use jiff::Timestamp;
use pgmill_client::RunId;
use serde::Serialize;

use crate::row::from_row;

/// Up to 20 tasks that wait for approval, the longest wait first.
pub(super) const APPROVALS: &str = "SELECT /* queue.insight_approvals */ a.run_id, a.jobs, a.schedule, a.task, a.note, a.since FROM mill.approvals_needed a
ORDER BY a.since LIMIT 20";

/// A task of a run that waits for approval.
#[derive(Clone, Debug, Serialize)]
pub struct NeededApproval {
    /// The run.
    pub run_id: RunId,
    /// The jobs of the run.
    pub jobs: Vec<String>,
    /// The schedule that fired the run.
    pub schedule: Option<String>,
    /// Name of the task.
    pub task: String,
    /// What the person has to check.
    pub note: Option<String>,
    /// Time since which the task waits.
    pub since: Timestamp,
}

from_row! { NeededApproval { run_id, jobs, schedule, task, note, since } }
