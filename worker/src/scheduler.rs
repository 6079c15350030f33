//! Ticks: fires schedules at the instant they are due, and looks at what triggers others.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use queue::QueueError;
use queue::enqueue::ring;
use rand::RngExt;
use schedule::probe;
use schedule::tick::{Measure, Pass, ScheduleId, next_tick_in, pass, tick_trigger};
use tokio::sync::{Semaphore, watch};

use crate::bell::Bell;
use crate::control::{Backoff, Control, answered, until};
use crate::login::Login;
use crate::metrics::Metrics;
use crate::session::Session;
use crate::shutdown::Shutdown;

/// Probes that one worker runs at once: one that hangs keeps the others waiting only if there are
/// as many of its kind.
const PROBES: usize = 8;

/// The scheduler and all that it is given.
#[derive(Clone)]
pub(crate) struct Scheduler {
    control: Control,
    /// Where probes run: they are somebody's SQL, as tasks are.
    probes: Login,
    turns: Arc<Semaphore>,
    /// Being measured, or waiting for a turn: probes that hang do not pile up.
    measuring: Arc<Mutex<HashSet<ScheduleId>>>,
    bell: Arc<Bell>,
    metrics: Metrics,
    shutdown: Shutdown,
}

impl Scheduler {
    /// Probes run under the login of the tasks.
    pub(crate) fn new(
        control: Control,
        probes: Login,
        bell: Arc<Bell>,
        metrics: Metrics,
        shutdown: Shutdown,
    ) -> Self {
        let turns = Arc::new(Semaphore::new(PROBES));
        let measuring = Arc::default();
        Self { control, probes, turns, measuring, bell, metrics, shutdown }
    }

    /// Runs until the worker drains. Any number of workers tick side by side.
    pub(crate) async fn run(self, mut next_tick: watch::Receiver<Option<Instant>>) {
        let mut backoff = Backoff::default();
        let mut tick_at = None;
        loop {
            tokio::select! {
                () = self.shutdown.drain.cancelled() => return,
                looked = next_tick.changed() => match looked {
                    Ok(()) => {
                        tick_at = *next_tick.borrow_and_update();
                        if tick_at.is_none_or(|at| at > Instant::now()) {
                            self.metrics.ticks.nothing_due();
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
                        tracing::warn!(%error, "the tick of schedules failed");
                        tick_at = Some(Instant::now() + backoff.step());
                    }
                },
            }
        }
    }

    /// Does what is due; returns when something is again.
    async fn tick(&self) -> Result<Option<Instant>, QueueError> {
        loop {
            let done = answered(async {
                let mut client = self.control.get().await?;
                let done = pass(&mut client).await?;
                if done.fired > 0 {
                    self.bell.ring();
                    ring(&*client).await?;
                }
                Ok(done)
            });
            let done = done.await?;
            let full = done.is_full();
            self.count(&done);
            for measure in done.measures {
                self.look_at(measure);
            }
            if !full {
                break;
            }
        }
        self.metrics.ticks.nothing_due();
        // What another worker has locked looks due until it commits.
        let least = Duration::from_millis(rand::rng().random_range(20..60));
        let next = answered(async { next_tick_in(&*self.control.get().await?).await }).await?;
        Ok(next.map(|wait| Instant::now() + wait.max(least)))
    }

    fn count(&self, done: &Pass) {
        self.metrics.ticks.passed(done);
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

    /// Has a schedule measured and judged, unless the last look at it is not over: the next one comes.
    fn look_at(&self, measure: Measure) {
        let id = measure.id;
        if !self.measuring().insert(id) {
            return;
        }
        let it = self.clone();
        self.metrics.tracker.spawn(async move {
            it.judge(measure).await;
            it.measuring().remove(&id);
        });
    }

    fn measuring(&self) -> MutexGuard<'_, HashSet<ScheduleId>> {
        self.measuring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures what triggers a schedule, and has it judged.
    async fn judge(&self, measure: Measure) {
        let Ok(_turn) = self.turns.acquire().await else { return };
        let begun = Instant::now();
        let found = tokio::select! {
            () = self.shutdown.drain.cancelled() => return,
            found = self.measure(&measure) => found,
        };
        self.metrics.ticks.probed(begun.elapsed(), found.is_ok());
        if let Err(error) = &found {
            tracing::debug!(schedule = measure.name, error, "the probe failed");
        }
        match answered(self.tell(&measure, found)).await {
            Ok((fired, skipped)) => self.metrics.ticks.judged(fired, skipped),
            Err(error) => {
                tracing::warn!(%error, schedule = measure.name, "judging a schedule failed");
            }
        }
    }

    async fn measure(&self, measure: &Measure) -> Result<(i64, Option<f64>), String> {
        let registration = self.control.registration();
        let session = Session::open(&self.probes, registration, &self.metrics.tracker)
            .await
            .map_err(|error| error.to_string())?;
        probe::measure(session.client(), &measure.query, measure.timeout).await
    }

    async fn tell(
        &self,
        measure: &Measure,
        found: Result<(i64, Option<f64>), String>,
    ) -> Result<(bool, bool), QueueError> {
        let client = self.control.get().await?;
        let judged = tick_trigger(&*client, measure, found).await?;
        if judged.0 {
            self.bell.ring();
            ring(&*client).await?;
        }
        Ok(judged)
    }
}
