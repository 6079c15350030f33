//! Hourly maintenance: creates and drops history partitions, and deletes rows that are old or no longer
//! needed. Only creates partitions, but at once, if a heartbeat finds that the clock of the database has
//! passed the last one: the clock may be wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_decisions::timing::MAINTENANCE_INTERVAL;
use queue::QueueError;
use queue::prune::{DAYS_AHEAD, PARTS, Part, prepare_history, prune, prune_history};
use rand::RngExt;
use tokio::time::sleep_until;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::{Duty, StopAt};
use crate::wakeup::Wakeup;

/// Number of attempts to drop a partition that a reader of history holds.
const DROP_ATTEMPTS: u32 = 10;

/// Maintains the history. The interval has jitter, so that workers start at different times.
pub(crate) struct Maintenance {
    context: Arc<Context>,
    /// Woken when partitions of history may be missing.
    wakeup: Wakeup,
    /// Time of the next whole maintenance. Requests do not postpone it.
    next_at: Instant,
}

/// What has to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Create partitions.
    Prepare,
    /// Create partitions, and delete what is old.
    All,
}

impl Maintenance {
    pub(crate) fn new(context: Arc<Context>, wakeup: Wakeup) -> Self {
        Self { context, wakeup, next_at: Instant::now() + interval() }
    }

    /// Deletes the rows of a part. Returns their number.
    async fn prune(&self, part: &Part) -> Result<i32, QueueError> {
        let mut deleted = 0;
        loop {
            let chunk = async { prune(&*self.context.control.get().await?, part).await };
            let (rows, more) = answered(chunk).await?;
            deleted += rows;
            if !more {
                return Ok(deleted);
            }
        }
    }

    /// Drops old partitions, each in a transaction of its own. Returns their number.
    async fn drop_partitions(&self) -> Result<i32, QueueError> {
        let (mut total, mut failed) = (0, 0);
        let mut backoff = self.context.control.backoff();
        loop {
            let drop = async { prune_history(&*self.context.control.get().await?).await };
            let (dropped, left) = answered(drop).await?;
            total += dropped;
            failed += u32::from(dropped == 0);
            if left == 0 {
                return Ok(total);
            }
            if failed == DROP_ATTEMPTS {
                tracing::warn!(
                    left,
                    "history older than its retention is kept, because a session that reads history holds it"
                );
                return Ok(total);
            }
            if dropped == 0 {
                backoff.wait().await;
            }
        }
    }
}

fn interval() -> Duration {
    MAINTENANCE_INTERVAL.mul_f64(rand::rng().random_range(0.5..1.0))
}

impl Duty for Maintenance {
    const NAME: &'static str = "maintain_history";
    const STOPS: StopAt = StopAt::Drain;
    type Cause = Work;

    async fn next(&mut self) -> Option<Work> {
        tokio::select! {
            () = sleep_until(self.next_at.into()) => {
                self.next_at = Instant::now() + interval();
                Some(Work::All)
            }
            () = self.wakeup.woken() => Some(Work::Prepare),
        }
    }

    /// Returns the number of partitions created, partitions dropped, and rows deleted, added up. An
    /// error of one part does not keep the others from their work.
    async fn run_once(&mut self, work: Work) -> Result<u64, QueueError> {
        let control = &self.context.control;
        let created = async { prepare_history(&*control.get().await?, DAYS_AHEAD).await };
        let mut results = vec![("partitions created", answered(created).await)];
        if matches!(work, Work::All) {
            for part in &PARTS {
                results.push((part.rows, self.prune(part).await));
            }
            // Comes last: no task can complete while a partition is dropped.
            results.push(("partitions dropped", self.drop_partitions().await));
        }
        let (mut done, mut failed, mut total) = (Vec::new(), None, 0);
        for (what, result) in results {
            match result {
                Ok(0) => {}
                Ok(count) => {
                    done.push(format!("{what}: {count}"));
                    total += u64::from(count.unsigned_abs());
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if !done.is_empty() {
            tracing::info!(done = done.join(", "), "history maintained");
        }
        failed.map_or(Ok(total), Err)
    }
}
