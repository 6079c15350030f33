//! Decides when the claimer sweeps, when it polls, when enqueues need not notify it, and when it compares
//! its claims with those in the database.

use std::time::{Duration, Instant};

use rand::Rng;

use crate::backoff::Backoff;
use crate::lanes::Lanes;
use crate::timing::{RECONCILE_INTERVAL, WATCH_INTERVAL, WATCH_RECORD, WATCH_TIME};

/// Part of the time since the last task after which the claimer polls again. So a task that comes after a
/// pause waits at most for a tenth of the pause, and the number of polls grows with the logarithm of it.
const PAUSE_DIVISOR: u32 = 10;

/// When a claimer acts without being notified.
#[derive(Debug)]
pub struct ClaimCadence {
    poll_interval: Duration,
    poll: Backoff,
    /// Time of the next poll. A reader that becomes idle before then does not put it off.
    poll_at: Option<Instant>,
    /// Time of the last task, while the claimer polls according to the time since then.
    found_at: Option<Instant>,
    /// Time until which the database has a record that this worker watches its lanes.
    watch_recorded_until: Option<Instant>,
    /// Whether a notification has been received after which no watch has been recorded.
    notified: bool,
    /// Whether a notification has been received after which no claim has swept.
    unswept_notification: bool,
    /// Whether it is unknown that no task is runnable, because the last claim found nothing but was
    /// not a sweep.
    idle_unconfirmed: bool,
    reconcile_at: Instant,
}

/// A change of the record of the lanes that the worker watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchChange {
    /// The worker watches its lanes from now on. See [`ClaimCadence::watches`].
    Watch,
    /// The worker does not watch its lanes any more: enqueues have to notify it. After the change it
    /// claims again, because the enqueues before the change have not notified.
    End,
}

impl ClaimCadence {
    /// Creates the cadence of a claimer that starts `now`.
    #[must_use]
    pub fn new(poll_interval: Duration, now: Instant) -> Self {
        Self {
            poll_interval,
            poll: Backoff::up_to(poll_interval),
            poll_at: None,
            found_at: None,
            watch_recorded_until: None,
            notified: false,
            unswept_notification: false,
            idle_unconfirmed: true,
            reconcile_at: now,
        }
    }

    /// Records that a session for claims is in use: polls often at first.
    pub fn connected(&mut self) {
        self.poll_often();
        self.watch_recorded_until = None;
    }

    /// Begins a claim. Returns whether it sweeps.
    pub fn begin_claim(&mut self, sweep_requested: bool, lanes: &Lanes, now: Instant) -> bool {
        self.idle_unconfirmed = true;
        sweep_requested || lanes.sweep_due(now)
    }

    /// Returns whether a claim that left readers idle is repeated as a sweep, or, if it was a sweep,
    /// continued in the lanes that the sweep has not read yet.
    #[must_use]
    pub fn sweep_again(
        &mut self,
        swept: bool,
        idle_readers: usize,
        lanes: &Lanes,
        now: Instant,
    ) -> bool {
        let more = if swept {
            lanes.next_after().is_some()
        } else {
            lanes.sweep_allowed(self.unswept_notification, now)
        };
        let again = idle_readers > 0 && more;
        self.unswept_notification &= !swept && !again;
        again
    }

    /// Ends a claim. Returns whether the process is idle, if the claim shows it: only a sweep can
    /// show that nothing is runnable.
    pub fn end_claim(
        &mut self,
        found: bool,
        in_flight: usize,
        swept: bool,
        now: Instant,
    ) -> Option<bool> {
        if found {
            self.found_at = Some(now);
            self.poll_at = None;
        }
        let busy = found || in_flight > 0;
        let known = busy || swept;
        if known {
            self.idle_unconfirmed = false;
        }
        known.then_some(!busy)
    }

    /// Returns how to change the record of the lanes that the worker watches, after a claim that has left
    /// readers idle.
    #[must_use]
    pub fn watch_change(&self, now: Instant) -> Option<WatchChange> {
        let found = self.found_at.is_some_and(|at| now.saturating_duration_since(at) < WATCH_TIME);
        let ends_at = self.watch_recorded_until.filter(|until| *until > now);
        match ends_at {
            Some(until) if found => (until - now < WATCH_RECORD / 2).then_some(WatchChange::Watch),
            None if found => Some(WatchChange::Watch),
            Some(_) => Some(WatchChange::End),
            None => self.notified.then_some(WatchChange::End),
        }
    }

    /// Records that the worker watches its lanes since `now`. If another worker watches the same lanes
    /// already, `exclusive` is `false`, and this worker leaves that to the other.
    pub fn watches(&mut self, exclusive: bool, now: Instant) {
        self.watch_recorded_until = exclusive.then(|| now + WATCH_RECORD);
        self.notified = false;
        if !exclusive {
            self.found_at = None;
            self.poll_often();
        }
    }

    /// Records that the worker does not watch its lanes any more.
    pub fn watch_ended(&mut self) {
        self.watch_recorded_until = None;
        self.notified = false;
    }

    /// Returns when the record expires that this worker watches its lanes.
    #[must_use]
    pub fn watch_recorded_until(&self) -> Option<Instant> {
        self.watch_recorded_until
    }

    /// Records a notification of new tasks. They may be in a lane that the last sweep found empty
    /// just before.
    pub fn notified(&mut self, sweep_requested: bool, lanes: &mut Lanes) {
        lanes.mark_all_nonempty();
        if !sweep_requested {
            self.poll_often();
            (self.notified, self.unswept_notification) = (true, true);
        }
    }

