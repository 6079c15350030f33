//! Fires schedules as soon as they are due, continues backfills, marks late runs, and cancels runs
//! whose timeout has passed. The poll tells which of these there is to do, so that an idle fleet
//! sends no further statement.

use std::sync::Arc;
use std::time::Instant;

use fleet_decisions::scheduler_work::{DueWork, SchedulerWork};
use queue::{QueueError, RunId};
use schedule::backfill::{self, AdvanceSummary};
use schedule::tick::{TickSummary, enforce_deadlines, next_tick_in, tick_due, tick_next};
use schedule::zone_data::zone_data;
use tokio::sync::watch;

use crate::context::Context;
use crate::control::{answered, until};
use crate::duties::duty::{Duty, StopAt};
use crate::duties::trigger_evaluator::TriggerEvaluator;
use crate::wakeup::{ItemSender, Wakeup};

/// Ticks schedules. Any number of workers tick concurrently.
pub(crate) struct Scheduler {
    context: Arc<Context>,
    triggers: TriggerEvaluator,
    /// Set by the poller.
    polled: watch::Receiver<SchedulerWork>,
    /// Woken when a run has ended in this process.
    run_ended: Wakeup,
    /// Runs to advance, because their timeout has passed.
    timed_out: ItemSender<RunId>,
    work: SchedulerWork,
    /// Whether a backfill may continue when a run ends.
    awaits_runs: bool,
}

impl Scheduler {
    pub(crate) fn new(
        context: Arc<Context>,
        triggers: TriggerEvaluator,
        polled: watch::Receiver<SchedulerWork>,
        (run_ended, timed_out): (Wakeup, ItemSender<RunId>),
    ) -> Self {
        tracing::info!("time zones of schedules: {}", zone_data().describe());
        let work = SchedulerWork::default();
        Self { context, triggers, polled, run_ended, timed_out, work, awaits_runs: false }
    }

    async fn tick(&self) -> Result<TickSummary, QueueError> {
        let mut client = self.context.control.get().await?;
        let ticked = tick_due(&mut client).await?;
        if ticked.fired > 0 {
            self.context.claimer.notify();
        }
        Ok(ticked)
    }

    /// Ticks the due schedules one by one.
    async fn tick_each(&self) -> Result<TickSummary, QueueError> {
        let mut all = TickSummary::default();
        while !all.is_full() {
            let ticked = answered(async {
                let mut client = self.context.control.get().await?;
                let ticked = tick_next(&mut client).await?;
                if ticked.fired > 0 {
                    self.context.claimer.notify();
                }
                Ok(ticked)
            });
            match ticked.await {
                Ok(ticked) if ticked.taken == 0 => break,
                Ok(ticked) => all.add(ticked),
                // What is committed counts: it contains probes that nobody else runs.
                Err(error) if all.taken > 0 => {
                    tracing::warn!(%error, "could not tick all due schedules");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    async fn advance_backfills(&self) -> Result<AdvanceSummary, QueueError> {
        let mut client = self.context.control.get().await?;
        let advanced = backfill::advance(&mut client).await?;
        if advanced.fired > 0 {
            self.context.claimer.notify();
            tracing::debug!(fired = advanced.fired, "advanced backfills");
        }
        Ok(advanced)
    }

    /// Ticks all due schedules, and returns the number of fires.
    async fn tick_all(&mut self) -> Result<u64, QueueError> {
        let mut fired = 0;
        loop {
            let (ticked, full) = match answered(self.tick()).await {
                // One of the schedules may need too long, or raise an error that the schema's functions
                // do not catch. The others must not wait for it. The next tick continues, after the
                // other work of this duty.
                Err(error) if error.sqlstate().is_some() => {
                    tracing::debug!(%error, "ticking the due schedules one by one");
                    (self.tick_each().await?, false)
                }
                ticked => {
                    let ticked = ticked?;
                    let full = ticked.is_full();
                    (ticked, full)
                }
            };
            fired += ticked.fired;
            self.record(&ticked);
            for request in ticked.probes {
                self.triggers.spawn_evaluation(request);
            }
            if !full {
                break;
            }
        }
        self.context.metrics.schedules.nothing_due();
        let control = &self.context.control;
        let next = answered(async { next_tick_in(&*control.get().await?).await }).await?;
        self.work.ticked(next, Instant::now(), &mut rand::rng());
        Ok(fired)
    }

    /// Continues the backfills, and returns the number of fires.
    async fn continue_backfills(&mut self) -> Result<u64, QueueError> {
        let advanced = answered(self.advance_backfills()).await?;
        self.awaits_runs = advanced.in_progress;
        if let Some(error) = advanced.failed {
            return Err(error);
        }
        self.work.backfills = false;
        Ok(advanced.fired)
    }

    /// Marks late runs, and cancels runs whose timeout has passed.
    async fn enforce_deadlines(&mut self) -> Result<(), QueueError> {
        let control = &self.context.control;
        let missed = answered(async { enforce_deadlines(&*control.get().await?).await }).await?;
        if missed.late > 0 {
            tracing::warn!(late = missed.late, "runs have missed their deadlines");
        }
        for run in &missed.timed_out {
            tracing::warn!(%run, "run timed out");
        }
        self.timed_out.add(missed.timed_out);
        // The next poll finds the next deadline, and a run that another session has locked.
        self.work.deadline_at = None;
        Ok(())
    }

    fn record(&self, ticked: &TickSummary) {
        self.context.metrics.schedules.record_pass(ticked);
        let errors = self.context.control.errors();
        if ticked.postponed == 0 {
            errors.ends("postponed schedules");
        } else if errors.begins("postponed schedules") {
            tracing::warn!(
                schedules = ticked.postponed,
                "schedules cannot fire now and will be tried again: pgmill status"
            );
        }
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
    type Cause = DueWork;

    async fn next(&mut self) -> Option<DueWork> {
        loop {
            tokio::select! {
                changed = self.polled.changed() => {
                    changed.ok()?;
                    self.work = *self.polled.borrow_and_update();
                }
                () = until(self.work.next_at()) => {}
                () = self.run_ended.woken(), if self.awaits_runs => {
                    self.work.backfills = true;
                }
            }
            let due = self.work.due(Instant::now());
            if due.is_none_or(|due| !due.tick) {
                self.context.metrics.schedules.nothing_due();
            }
            if due.is_some() {
                return due;
            }
        }
    }

    /// Does what is due, and returns the number of fires. An error of one kind of work does not keep the
    /// others from being done.
    async fn run_once(&mut self, due: DueWork) -> Result<u64, QueueError> {
        let ticked = if due.tick { self.tick_all().await } else { Ok(0) };
        let continued = if due.backfills { self.continue_backfills().await } else { Ok(0) };
        let enforced = if due.deadlines { self.enforce_deadlines().await } else { Ok(()) };
        let fired = ticked? + continued?;
        enforced.map(|()| fired)
    }
}
