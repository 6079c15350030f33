//! Publishes the progress and notices of running tasks, about once a second, for all tasks of the
//! process in one statement. Tasks that report nothing or finish within a second cause no write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use queue::progress::{ProgressReport, record_progress};
use queue::{Claim, TaskId, Token, WorkerId};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::attempt::notices::Notices;
use crate::control::{Control, answered};
use crate::shutdown::Shutdown;

/// Time between two statements, and minimum run time of a task to be published.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// Reports the progress of the tasks of this process, except those in shared commits, which are
/// short.
#[derive(Clone, Default)]
pub(crate) struct ProgressReporter {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    tasks: Mutex<Tasks>,
    /// A task has reported something, or a task with a published report has ended.
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
        self.shared.lock().tracked.insert(claim.id(), task);
        TrackingGuard { shared: Arc::clone(&self.shared), id: claim.id() }
    }

    /// Publishes reports until the worker ends.
    pub(crate) async fn run(self, worker: WorkerId, control: Control, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.end.cancelled() => break,
                () = self.shared.changed.notified() => {}
            }
            // Collect reports that arrive in the meantime.
            tokio::select! {
                () = shutdown.end.cancelled() => break,
                () = sleep(WRITE_INTERVAL) => {}
            }
            self.write(worker, &control).await;
        }
        self.write(worker, &control).await;
    }

    async fn write(&self, worker: WorkerId, control: &Control) {
        let (reports, ended) = self.shared.collect_changes();
        if reports.is_empty() && ended.is_empty() {
            return;
        }
        let written =
            async { record_progress(&*control.get().await?, worker, &reports, &ended).await };
        if let Err(error) = answered(written).await {
            tracing::debug!(%error, "could not publish the progress of tasks");
            self.shared.retry(&reports, ended);
        }
    }
}

impl Shared {
    /// Returns the changes of tasks that have run long enough. Schedules another collection for
    /// younger tasks.
    fn collect_changes(&self) -> (Vec<ProgressReport>, Vec<TaskId>) {
        let mut tasks = self.lock();
        let mut reports = Vec::new();
        let mut early = false;
        for (id, task) in &mut tasks.tracked {
            if task.begun.elapsed() < WRITE_INTERVAL {
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
        let mut tasks = self.lock();
        for report in reports {
            if let Some(task) = tasks.tracked.get(&report.id) {
                task.notices.mark_changed();
            }
        }
        tasks.ended.extend(ended);
        self.changed.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TrackingGuard {
    fn drop(&mut self) {
        let mut tasks = self.shared.lock();
        if tasks.tracked.remove(&self.id).is_some_and(|task| task.written) {
            tasks.ended.push(self.id);
            self.shared.changed.notify_one();
        }
    }
}

/// Parses a notice such as `progress: 40% loading` into percentage and message. Returns `None` for
/// other notices.
pub(crate) fn parse_progress(message: &str) -> Option<(Option<f64>, Option<&str>)> {
    let rest = message.strip_prefix("progress:")?.trim();
    let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let percent = rest[..digits].parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    let after = rest[digits..].trim_start().strip_prefix('%');
    let (percent, rest) = match (percent, after) {
        (Some(percent), Some(after)) => (Some(percent), after.trim_start()),
        _ => (None, rest),
    };
    Some((percent, (!rest.is_empty()).then_some(rest)))
}

#[cfg(test)]
mod tests {
    use super::parse_progress;

    #[test]
    fn a_progress_notice_has_a_percentage_or_a_message_or_both() {
        for (message, percent, words) in [
            ("progress: 40% loading", Some(40.0), Some("loading")),
            ("progress: 99.5 %", Some(99.5), None),
            ("progress:100%done", Some(100.0), Some("done")),
            ("progress: 3 of 7 files", None, Some("3 of 7 files")),
            ("progress: 101% of it", None, Some("101% of it")),
            ("progress: 1.2.3%", None, Some("1.2.3%")),
            ("progress: ", None, None),
        ] {
            assert_eq!(parse_progress(message), Some((percent, words)), "{message}");
        }
        assert_eq!(parse_progress("the progress: 40%"), None);
        assert_eq!(parse_progress("Progress 40%"), None);
    }
}
