//! Publishes the progress and the notices of running tasks, about once a second, with one statement
//! for all tasks of the process. A task that reports nothing, or that finishes within a second,
//! causes no write.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_decisions::timing::PROGRESS_INTERVAL;
use parking_lot::Mutex;
use queue::progress::{ProgressReport, record_progress};
use queue::{Claim, QueueError, TaskId, Token};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::attempt::output::notices::Notices;
use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::Duty;

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
        notices.subscribe(Arc::clone(&self.shared.changed));
        let task = TrackedTask {
            token: claim.token(),
            begun: Instant::now(),
            notices: notices.clone(),
            written: false,
        };
        self.shared.tasks.lock().tracked.insert(claim.id(), task);
        TrackingGuard { shared: Arc::clone(&self.shared), id: claim.id() }
    }
}

/// Publishes the reports.
pub(crate) struct ProgressWriter {
    context: Arc<Context>,
    shared: Arc<Shared>,
}

impl ProgressWriter {
    pub(crate) fn new(context: Arc<Context>, reporter: &ProgressReporter) -> Self {
        Self { context, shared: Arc::clone(&reporter.shared) }
    }
}

impl Duty for ProgressWriter {
    const NAME: &'static str = "write_progress";
    /// The interval is the wait after a failure.
    const MAX_BACKOFF: Duration = Duration::ZERO;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        self.shared.changed.notified().await;
        // Collect reports that arrive in the meantime.
        sleep(PROGRESS_INTERVAL).await;
        Some(())
    }

    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let (reports, ended) = self.shared.collect_changes();
        if reports.is_empty() && ended.is_empty() {
            return Ok(0);
        }
        let Context { control, worker, .. } = &*self.context;
        let written =
            async { record_progress(&*control.get().await?, *worker, &reports, &ended).await };
        if let Err(error) = answered(written).await {
            self.shared.retry(&reports, ended);
            return Err(error);
        }
        Ok((reports.len() + ended.len()) as u64)
    }

    async fn stop(&mut self) {
        // Removes the reports of ended tasks. If this fails, another worker removes them later.
        let _ = self.run_once(()).await;
    }
}

impl Shared {
    /// Returns the changes of tasks that have run long enough. Schedules another collection for
    /// tasks that have not run long enough yet.
    fn collect_changes(&self) -> (Vec<ProgressReport>, Vec<TaskId>) {
        let mut tasks = self.tasks.lock();
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
            self.changed.notify_one();
        }
        (reports, std::mem::take(&mut tasks.ended))
    }

    /// Restores changes that could not be written.
    fn retry(&self, reports: &[ProgressReport], ended: Vec<TaskId>) {
        let mut tasks = self.tasks.lock();
        for report in reports {
            if let Some(task) = tasks.tracked.get(&report.id) {
                task.notices.mark_changed();
            }
        }
        tasks.ended.extend(ended);
        self.changed.notify_one();
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
