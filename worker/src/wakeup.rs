//! Wakes claimer, permit granter, run advancer, scheduler, heartbeat and maintenance, on events
//! inside and outside the process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use fleet_decisions::notification_kind::claims_when_notified;
use parking_lot::Mutex;
use queue::LimitId;
use queue::RunId;
use rand::RngExt;
use tokio::sync::{Notify, watch};

/// A set of items to process, with a notification.
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
    /// Adds items and notifies the receiver.
    pub(crate) fn add(&self, items: impl IntoIterator<Item = T>) {
        let mut pending = self.items.lock();
        let before = pending.len();
        pending.extend(items);
        if pending.len() > before {
            self.notify.notify_one();
        }
    }

    /// Returns the items added since the last call, without duplicates.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut items = std::mem::take(&mut *self.items.lock());
        items.sort_unstable();
        items.dedup();
        items
    }

    /// Resolves when items have been added.
    pub(crate) async fn added(&self) {
        self.notify.notified().await;
    }
}

/// Notifications and flags of the process. A notification without a receiver is kept.
pub(crate) struct Wakeup {
    /// Limits of tasks that have ended in this process. Other tasks may wait for the permits of
    /// these limits.
    pub(crate) released_limits: PendingSet<LimitId>,
    /// Runs to advance, because a task of the run has ended in this process.
    pub(crate) runs_to_advance: PendingSet<RunId>,
    /// Runs to advance that a poll found.
    pub(crate) polled_runs: PendingSet<RunId>,
    claim_notify: Notify,
    run_end_notify: Notify,
    heartbeat_notify: Notify,
    maintenance_notify: Notify,
    permit_notify: Notify,
    reconcile: AtomicBool,
    sweep_requested: AtomicBool,
    claims_with_tasks: AtomicU64,
    draining: AtomicBool,
    reserved_readers: Mutex<BTreeMap<String, u32>>,
    limits_exist: AtomicBool,
    peer_count: AtomicUsize,
    idle: watch::Sender<bool>,
    claimer_connection: watch::Sender<bool>,
}

impl Default for Wakeup {
    fn default() -> Self {
        Self {
            released_limits: PendingSet::default(),
            runs_to_advance: PendingSet::default(),
            polled_runs: PendingSet::default(),
            claim_notify: Notify::new(),
            run_end_notify: Notify::new(),
            heartbeat_notify: Notify::new(),
            maintenance_notify: Notify::new(),
            permit_notify: Notify::new(),
            reconcile: AtomicBool::new(false),
            sweep_requested: AtomicBool::new(false),
            claims_with_tasks: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            reserved_readers: Mutex::default(),
            limits_exist: AtomicBool::new(false),
            peer_count: AtomicUsize::new(0),
            idle: watch::Sender::new(false),
            claimer_connection: watch::Sender::new(false),
        }
    }
}

impl Wakeup {
    /// Notifies that there may be new tasks.
    pub(crate) fn notify(&self) {
        self.claim_notify.notify_one();
        self.permit_notify.notify_one();
    }

    /// As [`Wakeup::notify`], after a notification that all workers have received.
    pub(crate) fn notify_as_one_of_the_fleet(&self) {
        if claims_when_notified(self.peer_count(), rand::rng().random()) {
            self.notify();
        }
    }

    /// Records the number of the other workers.
    pub(crate) fn set_peer_count(&self, count: usize) {
        self.peer_count.store(count, Ordering::Relaxed);
    }

    /// Returns the number of the other workers at the last poll.
    pub(crate) fn peer_count(&self) -> usize {
        self.peer_count.load(Ordering::Relaxed)
    }

    /// Records whether any limits existed at the last poll.
    pub(crate) fn set_limits_exist(&self, exist: bool) {
        self.limits_exist.store(exist, Ordering::Relaxed);
    }

    /// See [`Wakeup::set_limits_exist`].
    pub(crate) fn limits_exist(&self) -> bool {
        self.limits_exist.load(Ordering::Relaxed)
    }

    /// Asks for permits of tasks that may wait for them. The enqueues in lanes that this worker watches do
    /// not notify.
    pub(crate) fn request_permits(&self) {
        self.permit_notify.notify_one();
    }

    /// Resolves when new tasks may be waiting for permits.
    pub(crate) async fn permits_requested(&self) {
        self.permit_notify.notified().await;
    }

