//! Registry of the claims that this process holds, with a stop signal for each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use queue::claim::SessionIdentity;
use queue::{Claim, LimitId, Mode, RunId, TaskId, Token, scan};
use tokio::sync::watch;

use crate::telemetry::traces::task_trace::TaskTrace;
use crate::wakeup::ItemSender;

/// Reason for stopping a running task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopSignal {
    /// Cancellation of the task was requested.
    Cancelled,
    /// The claim was lost.
    Lost,
    /// The process shuts down and the grace period has expired.
    Shutdown,
}

struct InFlightTask {
    token: Token,
    /// Session of the reader that has the task. With shared commits, several tasks have the same
    /// session.
    session: SessionIdentity,
    stop: watch::Sender<Option<StopSignal>>,
}

impl InFlightTask {
    /// Sends a stop signal; only the first one has an effect.
    fn send_stop(&self, reason: StopSignal) {
        self.stop.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(reason);
            }
            first
        });
    }
}

/// The claims in flight, shared by claimer, readers and heartbeat.
#[derive(Clone)]
pub(crate) struct InFlight {
    tasks: Arc<Mutex<HashMap<TaskId, InFlightTask>>>,
    /// Limits of tasks that have ended, for whose permits other tasks may wait.
    released_limits: ItemSender<LimitId>,
    /// Runs of tasks that have ended.
    ended_runs: ItemSender<RunId>,
}

/// A claimed task, registered as in flight until this is dropped.
pub(crate) struct ClaimedTask {
    pub(crate) claim: Arc<Claim>,
    /// Budget of shared commits of the queue; `None` if the task commits alone.
    pub(crate) shared_commit_budget: Option<Duration>,
    pub(crate) stop: watch::Receiver<Option<StopSignal>>,
    pub(crate) in_flight_guard: InFlightGuard,
    /// `None` if the task is not traced.
    pub(crate) trace: Option<Box<TaskTrace>>,
}

impl ClaimedTask {
    /// Returns whether the messages of the task may also carry other tasks. They may not if its claim
    /// has to be durable before it starts, or if it has effects that a savepoint does not undo; if it
    /// belongs in another database; if its parameters or its plan need round trips of their own; or if
    /// it does not start at all, because it was cancelled or its statement is refused.
    pub(crate) fn may_run_among_others(&self) -> bool {
        let claim = &self.claim;
        claim.mode() == Mode::Transaction
            && claim.is_loaded()
            && !claim.external()
            && !claim.explain()
            && claim.isolation().is_none()
            && claim.params().is_none()
            && claim.receipt().is_none()
            && self.stop.borrow().is_none()
            && scan::forbidden(claim.statement()).is_none()
    }
}

/// When dropped, removes the task from the registry, passes its permits on to other tasks, and
/// requests an advance of its run.
pub(crate) struct InFlightGuard {
    in_flight: InFlight,
    id: TaskId,
    token: Token,
    limits: Vec<LimitId>,
    run: Option<RunId>,
}

impl InFlight {
    /// Creates an empty registry.
    pub(crate) fn new(released_limits: ItemSender<LimitId>, ended_runs: ItemSender<RunId>) -> Self {
        Self { tasks: Arc::default(), released_limits, ended_runs }
    }

    /// Registers a claim for the reader with this session. This precedes any stop signal for the
    /// claim.
    pub(crate) fn register(
        &self,
        (claim, trace): (Claim, Option<Box<TaskTrace>>),
        session: SessionIdentity,
        shared_commit_budget: Option<Duration>,
    ) -> ClaimedTask {
        let (id, token) = (claim.id(), claim.token());
        let (sender, stop) = watch::channel(None);
        self.tasks.lock().insert(id, InFlightTask { token, session, stop: sender });
        let (limits, run) = (claim.limits().to_vec(), claim.run());
        let in_flight_guard = InFlightGuard { in_flight: self.clone(), id, token, limits, run };
        let claim = Arc::new(claim);
        ClaimedTask { claim, shared_commit_budget, stop, in_flight_guard, trace }
    }

    /// Returns the claims in flight.
    pub(crate) fn claims(&self) -> Vec<(TaskId, Token)> {
        self.tasks.lock().iter().map(|(id, task)| (*id, task.token)).collect()
    }

    /// Returns the number of claims in flight.
    pub(crate) fn count(&self) -> usize {
        self.tasks.lock().len()
    }

    /// Returns the number of readers with a claim in flight.
    pub(crate) fn busy_readers(&self) -> usize {
        self.tasks.lock().values().map(|task| task.session).collect::<HashSet<_>>().len()
    }

    /// Stops the task because of a cancel request. Does not compare tokens, because a request names
    /// the task but not the claim.
    pub(crate) fn cancel(&self, id: TaskId) {
        if let Some(task) = self.tasks.lock().get(&id) {
            task.send_stop(StopSignal::Cancelled);
        }
    }

    /// Stops the task because its claim was lost.
    pub(crate) fn mark_lost(&self, token: Token) {
        if let Some(task) = self.tasks.lock().values().find(|task| task.token == token) {
            task.send_stop(StopSignal::Lost);
        }
    }

    /// Stops all tasks for shutdown.
    pub(crate) fn stop_all(&self) {
        for task in self.tasks.lock().values() {
            task.send_stop(StopSignal::Shutdown);
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut tasks = self.in_flight.tasks.lock();
        // The same task may already be in flight again, with a new token.
        if tasks.get(&self.id).is_some_and(|task| task.token == self.token) {
            tasks.remove(&self.id);
        }
        self.in_flight.released_limits.add(self.limits.drain(..));
        self.in_flight.ended_runs.add(self.run);
    }
}
