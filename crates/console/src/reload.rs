//! Files that the console reads again while it serves.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::options::StartError;

/// Interval at which files are read again. Certificates are replaced days before they expire, and a token
/// is taken out by a person; a short interval shows an error soon after the change.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// The times at which a file is read again, and whether it was usable. If the file cannot be used, for
/// example because it is just being replaced, what was read before stays in use, and the error is logged
/// once.
pub(crate) struct Reload {
    what: &'static str,
    ticks: Interval,
    failed: bool,
}

impl Reload {
    /// Returns the times for a file, which is named in the log.
    pub(crate) fn of(what: &'static str) -> Self {
        let mut ticks = interval(RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { what, ticks, failed: false }
    }

    /// Waits until the file is to be read.
    pub(crate) async fn due(&mut self) {
        self.ticks.tick().await;
    }

    /// Logs the first error of several.
    pub(crate) fn done(&mut self, result: Result<(), StartError>) {
        match result {
            Ok(()) => self.failed = false,
            Err(error) if !self.failed => {
                self.failed = true;
                tracing::warn!(%error, "the old {} stays in use", self.what);
            }
            Err(_) => {}
        }
    }
}

/// Reads a file on another thread; `None` if the runtime ends.
pub(crate) async fn read<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<Option<T>, StartError> {
    tokio::task::spawn_blocking(read).await.ok().transpose()
}
