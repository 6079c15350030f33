//! Decides what a notification of the database asks a worker for, and when the worker does it.
//!
//! NOTIFY has no privileges: any login may send notifications, as fast as it can.

use std::time::{Duration, Instant};

/// Minimum time between two reactions to notifications of the same kind.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Average number of workers that claim after a notification of new tasks. All workers receive it, but
/// of a thousand idle workers, all but one would find nothing. If none of those that claim is free,
/// the next poll of a free worker finds the task, at most a poll interval later.
const NOTIFIED_WORKERS: f64 = 64.0;

/// What a worker does after a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationKind {
    /// Claim, because there may be new tasks.
    Tasks,
    /// Sweep, because there may be tasks below the watermarks.
    Sweep,
    /// Send a heartbeat, whose response has news.
    Heartbeat,
}

impl NotificationKind {
    /// Returns what the payload of a NOTIFY asks for.
    #[must_use]
    pub fn of_payload(payload: &str) -> Self {
        match payload {
            "sweep" => Self::Sweep,
            "cancel" | "heartbeat" => Self::Heartbeat,
            _ => Self::Tasks,
        }
    }
}

/// Limits the reactions to notifications.
#[derive(Debug, Default)]
pub struct NotificationLimit {
    /// Time of the last reaction to each kind.
    last: [Option<Instant>; 3],
    /// Kinds whose notifications wait for a reaction.
    waiting: [bool; 3],
}

impl NotificationLimit {
    /// Records a notification. `useful`: whether a claim has found tasks since the last notification of
    /// new tasks. Such notifications are not limited.
    pub fn received(&mut self, kind: NotificationKind, useful: bool) {
        self.waiting[kind as usize] = true;
        if useful && kind == NotificationKind::Tasks {
            self.last[kind as usize] = None;
        }
    }

    /// Returns a kind to react to now.
    pub fn take_due(&mut self, now: Instant) -> Option<NotificationKind> {
        let due = |kind: &NotificationKind| {
            self.due_at(*kind).is_some_and(|at| at.is_none_or(|at| at <= now))
        };
        let kind = KINDS.into_iter().find(due)?;
        self.waiting[kind as usize] = false;
        self.last[kind as usize] = Some(now);
        Some(kind)
    }

    /// Returns the time of the next reaction; `None` if no notification waits.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        KINDS.into_iter().filter_map(|kind| self.due_at(kind)?).min()
    }

    /// Returns the time of the reaction to a kind that waits: the inner `None` means at once.
    fn due_at(&self, kind: NotificationKind) -> Option<Option<Instant>> {
        let last = self.last[kind as usize].map(|last| last + MIN_INTERVAL);
        self.waiting[kind as usize].then_some(last)
    }
}

const KINDS: [NotificationKind; 3] =
    [NotificationKind::Tasks, NotificationKind::Sweep, NotificationKind::Heartbeat];

/// Returns whether a worker claims after a notification of new tasks. `peer_count`: number of the other
/// workers; `draw`: random number from 0 to 1.
#[must_use]
pub fn claims_when_notified(peer_count: usize, draw: f64) -> bool {
    let workers = f64::from(u32::try_from(peer_count).unwrap_or(u32::MAX)) + 1.0;
    draw * workers < NOTIFIED_WORKERS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many workers of a fleet claim if their draws are spread evenly.
    fn claiming(workers: usize) -> usize {
        let draw = |n: usize| n as f64 / workers as f64;
        (0..workers).filter(|n| claims_when_notified(workers - 1, draw(*n))).count()
    }

    /// Returns at which of the first 1,000 milliseconds there is a reaction, if a notification comes
    /// every millisecond.
    fn reactions(kind: NotificationKind, useful: bool) -> Vec<u64> {
        let (mut limit, begun) = (NotificationLimit::default(), Instant::now());
        let reacts = |millisecond: &u64| {
            limit.received(kind, useful);
            limit.take_due(begun + Duration::from_millis(*millisecond)) == Some(kind)
        };
        (0..1000).filter(reacts).collect()
    }

    #[test]
    fn useless_notifications_cost_ten_reactions_a_second() {
        let tenths: Vec<u64> = (0..10).map(|n| n * 100).collect();
        assert_eq!(reactions(NotificationKind::Heartbeat, true), tenths);
        assert_eq!(reactions(NotificationKind::Sweep, true), tenths);
        assert_eq!(reactions(NotificationKind::Tasks, false), tenths);
        assert_eq!(reactions(NotificationKind::Tasks, true).len(), 1000);
    }

    #[test]
    fn a_notification_that_is_not_due_is_kept() {
        let (mut limit, now) = (NotificationLimit::default(), Instant::now());
        assert_eq!((limit.next_due(), limit.take_due(now)), (None, None));
        limit.received(NotificationKind::Sweep, false);
        assert_eq!(limit.take_due(now), Some(NotificationKind::Sweep));
        limit.received(NotificationKind::Sweep, false);
        assert_eq!(limit.take_due(now), None);
        let later = now + MIN_INTERVAL;
        assert_eq!(limit.next_due(), Some(later));
        assert_eq!(limit.take_due(later), Some(NotificationKind::Sweep));
        assert_eq!((limit.next_due(), limit.take_due(later)), (None, None));
    }

    #[test]
    fn in_a_large_fleet_a_bounded_number_of_workers_claims_after_a_notification() {
        assert_eq!([1, 2, 64].map(claiming), [1, 2, 64]);
        assert_eq!([65, 1000, 10_000].map(claiming), [64; 3]);
    }
}
