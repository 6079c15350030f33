//! Hourly maintenance: creates and drops history partitions, and prunes the log of schedules.

use std::time::Duration;

use queue::{QueueError, prune};
use rand::RngExt;
use tokio::time::sleep;

use crate::control::{Control, answered};
use crate::shutdown::Shutdown;

const INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Runs until the worker drains. The interval is jittered, so that workers start at different
/// times.
pub(crate) async fn run(control: Control, shutdown: Shutdown) {
    loop {
        let wait = INTERVAL.mul_f64(rand::rng().random_range(0.5..1.0));
        tokio::select! {
            () = shutdown.drain.cancelled() => return,
            () = sleep(wait) => {}
        }
        match run_once(&control).await {
            Ok((0, 0, 0)) => {}
            Ok((created, dropped, log_rows)) => {
                tracing::info!(created, dropped, log_rows, "partition maintenance done");
            }
            Err(error) => {
                tracing::warn!(%error, "partition maintenance failed, next attempt within an hour");
            }
        }
    }
}

/// Returns the numbers of partitions created, partitions dropped and log rows deleted.
async fn run_once(control: &Control) -> Result<(i32, i32, i32), QueueError> {
    let created = answered(async { prune::prepare_history(&*control.get().await?).await }).await?;
    let dropped = answered(async { prune::prune(&*control.get().await?).await }).await?;
    let mut log_rows = 0;
    loop {
        let deleted = async { prune::prune_schedule_log(&*control.get().await?).await };
        let deleted = answered(deleted).await?;
        log_rows += deleted;
        if deleted < 10_000 {
            return Ok((created, dropped, log_rows));
        }
    }
}
