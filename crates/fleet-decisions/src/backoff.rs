//! Exponential back-off with jitter, so that the workers of a fleet do not all reconnect at the
//! same time.

use std::time::Duration;

use rand::{Rng, RngExt};

use crate::timing::{MAX_BACKOFF, MIN_BACKOFF};

/// The next wait after a failure.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(MAX_BACKOFF)
    }
}

impl Backoff {
    /// Starts at 50 ms and doubles up to `max`.
    #[must_use]
    pub fn up_to(max: Duration) -> Self {
        Self { next: MIN_BACKOFF.min(max), max }
    }

    /// Starts over at 50 ms.
    pub fn reset(&mut self) {
        self.next = MIN_BACKOFF.min(self.max);
    }

    /// Returns whether the maximum is reached.
    #[must_use]
    pub fn at_max(&self) -> bool {
        self.next >= self.max
    }

    /// Returns the next wait: a random time between half and one and a half times the current step.
    pub fn step(&mut self, random: &mut impl Rng) -> Duration {
        let step = self.next.mul_f64(random.random_range(0.5..1.5));
        self.next = (self.next * 2).min(self.max);
        step
    }
}
