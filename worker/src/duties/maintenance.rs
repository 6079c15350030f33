//! Hourly maintenance: creates and drops history partitions, and prunes the runs, the log of
//! schedules, the idempotency keys and the notifications. Runs at once if a heartbeat finds that the
//! clock of the database has passed the last partition.

use std::sync::Arc;

use fleet_decisions::timing::MAINTENANCE_INTERVAL;
use queue::{QueueError, prune};
use rand::RngExt;
use tokio::time::sleep;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::{Duty, StopAt};

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
        tokio::select! {
            () = sleep(wait) => {}
            () = self.context.wakeup.maintenance_requested() => {}
        }
        Some(())
    }

    /// Returns the number of partitions created, partitions dropped, and rows deleted, added up.
    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let control = &self.context.control;
        let created =
            answered(async { prune::prepare_history(&*control.get().await?).await }).await?;
        let mut runs = 0;
        loop {
            let chunk = async { prune::prune_runs(&*control.get().await?).await };
            let chunk = answered(chunk).await?;
            runs += chunk;
            if chunk < 1_000 {
                break;
            }
        }
        let (mut log_rows, mut keys, mut notifications) = (0, 0, 0);
        loop {
            let log_chunk = async { prune::prune_schedule_log(&*control.get().await?).await };
            let log_chunk = answered(log_chunk).await?;
            let key_chunk = async { prune::prune_idempotency_keys(&*control.get().await?).await };
            let key_chunk = answered(key_chunk).await?;
            let sent_chunk = async { prune::prune_notifications(&*control.get().await?).await };
            let sent_chunk = answered(sent_chunk).await?;
            log_rows += log_chunk;
            keys += key_chunk;
            notifications += sent_chunk;
            if log_chunk.max(key_chunk).max(sent_chunk) < 10_000 {
                break;
            }
        }
        // Comes last: it fails if a reader of history holds a partition, and nothing else may wait
        // for that.
        let dropped = answered(async { prune::prune(&*control.get().await?).await }).await?;
        let done = [created, dropped, runs, log_rows, keys, notifications];
        if done != [0; 6] {
            tracing::info!(
                created,
                dropped,
                runs,
                log_rows,
                keys,
                notifications,
                "history maintained"
            );
        }
        Ok(done.map(i32::unsigned_abs).map(u64::from).iter().sum())
    }
}
