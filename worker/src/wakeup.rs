//! What wakes claimer, granter, advancer and beat, from inside the process and from outside.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use queue::limit::LimitId;
use queue::run::RunId;
use tokio::sync::{Notify, watch};

/// What somebody has to look after, and the ring that tells of it.
pub(crate) struct PendingSet<T> {
    notify: Notify,
    items: Mutex<Vec<T>>,
}

impl<T> Default for PendingSet<T> {
    fn default() -> Self {
        Self { notify: Notify::new(), items: Mutex::default() }
    }
}

impl<T: Ord> PendingSet<T> {
    /// Asks for these to be looked after.
    pub(crate) fn add(&self, items: impl IntoIterator<Item = T>) {
        let mut pending = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let before = pending.len();
        pending.extend(items);
        if pending.len() > before {
            self.notify.notify_one();
        }
    }

    /// What was asked for since the last call, each once.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut items =
            std::mem::take(&mut *self.items.lock().unwrap_or_else(PoisonError::into_inner));
        items.sort_unstable();
        items.dedup();
        items
    }

    /// Resolves when something is asked for.
    pub(crate) async fn added(&self) {
        self.notify.notified().await;
    }
}

/// One per process. A ring while nobody waits is kept.
pub(crate) struct Wakeup {
    /// Limits whose tasks have ended here: others may wait for their permits.
    pub(crate) released_limits: PendingSet<LimitId>,
    /// Runs of which a task has ended here, or that a look has found.
    pub(crate) runs_to_advance: PendingSet<RunId>,
    claim_notify: Notify,
    heartbeat_notify: Notify,
    permit_notify: Notify,
    reconcile: AtomicBool,
    sweep_requested: AtomicBool,
    tasks_found: AtomicBool,
    draining: AtomicBool,
    reserved_readers: AtomicU32,
    idle: watch::Sender<bool>,
    claimer_connection: watch::Sender<bool>,
}

impl Default for Wakeup {
    fn default() -> Self {
        Self {
            released_limits: PendingSet::default(),
            runs_to_advance: PendingSet::default(),
            claim_notify: Notify::new(),
            heartbeat_notify: Notify::new(),
            permit_notify: Notify::new(),
            reconcile: AtomicBool::new(false),
            sweep_requested: AtomicBool::new(false),
            tasks_found: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            reserved_readers: AtomicU32::new(0),
            idle: watch::Sender::new(false),
            claimer_connection: watch::Sender::new(false),
        }
    }
}

impl Wakeup {
    /// There may be new tasks.
    pub(crate) fn notify(&self) {
        self.claim_notify.notify_one();
        self.permit_notify.notify_one();
    }

    /// Resolves when there may be new tasks that wait for permits.
    pub(crate) async fn permits_requested(&self) {
        self.permit_notify.notified().await;
    }

    /// There may be tasks with ids that were passed already.
    pub(crate) fn request_sweep(&self) {
        self.sweep_requested.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Whether somebody asked for a sweep that has not been taken up.
    pub(crate) fn sweep_requested(&self) -> bool {
        self.sweep_requested.load(Ordering::Relaxed)
    }

    /// As [`Wakeup::sweep_requested`], and takes it up.
    pub(crate) fn take_sweep_request(&self) -> bool {
        self.sweep_requested.swap(false, Ordering::Relaxed)
    }

    /// A claim was found lost: the queue may still have it as this worker's.
    pub(crate) fn reconcile(&self) {
        self.reconcile.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Whether a claim was found lost since the last call.
    pub(crate) fn take_reconcile(&self) -> bool {
        self.reconcile.swap(false, Ordering::Relaxed)
    }

    /// Resolves when it rings.
    pub(crate) async fn notified(&self) {
        self.claim_notify.notified().await;
    }

    /// A claim has found tasks.
    pub(crate) fn mark_tasks_found(&self) {
        self.tasks_found.store(true, Ordering::Relaxed);
    }

    /// Whether a claim has found tasks since the last call.
    pub(crate) fn take_tasks_found(&self) -> bool {
        self.tasks_found.swap(false, Ordering::Relaxed)
    }

    /// The fleet has something to say: beat now.
    pub(crate) fn request_heartbeat(&self) {
        self.heartbeat_notify.notify_one();
    }

    /// Resolves when a beat is called for.
    pub(crate) async fn heartbeat_requested(&self) {
        self.heartbeat_notify.notified().await;
    }

    /// An operator told this worker to claim no more, or to go on.
    pub(crate) fn set_draining(&self, draining: bool) {
        if self.draining.swap(draining, Ordering::Relaxed) != draining {
            tracing::info!(draining, "told by an operator");
            self.notify();
        }
    }

    /// Whether claims are off.
    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// So many readers, from the first on, serve reserved tasks only.
    pub(crate) fn set_reserved_readers(&self, readers: u32) {
        if self.reserved_readers.swap(readers, Ordering::Relaxed) != readers {
            tracing::info!(readers, "readers kept for reserved tasks");
            self.notify();
        }
    }

    /// See [`Wakeup::set_reserved_readers`].
    pub(crate) fn reserved_readers(&self) -> u32 {
        self.reserved_readers.load(Ordering::Relaxed)
    }

    /// The claimer has its connection, or has lost it.
    pub(crate) fn set_claimer_connected(&self, connected: bool) {
        self.claimer_connection.send_replace(connected);
    }

    /// Resolves while the claimer has its connection. Readers connect after it: with too few
    /// connections to be had, they would take them all and wait for a claimer that gets none.
    pub(crate) async fn wait_for_claimer(&self) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.claimer_connection.subscribe().wait_for(|connected| *connected).await;
    }

    /// After a claim: `true` if a whole sweep found nothing, or would find nothing for one that drains,
    /// and nothing is running. Each call is seen by the watchers.
    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.send_replace(idle);
    }

    /// See [`Wakeup::set_idle`].
    pub(crate) fn is_idle(&self) -> bool {
        *self.idle.borrow()
    }

    /// To be told when the process becomes idle.
    pub(crate) fn subscribe_idle(&self) -> watch::Receiver<bool> {
        self.idle.subscribe()
    }
}
