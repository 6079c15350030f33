//! Advances runs: at once when a task of the run ends in this process, and otherwise when a poll
//! finds events of the run.

use std::sync::Arc;
use std::time::Duration;
use std::vec::IntoIter;

use futures_util::FutureExt;
use queue::QueueError;
use queue::RunId;
use queue::enqueue::notify;
use queue::run::advance;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::Duty;
use crate::wakeup::{Items, Waker};

/// Advances runs. Any number of workers advance runs concurrently, because an advance locks the row
/// of the run. After an error the events of the run remain, and the next poll finds them.
pub(crate) struct RunAdvancer {
    context: Arc<Context>,
    /// Runs of which a task has ended in this process, or that have timed out.
    ended: Items<RunId>,
    /// Runs that a poll found.
    polled: Items<RunId>,
    /// Wakes the scheduler when a run has ended, for which a backfill may wait.
    run_end: Waker,
    runs: IntoIter<RunId>,
    polled_runs: IntoIter<RunId>,
}

impl RunAdvancer {
    pub(crate) fn new(
        context: Arc<Context>,
        ended: Items<RunId>,
        polled: Items<RunId>,
        run_end: Waker,
    ) -> Self {
        let (runs, polled_runs) = (Vec::new().into_iter(), Vec::new().into_iter());
        Self { context, ended, polled, run_end, runs, polled_runs }
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
            self.runs = self.ended.take().now_or_never().unwrap_or_default().into_iter();
            if self.polled_runs.len() == 0 {
                let polled = self.polled.take().now_or_never();
                self.polled_runs = polled.unwrap_or_default().into_iter();
            }
            // A poll may find many runs that cannot be advanced now. Therefore one of them comes after
            // each batch of the others, so that neither kind holds back the other.
            if let Some(run) = self.polled_runs.next().or_else(|| self.runs.next()) {
                return Some(run);
            }
            tokio::select! {
                runs = self.ended.take() => self.runs = runs.into_iter(),
                runs = self.polled.take() => self.polled_runs = runs.into_iter(),
            }
        }
    }

    async fn run_once(&mut self, run: RunId) -> Result<u64, QueueError> {
        let Context { control, claimer, metrics, .. } = &*self.context;
        let mut tasks = 0;
        loop {
            let advanced = answered(async { advance(&*control.get().await?, run).await }).await?;
            if advanced.released > 0 {
                tasks += advanced.released;
                metrics.run_tasks_enqueued(advanced.released);
                claimer.notify();
                // If one task was released and this process has an idle reader, it takes the task
                // itself.
                if advanced.released > 1 || !claimer.is_idle() {
                    answered(async { notify(&*control.get().await?).await }).await?;
                }
            }
            if let Some(state) = advanced.ended {
                metrics.run_finished(state);
                self.run_end.wake();
                tracing::info!(%run, %state, "run finished");
            }
            if !advanced.more {
                return Ok(tasks);
            }
        }
    }
}
