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
}

impl RunAdvancer {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, runs: Vec::new().into_iter() }
    }
}

impl Duty for RunAdvancer {
    const NAME: &'static str = "advance_runs";
    /// Zero, because the next poll repeats a failed run. Other runs are advanced meanwhile.
    const MAX_BACKOFF: Duration = Duration::ZERO;
    type Cause = RunId;

    async fn next(&mut self) -> Option<RunId> {
        loop {
            if let Some(run) = self.runs.next() {
                return Some(run);
            }
            self.context.wakeup.runs_to_advance.added().await;
            self.runs = self.context.wakeup.runs_to_advance.take().into_iter();
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
