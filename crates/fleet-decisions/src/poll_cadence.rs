//! Decides when the next poll starts, and whether what a poll found of the other workers is still
//! current.

use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use crate::timing::MAX_POLL_INTERVAL;

/// Returns the wait before the next poll. It is random within 5 %, so that the polls of a fleet
/// that started at the same time spread.
pub fn next_poll_in(poll_interval: Duration, random: &mut impl Rng) -> Duration {
    poll_interval.mul_f64(random.random_range(0.95..1.05))
}

/// Returns whether the answer to a poll describes the other workers as they are. An answer that took
/// long is outdated, because the server had stalled.
#[must_use]
pub fn is_current(polled_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(polled_at) <= MAX_POLL_INTERVAL * 2
}
