//! Decides what a notification of the database asks a worker for.

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

    #[test]
    fn in_a_large_fleet_a_bounded_number_of_workers_claims_after_a_notification() {
        assert_eq!([1, 2, 64].map(claiming), [1, 2, 64]);
        assert_eq!([65, 1000, 10_000].map(claiming), [64; 3]);
    }
}
