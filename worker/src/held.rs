//! The claims that this process holds, and how each is told to stop.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue::claim::SessionIdentity;
use queue::limit::LimitId;
use queue::run::RunId;
use queue::{Claim, TaskId, Token};
use tokio::sync::watch;

use crate::bell::Bell;

/// Why a running statement has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Somebody asked to cancel the task.
    Cancelled,
    /// The claim is no longer this worker's.
    Lost,
    /// The process ends and its grace is over.
    Shutdown,
}

struct Entry {
    token: Token,
    /// Which reader has it; several with shared commits.
    session: SessionIdentity,
    stop: watch::Sender<Option<Stop>>,
}

impl Entry {
    /// The first reason stands.
    fn tell(&self, reason: Stop) {
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
pub(crate) struct Held {
    entries: Arc<Mutex<HashMap<TaskId, Entry>>>,
    bell: Arc<Bell>,
}

/// A claim on its way through a reader; it is held until this is dropped.
pub(crate) struct Work {
    pub(crate) claim: Claim,
    /// Budget of its queue's shared commits; `None`: it commits alone.
    pub(crate) shared: Option<Duration>,
    pub(crate) stop: watch::Receiver<Option<Stop>>,
    pub(crate) holding: Holding,
}

/// Takes the entry out when dropped, lets its permits be handed on and its run be advanced.
pub(crate) struct Holding {
    held: Held,
    id: TaskId,
    token: Token,
    limits: Vec<LimitId>,
    run: Option<RunId>,
}

impl Held {
    /// Nothing.
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Self { entries: Arc::default(), bell }
    }

    /// Registers a claim for the reader with this session, before anybody can be told of it.
    pub(crate) fn hold(
        &self,
        claim: Claim,
        session: SessionIdentity,
        shared: Option<Duration>,
    ) -> Work {
        let (id, token) = (claim.id(), claim.token());
        let (sender, stop) = watch::channel(None);
        self.lock().insert(id, Entry { token, session, stop: sender });
        let (limits, run) = (claim.limits().to_vec(), claim.run());
        let holding = Holding { held: self.clone(), id, token, limits, run };
        Work { claim, shared, stop, holding }
    }

    /// What is held now.
    pub(crate) fn list(&self) -> Vec<(TaskId, Token)> {
        self.lock().iter().map(|(id, entry)| (*id, entry.token)).collect()
    }

    /// How many are held now.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// How many readers hold something.
    pub(crate) fn busy_readers(&self) -> usize {
        self.lock().values().map(|entry| entry.session).collect::<HashSet<_>>().len()
    }

    /// Somebody asked to cancel the task, whichever claim of it is held.
    pub(crate) fn cancel(&self, id: TaskId) {
        if let Some(entry) = self.lock().get(&id) {
            entry.tell(Stop::Cancelled);
        }
    }

    /// The claim is no longer this worker's.
    pub(crate) fn lose(&self, token: Token) {
        if let Some(entry) = self.lock().values().find(|entry| entry.token == token) {
            entry.tell(Stop::Lost);
        }
    }

    /// The process ends.
    pub(crate) fn shut_down(&self) {
        for entry in self.lock().values() {
            entry.tell(Stop::Shutdown);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut entries = self.held.lock();
        // The same task may have come back under a new token already.
        if entries.get(&self.id).is_some_and(|entry| entry.token == self.token) {
            entries.remove(&self.id);
        }
        self.held.bell.released.add(self.limits.drain(..));
        self.held.bell.runs.add(self.run);
    }
}
