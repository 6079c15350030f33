//! History's partitions, once an hour: made ahead at one end, dropped at the other; and the end of the
//! log of schedules.

use std::time::Duration;

use queue::{QueueError, prune};
use rand::RngExt;
use tokio::time::sleep;

use crate::control::{Control, answered};
use crate::shutdown::Shutdown;

const INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Runs until the worker drains. Workers start at different moments of the hour.
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
                tracing::info!(created, dropped, log_rows, "days of history, and log of schedules");
            }
            Err(error) => tracing::warn!(%error, "keeping history failed, next try in an hour"),
        }
    }
}

/// Returns how many partitions were made and dropped, and how many rows of the log deleted.
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
