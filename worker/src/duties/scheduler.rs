//! Fires schedules at the instant they are due, and evaluates the probes of triggered schedules.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use queue::QueueError;
use queue::enqueue::notify;
use rand::RngExt;
use schedule::probe;
use schedule::tick::{ProbeRequest, ScheduleId, TickSummary, next_tick_in, tick_due, tick_trigger};
use tokio::sync::{Semaphore, watch};

use crate::attempt::session::Session;
use crate::control::{Backoff, Control, answered, until};
use crate::shutdown::Shutdown;
use crate::startup::login::Login;
use crate::telemetry::metrics::Metrics;
use crate::wakeup::Wakeup;

/// Maximum number of concurrent probes of one worker: a hanging probe delays others only if this
/// many hang.
const MAX_PROBES: usize = 8;

/// Ticks schedules.
#[derive(Clone)]
pub(crate) struct Scheduler {
    control: Control,
    /// Login of probes, which are user SQL like tasks.
    probes: Login,
    probe_slots: Arc<Semaphore>,
    /// Schedules with a probe running or waiting for a slot: hanging probes do not accumulate.
    in_progress: Arc<Mutex<HashSet<ScheduleId>>>,
    wakeup: Arc<Wakeup>,
    metrics: Metrics,
    shutdown: Shutdown,
}

impl Scheduler {
    /// Creates a scheduler; `probes` is the login of tasks without a profile.
    pub(crate) fn new(
        control: Control,
        probes: Login,
        wakeup: Arc<Wakeup>,
        metrics: Metrics,
        shutdown: Shutdown,
    ) -> Self {
        let probe_slots = Arc::new(Semaphore::new(MAX_PROBES));
        let in_progress = Arc::default();
        Self { control, probes, probe_slots, in_progress, wakeup, metrics, shutdown }
    }

    /// Runs until the worker drains. Any number of workers tick concurrently.
    pub(crate) async fn run(self, mut next_tick: watch::Receiver<Option<Instant>>) {
        let mut backoff = Backoff::default();
        let mut tick_at = None;
        loop {
            tokio::select! {
                () = self.shutdown.drain.cancelled() => return,
                changed = next_tick.changed() => match changed {
                    Ok(()) => {
                        tick_at = *next_tick.borrow_and_update();
                        if tick_at.is_none_or(|at| at > Instant::now()) {
                            self.metrics.schedules.nothing_due();
                        }
                    }
                    Err(_) => return,
                },
                () = until(tick_at) => match self.tick().await {
                    Ok(next) => {
                        backoff = Backoff::default();
                        tick_at = next;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "schedule tick failed");
                        tick_at = Some(Instant::now() + backoff.step());
                    }
                },
            }
        }
    }

    /// Ticks all due schedules; returns when the next schedule is due.
    async fn tick(&self) -> Result<Option<Instant>, QueueError> {
        loop {
            let done = answered(async {
                let mut client = self.control.get().await?;
                let done = tick_due(&mut client).await?;
                if done.fired > 0 {
                    self.wakeup.notify();
                    notify(&*client).await?;
                }
                Ok(done)
            });
            let done = done.await?;
            let full = done.is_full();
            self.record_pass(&done);
            for measure in done.probes {
                self.spawn_evaluation(measure);
            }
            if !full {
                break;
            }
        }
        self.metrics.schedules.nothing_due();
        // A schedule locked by another worker remains due until that worker commits.
        let least = Duration::from_millis(rand::rng().random_range(20..60));
        let next = answered(async { next_tick_in(&*self.control.get().await?).await }).await?;
        Ok(next.map(|wait| Instant::now() + wait.max(least)))
    }

    fn record_pass(&self, done: &TickSummary) {
        self.metrics.schedules.record_pass(done);
        if done.fired + done.skipped + done.missed + done.errors > 0 {
            tracing::debug!(
                fired = done.fired,
                skipped = done.skipped,
                missed = done.missed,
                errors = done.errors,
                "ticked"
            );
        }
    }

    /// Starts the evaluation of a schedule, unless the previous one is in progress; the next tick
    /// repeats it.
    fn spawn_evaluation(&self, measure: ProbeRequest) {
        let id = measure.id;
        if !self.in_progress().insert(id) {
            return;
        }
        let it = self.clone();
        self.metrics.tracker.spawn(async move {
            it.evaluate(measure).await;
            it.in_progress().remove(&id);
        });
    }

    fn in_progress(&self) -> MutexGuard<'_, HashSet<ScheduleId>> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the probe of a schedule and evaluates its trigger.
    async fn evaluate(&self, measure: ProbeRequest) {
        let Ok(_slot) = self.probe_slots.acquire().await else { return };
        let begun = Instant::now();
        let found = tokio::select! {
            () = self.shutdown.drain.cancelled() => return,
            found = self.measure(&measure) => found,
        };
        self.metrics.schedules.record_probe(begun.elapsed(), found.is_ok());
        if let Err(error) = &found {
            tracing::debug!(schedule = measure.name, error, "trigger probe failed");
        }
        match answered(self.record_measurement(&measure, found)).await {
            Ok((fired, skipped)) => self.metrics.schedules.record_evaluation(fired, skipped),
            Err(error) => {
                tracing::warn!(%error, schedule = measure.name, "evaluating a trigger failed");
            }
        }
    }

    async fn measure(&self, measure: &ProbeRequest) -> Result<(i64, Option<f64>), String> {
        let registration = self.control.registration();
        let session = Session::open(&self.probes, registration, &self.metrics.tracker)
            .await
            .map_err(|error| error.to_string())?;
        probe::run(session.client(), &measure.query, measure.timeout).await
    }

    async fn record_measurement(
        &self,
        measure: &ProbeRequest,
        found: Result<(i64, Option<f64>), String>,
    ) -> Result<(bool, bool), QueueError> {
        let client = self.control.get().await?;
        let evaluated = tick_trigger(&*client, measure, found).await?;
        if evaluated.0 {
            self.wakeup.notify();
            notify(&*client).await?;
        }
        Ok(evaluated)
    }
}
