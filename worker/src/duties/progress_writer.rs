//! Publishes the progress and the notices of running tasks, about once a second, with one statement
//! for all tasks of the process. A task that reports nothing, or that finishes within a second,
//! causes no write.

use std::sync::Arc;
use std::time::Duration;

use fleet_decisions::timing::PROGRESS_INTERVAL;
use queue::QueueError;
use queue::progress::record_progress;
use tokio::time::sleep;

use crate::attempt::output::progress::ProgressReporter;
use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::Duty;

/// Publishes the reports.
pub(crate) struct ProgressWriter {
    context: Arc<Context>,
    reporter: ProgressReporter,
}

impl ProgressWriter {
    pub(crate) fn new(context: Arc<Context>, reporter: ProgressReporter) -> Self {
        Self { context, reporter }
    }
}

impl Duty for ProgressWriter {
    const NAME: &'static str = "write_progress";
    /// The interval is the wait after a failure.
    const MAX_BACKOFF: Duration = Duration::ZERO;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        self.reporter.changed().await;
        // Collect reports that arrive in the meantime.
        sleep(PROGRESS_INTERVAL).await;
        Some(())
    }

    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let (reports, ended) = self.reporter.collect_changes();
        if reports.is_empty() && ended.is_empty() {
            return Ok(0);
        }
        let Context { control, worker, .. } = &*self.context;
        let written =
            async { record_progress(&*control.get().await?, *worker, &reports, &ended).await };
        if let Err(error) = answered(written).await {
            self.reporter.retry(&reports, ended);
            return Err(error);
        }
        Ok((reports.len() + ended.len()) as u64)
    }

    async fn stop(&mut self) {
        // Removes the reports of ended tasks. If this fails, another worker removes them later.
        let _ = self.run_once(()).await;
    }
}
