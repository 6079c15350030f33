//! Advances runs: at once after a task of the run ends in this process, and otherwise when a poll
//! finds pending events of a run.

use std::sync::Arc;

use queue::QueueError;
use queue::enqueue::notify;
use queue::run::{RunId, advance};

use crate::control::{Control, answered};
use crate::shutdown::Shutdown;
use crate::telemetry::metrics::Metrics;
use crate::wakeup::Wakeup;

/// Advances runs.
pub(crate) struct RunAdvancer {
    pub(crate) control: Control,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

impl RunAdvancer {
    /// Runs until the worker ends. Any number of workers advance runs concurrently: each run's row
    /// is locked meanwhile.
    pub(crate) async fn run(self) {
        loop {
            tokio::select! {
                () = self.shutdown.end.cancelled() => return,
                () = self.wakeup.runs_to_advance.added() => {}
            }
            for run in self.wakeup.runs_to_advance.take() {
                if let Err(error) = self.advance(run).await {
                    // The events remain pending: the next poll finds them.
                    tracing::warn!(%error, %run, "advancing a run failed");
                }
            }
        }
    }

    async fn advance(&self, run: RunId) -> Result<(), QueueError> {
        loop {
            let advanced = async { advance(&*self.control.get().await?, run).await };
            let advanced = answered(advanced).await?;
            if advanced.released > 0 {
                tracing::debug!(%run, tasks = advanced.released, "enqueued tasks of a run");
                self.metrics.run_tasks_enqueued(advanced.released);
                self.wakeup.notify();
                // This process takes a single task itself if it has an idle reader.
                if advanced.released > 1 || !self.wakeup.is_idle() {
                    answered(async { notify(&*self.control.get().await?).await }).await?;
                }
            }
            if let Some(state) = advanced.ended {
                self.metrics.run_finished(state);
                tracing::info!(%run, %state, "run finished");
            }
            if !advanced.more {
                return Ok(());
            }
        }
    }
}
