//! Repeats a change of the schema until it gets its locks.
//!
//! A session that waits for an exclusive lock blocks all sessions that request the lock later.
//! Therefore a change that does not get its locks at once releases all of them, lets the fleet
//! continue, and tries again.

use std::time::Duration;

use rand::RngExt;
use tokio::time::sleep;
use tokio_postgres::error::SqlState;

use crate::error::QueueError;

/// Maximum time that one attempt waits for a lock, while it blocks the fleet with the locks that it
/// has. It is shorter than `deadlock_timeout`, so that an attempt and a statement of the fleet that
/// wait for each other seldom end as a deadlock, in which the statement might fail.
pub(super) const LOCK_TIMEOUT: &str = "300ms";

/// Maximum number of attempts to get the locks of a change. With the delays between them, all
/// attempts take about two minutes.
const MAX_ATTEMPTS: u32 = 100;

/// Minimum and maximum delay between two attempts. The delay is random, so that the attempts do not
/// keep pace with the short transactions of the fleet.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(1500));

/// Number of attempts that could not acquire their locks.
#[derive(Debug, Default)]
pub(super) struct LockRetries {
    pub(super) count: u32,
}

impl LockRetries {
    /// Returns when the change may be tried again. Its transaction has failed with `error` and must
    /// be rolled back.
    ///
    /// # Errors
    /// Fails if `error` has another cause than a lock, or after the maximum number of attempts.
    pub(super) async fn wait(&mut self, error: tokio_postgres::Error) -> Result<(), QueueError> {
        let locked = [&SqlState::LOCK_NOT_AVAILABLE, &SqlState::T_R_DEADLOCK_DETECTED];
        if !error.code().is_some_and(|code| locked.contains(&code)) {
            return Err(error.into());
        }
        self.count += 1;
        if self.count >= MAX_ATTEMPTS {
            return Err(unavailable());
        }
        tracing::debug!(retries = self.count, "the schema's locks are not available, trying again");
        let delay = rand::rng().random_range(RETRY_DELAY.0..RETRY_DELAY.1);
        sleep(delay).await;
        Ok(())
    }
}

fn unavailable() -> QueueError {
    QueueError::Refused {
        message: format!(
            "could not acquire the locks for the schema after {MAX_ATTEMPTS} attempts; the change \
             was rolled back"
        ),
        hint: Some(
            "Try again when no long transaction or VACUUM of the queue's tables is running: pgmill \
             doctor shows the oldest transaction that uses them."
                .to_owned(),
        ),
    }
}
