//! Advances runs: at once when a task of the run ends in this process, and otherwise when a poll
//! finds events of the run.

use std::sync::Arc;
use std::time::Duration;
use std::vec::IntoIter;

use queue::QueueError;
use queue::RunId;
use queue::enqueue::notify;
use queue::run::advance;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::Duty;

/// Advances runs. Any number of workers advance runs concurrently, because an advance locks the row
/// of the run. After an error the events of the run remain, and the next poll finds them.
pub(crate) struct RunAdvancer {
    context: Arc<Context>,
    runs: IntoIter<RunId>,
    polled_runs: IntoIter<RunId>,
}

impl RunAdvancer {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let (runs, polled_runs) = (Vec::new().into_iter(), Vec::new().into_iter());
        Self { context, runs, polled_runs }
    }
}

impl Duty for RunAdvancer {
    const NAME: &'static str = "advance_runs";
    /// Zero, because the next poll repeats a failed run. Other runs are advanced meanwhile.
    const MAX_BACKOFF: Duration = Duration::ZERO;
    type Cause = RunId;

    async fn next(&mut self) -> Option<RunId> {
        let wakeup = &self.context.wakeup;
        loop {
            if let Some(run) = self.runs.next() {
                return Some(run);
            }
            self.runs = wakeup.runs_to_advance.take().into_iter();
            if self.polled_runs.len() == 0 {
                self.polled_runs = wakeup.polled_runs.take().into_iter();
            }
            // A poll may find many runs that cannot be advanced now. Therefore one of them comes after
            // each batch of the others, so that neither kind holds back the other.
            if let Some(run) = self.polled_runs.next().or_else(|| self.runs.next()) {
                return Some(run);
            }
            tokio::select! {
                () = wakeup.runs_to_advance.added() => {}
                () = wakeup.polled_runs.added() => {}
            }
        }
    }

    async fn run_once(&mut self, run: RunId) -> Result<u64, QueueError> {
        let Context { control, wakeup, metrics, .. } = &*self.context;
        let mut tasks = 0;
        loop {
            let advanced = answered(async { advance(&*control.get().await?, run).await }).await?;
            if advanced.released > 0 {
                tasks += advanced.released;
                metrics.run_tasks_enqueued(advanced.released);
                wakeup.notify();
                // If one task was released and this process has an idle reader, it takes the task
                // itself.
                if advanced.released > 1 || !wakeup.is_idle() {
                    answered(async { notify(&*control.get().await?).await }).await?;
                }
            }
            if let Some(state) = advanced.ended {
                metrics.run_finished(state);
                wakeup.notify_run_end();
                tracing::info!(%run, %state, "run finished");
            }
            if !advanced.more {
                return Ok(tasks);
            }
        }
    }
}
