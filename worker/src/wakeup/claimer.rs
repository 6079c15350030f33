//! The channel to the claimer: requests of other parts, and what these see of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Notify, watch};

use crate::wakeup::Waker;

/// Returns the handle and the receiving end. `permits` wakes the permit granter: what may have made
/// tasks pending may have made tasks wait for permits, too.
pub(crate) fn claimer(permits: Waker) -> (ClaimerHandle, ClaimerWakeup) {
    let requests = Arc::<Requests>::default();
    let (idle_sender, idle) = watch::channel(false);
    let (connected_sender, connected) = watch::channel(false);
    let handle = ClaimerHandle {
        requests: Arc::clone(&requests),
        permits: permits.clone(),
        idle,
        connected,
    };
    let wakeup =
        ClaimerWakeup { requests, permits, idle: idle_sender, connected: connected_sender };
    (handle, wakeup)
}

/// What both ends share.
#[derive(Default)]
struct Requests {
    notify: Notify,
    reconcile: AtomicBool,
    sweep: AtomicBool,
    claims_with_tasks: AtomicU64,
}

/// Wakes the claimer, and shows its state.
#[derive(Clone)]
pub(crate) struct ClaimerHandle {
    requests: Arc<Requests>,
    permits: Waker,
    idle: watch::Receiver<bool>,
    connected: watch::Receiver<bool>,
}

/// The receiving end, which the claimer owns.
pub(crate) struct ClaimerWakeup {
    requests: Arc<Requests>,
    permits: Waker,
    idle: watch::Sender<bool>,
    connected: watch::Sender<bool>,
}

impl ClaimerHandle {
    /// Notifies that there may be new tasks.
    pub(crate) fn notify(&self) {
        self.requests.notify.notify_one();
        self.permits.wake();
    }

    /// Requests a sweep, because there may be tasks with ids below the watermarks.
    pub(crate) fn request_sweep(&self) {
        self.requests.sweep.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Requests reconciliation after the answer to a claim was lost: the database may assign tasks
    /// to this worker of which the worker does not know.
    pub(crate) fn reconcile(&self) {
        self.requests.reconcile.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Returns the number of claims that have found tasks.
    pub(crate) fn claims_with_tasks(&self) -> u64 {
        self.requests.claims_with_tasks.load(Ordering::Relaxed)
    }

    /// Resolves when the claimer is connected. Readers connect after the claimer. Otherwise, if
    /// connections are scarce, the readers would take all of them and wait for a claimer that
    /// cannot connect.
    pub(crate) async fn connected(&self) {
        // Fails after the end of the claimer, when no reader waits any more.
        let _ = self.connected.clone().wait_for(|connected| *connected).await;
    }

    /// Returns whether the process is idle. It is idle if nothing is running and either a whole sweep
    /// found nothing, or the worker drains and would not claim.
    pub(crate) fn is_idle(&self) -> bool {
        *self.idle.borrow()
    }

    /// Returns a receiver of the idle state, which changes at the end of each claim.
    pub(crate) fn idle(&self) -> watch::Receiver<bool> {
        self.idle.clone()
    }
}

impl ClaimerWakeup {
    /// Resolves on the next notification.
    pub(crate) async fn woken(&self) {
        self.requests.notify.notified().await;
    }

    /// Returns whether a sweep has been requested and not yet started.
    pub(crate) fn sweep_requested(&self) -> bool {
        self.requests.sweep.load(Ordering::Relaxed)
    }

    /// As [`ClaimerWakeup::sweep_requested`], and clears the request.
    pub(crate) fn take_sweep_request(&self) -> bool {
        self.requests.sweep.swap(false, Ordering::Relaxed)
    }

    /// Returns whether reconciliation has been requested since the last call.
    pub(crate) fn take_reconcile(&self) -> bool {
        self.requests.reconcile.swap(false, Ordering::Relaxed)
    }

    /// Asks for permits of tasks that may wait for them. The enqueues in lanes that this worker watches do
    /// not notify.
    pub(crate) fn request_permits(&self) {
        self.permits.wake();
    }

    /// Records that a claim found tasks.
    pub(crate) fn mark_tasks_found(&self) {
        self.requests.claims_with_tasks.fetch_add(1, Ordering::Relaxed);
    }

    /// Records after a claim whether the process is idle, see [`ClaimerHandle::is_idle`].
    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.send_replace(idle);
    }

    /// Records whether the claimer is connected.
    pub(crate) fn set_connected(&self, connected: bool) {
        self.connected.send_replace(connected);
    }
}
