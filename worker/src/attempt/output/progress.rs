//! Progress and notices of the running tasks of the process, until they are published.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use fleet_decisions::timing::PROGRESS_INTERVAL;
use parking_lot::Mutex;
use queue::progress::ProgressReport;
use queue::{Claim, TaskId, Token};
use tokio::sync::Notify;

use crate::attempt::output::notices::Notices;

/// Reports the progress of the tasks of this process. Leaves out tasks in shared commits, which are
/// short.
#[derive(Clone, Default)]
pub(crate) struct ProgressReporter {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    tasks: Mutex<Tasks>,
    /// Notified when a task has reported something, or when a task with a published report has
    /// ended.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Tasks {
    tracked: HashMap<TaskId, TrackedTask>,
    /// Ended tasks whose published report has to be removed.
    ended: Vec<TaskId>,
}

struct TrackedTask {
    token: Token,
    begun: Instant,
    notices: Notices,
    written: bool,
}

/// Tracks an attempt until dropped.
pub(crate) struct TrackingGuard {
    shared: Arc<Shared>,
    id: TaskId,
}

impl ProgressReporter {
    /// Attributes notices raised in the session to this task.
    pub(crate) fn track(&self, claim: &Claim, notices: &Notices) -> TrackingGuard {
        let task = TrackedTask {
            token: claim.token(),
            begun: Instant::now(),
            notices: notices.clone(),
            written: false,
        };
        self.shared.tasks.lock().tracked.insert(claim.id(), task);
        let guard = TrackingGuard { shared: Arc::clone(&self.shared), id: claim.id() };
        guard.follow(notices);
        guard
    }

    /// Resolves when there may be changes to publish.
    pub(crate) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Returns the changes of tasks that have run long enough. Schedules another collection for
    /// tasks that have not run long enough yet.
    pub(crate) fn collect_changes(&self) -> (Vec<ProgressReport>, Vec<TaskId>) {
        let mut tasks = self.shared.tasks.lock();
        let mut reports = Vec::new();
        let mut early = false;
        for (id, task) in &mut tasks.tracked {
            if task.begun.elapsed() < PROGRESS_INTERVAL {
                early |= task.notices.has_changes();
            } else if let Some(update) = task.notices.take_changes() {
                task.written = true;
                reports.push(ProgressReport {
                    id: *id,
                    token: task.token,
                    percent: update.percent,
                    message: update.message,
                    notices: update.recent,
                });
            }
        }
        if early {
            self.shared.changed.notify_one();
        }
        (reports, std::mem::take(&mut tasks.ended))
    }

    /// Restores changes that could not be written.
    pub(crate) fn retry(&self, reports: &[ProgressReport], ended: Vec<TaskId>) {
        let mut tasks = self.shared.tasks.lock();
        for report in reports {
            if let Some(task) = tasks.tracked.get(&report.id) {
                task.notices.mark_changed();
            }
        }
        tasks.ended.extend(ended);
        self.shared.changed.notify_one();
    }
}

impl TrackingGuard {
    /// Publishes the notices of the statement that runs next, until they are taken.
    pub(crate) fn follow(&self, notices: &Notices) {
        notices.subscribe(Arc::clone(&self.shared.changed));
    }
}

impl Drop for TrackingGuard {
    fn drop(&mut self) {
        let mut tasks = self.shared.tasks.lock();
        if tasks.tracked.remove(&self.id).is_some_and(|task| task.written) {
            tasks.ended.push(self.id);
            self.shared.changed.notify_one();
        }
    }
}