    /// Returns whether the claimer polls by itself: after the last task or notification, with waits
    /// that grow up to the poll interval, and until a sweep has found nothing. From then on, the
    /// poller sends a notification.
    #[must_use]
    pub fn polls(&self, idle_readers: usize) -> bool {
        idle_readers > 0
            && (self.idle_unconfirmed || self.found_at.is_some() || !self.poll.at_max())
    }

    /// Returns the time of the claimer's next poll. See [`ClaimCadence::polled`].
    pub fn next_poll_at(&mut self, now: Instant, random: &mut impl Rng) -> Instant {
        if let Some(at) = self.poll_at {
            return at;
        }
        let pause = self.found_at.map(|at| now.saturating_duration_since(at) / PAUSE_DIVISOR);
        let wait = match pause {
            Some(pause) if pause < self.poll_interval => {
                pause.max(WATCH_INTERVAL).min(self.poll_interval)
            }
            _ => {
                self.found_at = None;
                self.poll.step(random)
            }
        };
        *self.poll_at.insert(now + wait)
    }

    /// Begins a poll: the claimer looks for tasks in all lanes again.
    pub fn polled(&mut self, lanes: &mut Lanes) {
        lanes.mark_all_nonempty();
        self.poll_at = None;
    }

    /// Starts the waits between polls over.
    fn poll_often(&mut self) {
        self.poll = Backoff::up_to(self.poll_interval);
        self.poll_at = None;
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

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_INTERVAL: Duration = Duration::from_millis(1300);

    /// Returns the pause since the last task at each poll, until the claimer does not poll any more.
    fn polls_after_a_task(cadence: &mut ClaimCadence, begun: Instant) -> Vec<Duration> {
        let mut polls = Vec::new();
        let mut now = begun;
        cadence.end_claim(true, 0, false, now);
        while cadence.polls(1) {
            now = cadence.next_poll_at(now, &mut rand::rng());
            polls.push(now - begun);
            cadence.polled(&mut Lanes::default());
            assert_eq!(cadence.end_claim(false, 0, true, now), Some(true));
        }
        polls
    }

    #[test]
    fn a_task_waits_for_a_tenth_of_the_pause_before_it() {
        let begun = Instant::now();
        let mut cadence = ClaimCadence::new(POLL_INTERVAL, begun);
        let polls = polls_after_a_task(&mut cadence, begun);
        for pair in polls.windows(2).filter(|pair| pair[1] < POLL_INTERVAL * PAUSE_DIVISOR) {
            let longest = (pair[0] / PAUSE_DIVISOR).max(WATCH_INTERVAL);
            assert!(pair[1] - pair[0] <= longest, "{pair:?}");
        }
        assert!(*polls.last().unwrap() > POLL_INTERVAL * PAUSE_DIVISOR);
        assert!(polls.len() < 100, "{} polls", polls.len());
    }

    #[test]
    fn a_claimer_leaves_the_polls_to_the_worker_that_watches_the_same_lanes() {
        let begun = Instant::now();
        let mut cadence = ClaimCadence::new(POLL_INTERVAL, begun);
        cadence.end_claim(true, 0, false, begun);
        assert_eq!(cadence.watch_change(begun), Some(WatchChange::Watch));
        cadence.watches(false, begun);
        assert_eq!(cadence.watch_change(begun), None);
        assert!(cadence.next_poll_at(begun, &mut rand::rng()) >= begun + Duration::from_millis(25));
    }

    #[test]
    fn a_reader_that_becomes_idle_does_not_put_off_the_next_poll() {
        let begun = Instant::now();
        let mut cadence = ClaimCadence::new(POLL_INTERVAL, begun);
        cadence.end_claim(true, 0, false, begun);
        let at = cadence.next_poll_at(begun, &mut rand::rng());
        let later = begun + WATCH_INTERVAL / 2;
        cadence.begin_claim(false, &Lanes::default(), later);
        cadence.end_claim(false, 1, false, later);
        assert_eq!(cadence.next_poll_at(later, &mut rand::rng()), at);
        cadence.polled(&mut Lanes::default());
        assert!(cadence.next_poll_at(at, &mut rand::rng()) > at);
    }

    #[test]
    fn a_watch_is_renewed_while_tasks_come_and_then_ends() {
        let begun = Instant::now();
        let mut cadence = ClaimCadence::new(POLL_INTERVAL, begun);
        let at = |milliseconds| begun + Duration::from_millis(milliseconds);
        assert_eq!(cadence.watch_change(begun), None);
        cadence.end_claim(true, 0, false, at(0));
        assert_eq!(cadence.watch_change(at(0)), Some(WatchChange::Watch));
        cadence.watches(true, at(0));
        assert_eq!(cadence.watch_change(at(1)), None);
        cadence.end_claim(true, 0, false, at(12));
        assert_eq!(cadence.watch_change(at(13)), Some(WatchChange::Watch));
        cadence.watches(true, at(13));
        assert_eq!(cadence.watch_recorded_until(), Some(at(13) + WATCH_RECORD));
        assert_eq!(cadence.watch_change(at(19)), None);
        assert_eq!(cadence.watch_change(at(20)), Some(WatchChange::End));
        cadence.watch_ended();
        assert_eq!(cadence.watch_change(at(21)), None);
        assert_eq!(cadence.watch_recorded_until(), None);
    }

    #[test]
    fn a_notification_that_brought_no_task_lets_the_next_enqueue_notify() {
        let begun = Instant::now();
        let mut cadence = ClaimCadence::new(POLL_INTERVAL, begun);
        cadence.notified(false, &mut Lanes::default());
        cadence.end_claim(false, 0, true, begun);
        assert_eq!(cadence.watch_change(begun), Some(WatchChange::End));
        cadence.watch_ended();
        assert_eq!(cadence.watch_change(begun), None);
    }
}