    /// Notifies the scheduler that a run has ended, for which a backfill may wait.
    pub(crate) fn notify_run_end(&self) {
        self.run_end_notify.notify_one();
    }

    /// Resolves when a run has ended in this process.
    pub(crate) async fn run_ended(&self) {
        self.run_end_notify.notified().await;
    }

    /// Requests a sweep, because there may be tasks with ids below the watermarks.
    pub(crate) fn request_sweep(&self) {
        self.sweep_requested.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Returns whether a sweep has been requested and not yet started.
    pub(crate) fn sweep_requested(&self) -> bool {
        self.sweep_requested.load(Ordering::Relaxed)
    }

    /// As [`Wakeup::sweep_requested`], and clears the request.
    pub(crate) fn take_sweep_request(&self) -> bool {
        self.sweep_requested.swap(false, Ordering::Relaxed)
    }

    /// Requests reconciliation after the answer to a claim was lost: the database may assign tasks
    /// to this worker of which the worker does not know.
    pub(crate) fn reconcile(&self) {
        self.reconcile.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Returns whether reconciliation has been requested since the last call.
    pub(crate) fn take_reconcile(&self) -> bool {
        self.reconcile.swap(false, Ordering::Relaxed)
    }

    /// Resolves on the next notification for the claimer.
    pub(crate) async fn notified(&self) {
        self.claim_notify.notified().await;
    }

    /// Records that a claim found tasks.
    pub(crate) fn mark_tasks_found(&self) {
        self.claims_with_tasks.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of claims that have found tasks.
    pub(crate) fn claims_with_tasks(&self) -> u64 {
        self.claims_with_tasks.load(Ordering::Relaxed)
    }

    /// Requests an immediate heartbeat, whose response has news such as a cancel request.
    pub(crate) fn request_heartbeat(&self) {
        self.heartbeat_notify.notify_one();
    }

    /// Resolves when a heartbeat is requested.
    pub(crate) async fn heartbeat_requested(&self) {
        self.heartbeat_notify.notified().await;
    }

    /// Requests the partitions of history before their time: history has none for today, or maybe none
    /// for the next days.
    pub(crate) fn request_maintenance(&self) {
        self.maintenance_notify.notify_one();
    }

    /// Resolves when the maintenance is requested.
    pub(crate) async fn maintenance_requested(&self) {
        self.maintenance_notify.notified().await;
    }

    /// Sets whether an operator has drained this worker.
    pub(crate) fn set_draining(&self, draining: bool) {
        if self.draining.swap(draining, Ordering::Relaxed) != draining {
            match draining {
                true => tracing::info!("an operator has started the drain of this worker"),
                false => tracing::info!("an operator has ended the drain of this worker"),
            }
            self.notify();
        }
    }

    /// Returns whether an operator has drained this worker.
    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Sets how many readers of each profile run only tasks of priority reserved; these are the
    /// first readers of the profile.
    pub(crate) fn set_reserved_readers(&self, by_profile: &BTreeMap<String, u32>) {
        let mut reserved = self.reserved_readers.lock();
        if *reserved != *by_profile {
            reserved.clone_from(by_profile);
            let readers: u32 = by_profile.values().sum();
            tracing::info!(readers, "readers reserved for reserved tasks");
            self.notify();
        }
    }

    /// See [`Wakeup::set_reserved_readers`].
    pub(crate) fn reserved_readers(&self) -> BTreeMap<String, u32> {
        self.reserved_readers.lock().clone()
    }

    /// Records whether the claimer is connected.
    pub(crate) fn set_claimer_connected(&self, connected: bool) {
        self.claimer_connection.send_replace(connected);
    }

    /// Resolves when the claimer is connected. Readers connect after the claimer. Otherwise, if
    /// connections are scarce, the readers would take all of them and wait for a claimer that
    /// cannot connect.
    pub(crate) async fn wait_for_claimer(&self) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.claimer_connection.subscribe().wait_for(|connected| *connected).await;
    }

    /// Records after a claim whether the process is idle. It is idle if nothing is running and
    /// either a whole sweep found nothing, or the worker drains and would not claim. Notifies the
    /// subscribers on each call.
    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.send_replace(idle);
    }

    /// See [`Wakeup::set_idle`].
    pub(crate) fn is_idle(&self) -> bool {
        *self.idle.borrow()
    }

    /// Returns a receiver of the idle state.
    pub(crate) fn subscribe_idle(&self) -> watch::Receiver<bool> {
        self.idle.subscribe()
    }
}
