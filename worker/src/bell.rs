//! What wakes claimer, granter, advancer and beat, from inside the process and from outside.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use queue::limit::LimitId;
use queue::run::RunId;
use tokio::sync::{Notify, watch};

/// What somebody has to look after, and the ring that tells of it.
pub(crate) struct Wanted<T> {
    notify: Notify,
    items: Mutex<Vec<T>>,
}

impl<T> Default for Wanted<T> {
    fn default() -> Self {
        Self { notify: Notify::new(), items: Mutex::default() }
    }
}

impl<T: Ord> Wanted<T> {
    /// Asks for these to be looked after.
    pub(crate) fn add(&self, items: impl IntoIterator<Item = T>) {
        let mut wanted = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let before = wanted.len();
        wanted.extend(items);
        if wanted.len() > before {
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
    pub(crate) async fn wanted(&self) {
        self.notify.notified().await;
    }
}

/// One per process. A ring while nobody waits is kept.
pub(crate) struct Bell {
    /// Limits whose tasks have ended here: others may wait for their permits.
    pub(crate) released: Wanted<LimitId>,
    /// Runs of which a task has ended here, or that a look has found.
    pub(crate) runs: Wanted<RunId>,
    work: Notify,
    beat: Notify,
    waiting: Notify,
    reconcile: AtomicBool,
    sweep: AtomicBool,
    found: AtomicBool,
    draining: AtomicBool,
    reserved: AtomicU32,
    idle: watch::Sender<bool>,
    claimer: watch::Sender<bool>,
}

impl Default for Bell {
    fn default() -> Self {
        Self {
            released: Wanted::default(),
            runs: Wanted::default(),
            work: Notify::new(),
            beat: Notify::new(),
            waiting: Notify::new(),
            reconcile: AtomicBool::new(false),
            sweep: AtomicBool::new(false),
            found: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            reserved: AtomicU32::new(0),
            idle: watch::Sender::new(false),
            claimer: watch::Sender::new(false),
        }
    }
}

impl Bell {
    /// There may be new tasks.
    pub(crate) fn ring(&self) {
        self.work.notify_one();
        self.waiting.notify_one();
    }

    /// Resolves when there may be new tasks that wait for permits.
    pub(crate) async fn permits_wanted(&self) {
        self.waiting.notified().await;
    }

    /// There may be tasks with ids that were passed already.
    pub(crate) fn sweep(&self) {
        self.sweep.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Whether somebody asked for a sweep that has not been taken up.
    pub(crate) fn sweep_is_wanted(&self) -> bool {
        self.sweep.load(Ordering::Relaxed)
    }

    /// As [`Bell::sweep_is_wanted`], and takes it up.
    pub(crate) fn take_sweep(&self) -> bool {
        self.sweep.swap(false, Ordering::Relaxed)
    }

    /// A claim was found lost: the queue may still have it as this worker's.
    pub(crate) fn reconcile(&self) {
        self.reconcile.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Whether a claim was found lost since the last call.
    pub(crate) fn take_reconcile(&self) -> bool {
        self.reconcile.swap(false, Ordering::Relaxed)
    }

    /// Resolves when it rings.
    pub(crate) async fn rung(&self) {
        self.work.notified().await;
    }

    /// A claim has found tasks.
    pub(crate) fn note_found(&self) {
        self.found.store(true, Ordering::Relaxed);
    }

    /// Whether a claim has found tasks since the last call.
    pub(crate) fn take_found(&self) -> bool {
        self.found.swap(false, Ordering::Relaxed)
    }

    /// The fleet has something to say: beat now.
    pub(crate) fn call_beat(&self) {
        self.beat.notify_one();
    }

    /// Resolves when a beat is called for.
    pub(crate) async fn beat_called(&self) {
        self.beat.notified().await;
    }

    /// An operator told this worker to claim no more, or to go on.
    pub(crate) fn set_draining(&self, draining: bool) {
        if self.draining.swap(draining, Ordering::Relaxed) != draining {
            tracing::info!(draining, "told by an operator");
            self.ring();
        }
    }

    /// Whether claims are off.
    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// So many readers, from the first on, serve reserved tasks only.
    pub(crate) fn set_reserved(&self, readers: u32) {
        if self.reserved.swap(readers, Ordering::Relaxed) != readers {
            tracing::info!(readers, "readers kept for reserved tasks");
            self.ring();
        }
    }

    /// See [`Bell::set_reserved`].
    pub(crate) fn reserved(&self) -> u32 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// The claimer has its connection, or has lost it.
    pub(crate) fn set_claimer(&self, connected: bool) {
        self.claimer.send_replace(connected);
    }

    /// Resolves while the claimer has its connection. Readers connect after it: with too few
    /// connections to be had, they would take them all and wait for a claimer that gets none.
    pub(crate) async fn claimer_connected(&self) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.claimer.subscribe().wait_for(|connected| *connected).await;
    }

    /// After a claim: `true` if a whole sweep found nothing, or would find nothing for one that drains,
    /// and nothing is running. Each call is seen by the watchers.
    pub(crate) fn note_idle(&self, idle: bool) {
        self.idle.send_replace(idle);
    }

    /// See [`Bell::note_idle`].
    pub(crate) fn is_idle(&self) -> bool {
        *self.idle.borrow()
    }

    /// To be told when the process becomes idle.
    pub(crate) fn watch_idle(&self) -> watch::Receiver<bool> {
        self.idle.subscribe()
    }
}
