//! What wakes the claimer, from inside the process and from outside.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

/// One per process. A ring while nobody waits is kept.
pub(crate) struct Bell {
    work: Notify,
    beat: Notify,
    sweep: AtomicBool,
    draining: AtomicBool,
    idle: watch::Sender<bool>,
    claimer: watch::Sender<bool>,
}

impl Default for Bell {
    fn default() -> Self {
        Self {
            work: Notify::new(),
            beat: Notify::new(),
            sweep: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            idle: watch::Sender::new(false),
            claimer: watch::Sender::new(false),
        }
    }
}

impl Bell {
    /// There may be new tasks.
    pub(crate) fn ring(&self) {
        self.work.notify_one();
    }

    /// There may be tasks with ids that were passed already.
    pub(crate) fn sweep(&self) {
        self.sweep.store(true, Ordering::Relaxed);
        self.work.notify_one();
    }

    /// Whether somebody asked for a sweep that has not been taken up.
    pub(crate) fn sweep_is_wanted(&self) -> bool {
        self.sweep.load(Ordering::Relaxed)
    }

    /// As [`Bell::sweep_is_wanted`], and takes it up.
    pub(crate) fn take_sweep(&self) -> bool {
        self.sweep.swap(false, Ordering::Relaxed)
    }

    /// Resolves when it rings.
    pub(crate) async fn rung(&self) {
        self.work.notified().await;
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

    /// After a claim that found nothing: whether nothing is running either.
    pub(crate) fn note_idle(&self, idle: bool) {
        self.idle.send_replace(idle);
    }

    /// To be told when the process becomes idle.
    pub(crate) fn watch_idle(&self) -> watch::Receiver<bool> {
        self.idle.subscribe()
    }
}
