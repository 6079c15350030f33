//! Evaluates triggered schedules: runs their probes, which are user SQL, in sessions of their own.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use queue::QueueError;
use schedule::probe;
use schedule::tick::{ProbeRequest, ScheduleId, tick_trigger};
use tokio::sync::Semaphore;

use crate::attempt::session::Session;
use crate::context::Context;
use crate::control::answered;
use crate::login::Login;

/// Maximum number of probes that one worker runs at the same time. A hanging probe delays others
/// only if this many probes hang.
const MAX_PROBES: usize = 8;

/// Number of pending rows, and the age of the oldest one in seconds; or the error of the probe.
type Measurement = Result<(i64, Option<f64>), String>;

/// Evaluates triggers. Clones share the limit on concurrent probes.
#[derive(Clone)]
pub(crate) struct TriggerEvaluator {
    context: Arc<Context>,
    /// Login of probes, which are user SQL like tasks.
    login: Login,
    slots: Arc<Semaphore>,
    /// Schedules whose probe is running or waits for a slot. They are not probed again meanwhile,
    /// so that hanging probes do not pile up.
    in_progress: Arc<Mutex<HashSet<ScheduleId>>>,
}

impl TriggerEvaluator {
    /// Creates an evaluator; `login` is the login of tasks without a profile.
    pub(crate) fn new(context: Arc<Context>, login: Login) -> Self {
        let slots = Arc::new(Semaphore::new(MAX_PROBES));
        Self { context, login, slots, in_progress: Arc::default() }
    }

    /// Starts the evaluation of a schedule. Does nothing while the previous evaluation is in
    /// progress; the next tick requests the evaluation again.
    pub(crate) fn spawn_evaluation(&self, request: ProbeRequest) {
        let id = request.id;
        if !self.in_progress().insert(id) {
            return;
        }
        let it = self.clone();
        self.context.tasks.spawn(async move {
            it.evaluate(request).await;
            it.in_progress().remove(&id);
        });
    }

    fn in_progress(&self) -> MutexGuard<'_, HashSet<ScheduleId>> {
        self.in_progress.lock()
    }

    /// Runs the probe of a schedule and evaluates its trigger.
    async fn evaluate(&self, request: ProbeRequest) {
        let Ok(_slot) = self.slots.acquire().await else { return };
        let schedules = &self.context.metrics.schedules;
        let begun = Instant::now();
        let measured = tokio::select! {
            () = self.context.shutdown.drain.cancelled() => return,
            measured = self.measure(&request) => measured,
        };
        schedules.record_probe(begun.elapsed(), measured.is_ok());
        if let Err(error) = &measured {
            tracing::debug!(schedule = request.name, error, "trigger probe failed");
        }
        let errors = self.context.control.errors();
        let operation = format!("trigger of {}", request.name);
        match answered(self.record(&request, measured)).await {
            Ok((fired, skipped)) => {
                errors.ends(&operation);
                schedules.record_evaluation(fired, skipped);
            }
            Err(error) if errors.begins(&operation) => {
                tracing::warn!(%error, schedule = request.name, "evaluating a trigger failed");
            }
            Err(_) => {}
        }
    }

    async fn measure(&self, request: &ProbeRequest) -> Measurement {
        let session = Session::open(&self.login, &self.context.tasks)
            .await
            .map_err(|error| error.to_string())?;
        probe::run(session.client(), &request.query, request.timeout).await
    }

    /// Applies the measurement. Returns whether a run was fired, and whether a fire was skipped.
    async fn record(
        &self,
        request: &ProbeRequest,
        measured: Measurement,
    ) -> Result<(bool, bool), QueueError> {
        let client = self.context.control.get().await?;
        let evaluated = tick_trigger(&*client, request, measured).await?;
        if evaluated.0 {
            self.context.claimer.notify();
        }
        Ok(evaluated)
    }
}
