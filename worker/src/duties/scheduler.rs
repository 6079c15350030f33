//! Fires schedules as soon as they are due, continues backfills, and marks late runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queue::QueueError;
use queue::enqueue::notify;
use rand::RngExt;
use schedule::backfill::{self, AdvanceSummary};
use schedule::tick::{TickSummary, mark_late_runs, next_tick_in, tick_due};
use schedule::zone_data::zone_data;
use tokio::sync::watch;

use crate::context::Context;
use crate::control::{answered, until};
use crate::duties::duty::{Duty, StopAt};
use crate::duties::trigger_evaluator::TriggerEvaluator;

/// Ticks schedules. Any number of workers tick concurrently.
pub(crate) struct Scheduler {
    context: Arc<Context>,
    triggers: TriggerEvaluator,
    /// Set by the poller: when the next schedule is due.
    next_tick: watch::Receiver<Option<Instant>>,
    tick_at: Option<Instant>,
    /// Whether a backfill may continue when a run ends.
    backfills: bool,
}

impl Scheduler {
    pub(crate) fn new(
        context: Arc<Context>,
        triggers: TriggerEvaluator,
        next_tick: watch::Receiver<Option<Instant>>,
    ) -> Self {
        tracing::info!("time zones of schedules: {}", zone_data().describe());
        Self { context, triggers, next_tick, tick_at: None, backfills: false }
    }

    async fn tick(&self) -> Result<TickSummary, QueueError> {
        let mut client = self.context.control.get().await?;
        let ticked = tick_due(&mut client).await?;
        if ticked.fired > 0 {
            self.context.wakeup.notify();
            notify(&*client).await?;
        }
        Ok(ticked)
    }

    async fn advance_backfills(&self) -> Result<AdvanceSummary, QueueError> {
        let mut client = self.context.control.get().await?;
        let advanced = backfill::advance(&mut client).await?;
        if advanced.fired > 0 {
            self.context.wakeup.notify();
            notify(&*client).await?;
            tracing::debug!(fired = advanced.fired, "advanced backfills");
        }
        Ok(advanced)
    }

    fn record(&self, ticked: &TickSummary) {
        self.context.metrics.schedules.record_pass(ticked);
        if ticked.fired + ticked.skipped + ticked.missed + ticked.errors > 0 {
            tracing::debug!(
                fired = ticked.fired,
                skipped = ticked.skipped,
                missed = ticked.missed,
                errors = ticked.errors,
                "ticked"
            );
        }
    }
}

impl Duty for Scheduler {
    const NAME: &'static str = "schedule";
    const STOPS: StopAt = StopAt::Drain;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        loop {
            tokio::select! {
                changed = self.next_tick.changed() => {
                    changed.ok()?;
                    self.tick_at = *self.next_tick.borrow_and_update();
                    if self.tick_at.is_none_or(|at| at > Instant::now()) {
                        self.context.metrics.schedules.nothing_due();
                    }
                }
                () = until(self.tick_at) => return Some(()),
                () = self.context.wakeup.run_ended(), if self.backfills => return Some(()),
            }
        }
    }

    /// Ticks all due schedules, continues the backfills, marks late runs, and returns the number of
    /// fires.
    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let mut fired = 0;
        loop {
            let ticked = answered(self.tick()).await?;
            let full = ticked.is_full();
            fired += ticked.fired;
            self.record(&ticked);
            for request in ticked.probes {
                self.triggers.spawn_evaluation(request);
            }
            if !full {
                break;
            }
        }
        let advanced = answered(self.advance_backfills()).await?;
        fired += advanced.fired;
        self.backfills = advanced.in_progress;
        let late = answered(async { mark_late_runs(&*self.context.control.get().await?).await });
        let late = late.await?;
        if late > 0 {
            tracing::warn!(late, "runs have missed their deadlines");
        }
        self.context.metrics.schedules.nothing_due();
        // A schedule that another worker has locked remains due until that worker commits.
        let min_wait = Duration::from_millis(rand::rng().random_range(20..60));
        let control = &self.context.control;
        let next = answered(async { next_tick_in(&*control.get().await?).await }).await?;
        self.tick_at = next.map(|wait| Instant::now() + wait.max(min_wait));
        Ok(fired)
    }
}
