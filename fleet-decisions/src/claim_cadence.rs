//! Decides when the claimer sweeps, when it polls, and when it compares its claims with those in
//! the database.

use std::time::{Duration, Instant};

use rand::Rng;

use crate::backoff::Backoff;
use crate::lanes::Lanes;
use crate::timing::RECONCILE_INTERVAL;

/// When a claimer acts without being notified.
#[derive(Debug)]
pub struct ClaimCadence {
    poll_interval: Duration,
    poll: Backoff,
    /// Whether it is unknown that no task is runnable, because the last claim found nothing but was
    /// not a sweep.
    idle_unconfirmed: bool,
    reconcile_at: Instant,
}

impl ClaimCadence {
    /// Creates the cadence of a claimer that starts `now`.
    #[must_use]
    pub fn new(poll_interval: Duration, now: Instant) -> Self {
        Self {
            poll_interval,
            poll: Backoff::up_to(poll_interval),
            idle_unconfirmed: true,
            reconcile_at: now,
        }
    }

    /// Records that a session for claims is in use: polls often at first.
    pub fn connected(&mut self) {
        self.poll = Backoff::up_to(self.poll_interval);
    }

    /// Begins a claim. Returns whether it sweeps.
    pub fn begin_claim(&mut self, sweep_requested: bool, lanes: &Lanes, now: Instant) -> bool {
        self.idle_unconfirmed = true;
        sweep_requested || lanes.sweep_due(now)
    }

    /// Returns whether a claim that left readers idle is repeated as a sweep.
    #[must_use]
    pub fn sweep_again(swept: bool, idle_readers: usize, lanes: &Lanes, now: Instant) -> bool {
        !swept && idle_readers > 0 && lanes.sweep_allowed(now)
    }

    /// Ends a claim. Returns whether the process is idle, if the claim shows it: only a sweep can
    /// show that nothing is runnable.
    pub fn end_claim(&mut self, found: bool, in_flight: usize, swept: bool) -> Option<bool> {
        if found {
            self.poll = Backoff::up_to(self.poll_interval);
        }
        let busy = found || in_flight > 0;
        let known = busy || swept;
        if known {
            self.idle_unconfirmed = false;
        }
        known.then_some(!busy)
    }

    /// Records a notification of new tasks. They may be in a lane that the last sweep found empty
    /// just before.
    pub fn notified(&mut self, sweep_requested: bool, lanes: &mut Lanes) {
        lanes.mark_all_nonempty();
        if !sweep_requested {
            self.poll = Backoff::up_to(self.poll_interval);
        }
    }

    /// Returns whether the claimer polls by itself: after the last task or notification, with waits
    /// that grow up to the poll interval, and until a sweep has found nothing. From then on, the
    /// poller sends a notification.
    #[must_use]
    pub fn polls(&self, idle_readers: usize) -> bool {
        idle_readers > 0 && (self.idle_unconfirmed || !self.poll.at_max())
    }

    /// Returns the wait before the claimer's next poll.
    pub fn next_poll_in(&mut self, random: &mut impl Rng) -> Duration {
        self.poll.step(random)
    }

    /// Returns whether the claims are to be compared with those in the database. The request is
    /// kept until [`ClaimCadence::reconciled`], so that an error does not lose it.
    pub fn reconcile_due(&mut self, requested: bool, now: Instant) -> bool {
        let due = requested || self.reconcile_at <= now;
        if due {
            self.reconcile_at = now;
        }
        due
    }

    /// Records that the claims have been compared.
    pub fn reconciled(&mut self, now: Instant) {
        self.reconcile_at = now + RECONCILE_INTERVAL;
    }

    /// Records an error of a claim. The claim may have been executed in spite of the error.
    pub fn failed(&mut self, now: Instant) {
        self.reconcile_at = now;
    }

    /// Returns the time of the next comparison.
    #[must_use]
    pub fn reconcile_at(&self) -> Instant {
        self.reconcile_at
    }
}
