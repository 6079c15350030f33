//! The claims that this process holds, and how each is told to stop.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue::claim::SessionIdentity;
use queue::limit::LimitId;
use queue::run::RunId;
use queue::{Claim, TaskId, Token};
use tokio::sync::watch;

use crate::wakeup::Wakeup;

/// Why a running statement has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopSignal {
    /// Somebody asked to cancel the task.
    Cancelled,
    /// The claim is no longer this worker's.
    Lost,
    /// The process ends and its grace is over.
    Shutdown,
}

struct InFlightTask {
    token: Token,
    /// Which reader has it; several with shared commits.
    session: SessionIdentity,
    stop: watch::Sender<Option<StopSignal>>,
}

impl InFlightTask {
    /// The first reason stands.
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

/// Shared by claimer, readers and beat.
#[derive(Clone)]
pub(crate) struct InFlight {
    tasks: Arc<Mutex<HashMap<TaskId, InFlightTask>>>,
    wakeup: Arc<Wakeup>,
}

/// A claim on its way through a reader; it is held until this is dropped.
pub(crate) struct ClaimedTask {
    pub(crate) claim: Claim,
    /// Budget of its queue's shared commits; `None`: it commits alone.
    pub(crate) shared_commit_budget: Option<Duration>,
    pub(crate) stop: watch::Receiver<Option<StopSignal>>,
    pub(crate) in_flight_guard: InFlightGuard,
}

/// Takes the task out when dropped, lets its permits be handed on and its run be advanced.
pub(crate) struct InFlightGuard {
    in_flight: InFlight,
    id: TaskId,
    token: Token,
    limits: Vec<LimitId>,
    run: Option<RunId>,
}

impl InFlight {
    /// Nothing.
    pub(crate) fn new(wakeup: Arc<Wakeup>) -> Self {
        Self { tasks: Arc::default(), wakeup }
    }

    /// Registers a claim for the reader with this session, before anybody can be told of it.
    pub(crate) fn register(
        &self,
        claim: Claim,
        session: SessionIdentity,
        shared_commit_budget: Option<Duration>,
    ) -> ClaimedTask {
        let (id, token) = (claim.id(), claim.token());
        let (sender, stop) = watch::channel(None);
        self.lock().insert(id, InFlightTask { token, session, stop: sender });
        let (limits, run) = (claim.limits().to_vec(), claim.run());
        let in_flight_guard = InFlightGuard { in_flight: self.clone(), id, token, limits, run };
        ClaimedTask { claim, shared_commit_budget, stop, in_flight_guard }
    }

    /// What is held now.
    pub(crate) fn claims(&self) -> Vec<(TaskId, Token)> {
        self.lock().iter().map(|(id, task)| (*id, task.token)).collect()
    }

    /// How many are held now.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// How many readers hold something.
    pub(crate) fn busy_readers(&self) -> usize {
        self.lock().values().map(|task| task.session).collect::<HashSet<_>>().len()
    }

    /// Somebody asked to cancel the task, whichever claim of it is held.
    pub(crate) fn cancel(&self, id: TaskId) {
        if let Some(task) = self.lock().get(&id) {
            task.send_stop(StopSignal::Cancelled);
        }
    }

    /// The claim is no longer this worker's.
    pub(crate) fn mark_lost(&self, token: Token) {
        if let Some(task) = self.lock().values().find(|task| task.token == token) {
            task.send_stop(StopSignal::Lost);
        }
    }

    /// The process ends.
    pub(crate) fn stop_all(&self) {
        for task in self.lock().values() {
            task.send_stop(StopSignal::Shutdown);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, InFlightTask>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut tasks = self.in_flight.lock();
        // The same task may have come back under a new token already.
        if tasks.get(&self.id).is_some_and(|task| task.token == self.token) {
            tasks.remove(&self.id);
        }
        self.in_flight.wakeup.released_limits.add(self.limits.drain(..));
        self.in_flight.wakeup.runs_to_advance.add(self.run);
    }
}
