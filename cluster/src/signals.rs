//! The signals that ask a process with a cluster to end: it has something to clean up first.

use std::io;

use rustix::process::Signal as ProcessSignal;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From now on they end the process this way and no other.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> ProcessSignal {
        tokio::select! {
            _ = self.interrupt.recv() => ProcessSignal::INT,
            _ = self.terminate.recv() => ProcessSignal::TERM,
            _ = self.hang_up.recv() => ProcessSignal::HUP,
        }
    }
}

/// The exit code of a process that a signal ended, as shells report it: 128 + its number.
#[must_use]
pub fn signal_exit_code(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}
