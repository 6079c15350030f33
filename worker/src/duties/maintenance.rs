//! Hourly maintenance: creates and drops history partitions, and prunes the log of schedules.

use std::sync::Arc;

use queue::{QueueError, prune};
use rand::RngExt;
use tokio::time::sleep;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::{Duty, StopAt};
use crate::timing::MAINTENANCE_INTERVAL;

/// Maintains the history. The interval has jitter, so that workers start at different times.
pub(crate) struct Maintenance {
    context: Arc<Context>,
}

impl Maintenance {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }
}

impl Duty for Maintenance {
    const NAME: &'static str = "maintain_history";
    const STOPS: StopAt = StopAt::Drain;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        let wait = MAINTENANCE_INTERVAL.mul_f64(rand::rng().random_range(0.5..1.0));
        sleep(wait).await;
        Some(())
    }

    /// Returns the number of partitions created, partitions dropped and log rows deleted, added up.
    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let control = &self.context.control;
        let created =
            answered(async { prune::prepare_history(&*control.get().await?).await }).await?;
        let dropped = answered(async { prune::prune(&*control.get().await?).await }).await?;
        let mut log_rows = 0;
        loop {
            let deleted = async { prune::prune_schedule_log(&*control.get().await?).await };
            let deleted = answered(deleted).await?;
            log_rows += deleted;
            if deleted < 10_000 {
                break;
            }
        }
        if (created, dropped, log_rows) != (0, 0, 0) {
            tracing::info!(created, dropped, log_rows, "history maintained");
        }
        Ok([created, dropped, log_rows].into_iter().map(i32::unsigned_abs).map(u64::from).sum())
    }
}
