//! Signals that request the shutdown of a process with a cluster, which needs clean-up.

use std::io;

use rustix::process::Signal as ProcessSignal;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receiver of SIGINT, SIGTERM and SIGHUP.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Installs the handlers; from now on these signals do not end the process.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> ProcessSignal {
        tokio::select! {
            _ = self.interrupt.recv() => ProcessSignal::INT,
            _ = self.terminate.recv() => ProcessSignal::TERM,
            _ = self.hang_up.recv() => ProcessSignal::HUP,
        }
    }
}

/// Returns the exit code of a process ended by a signal, as shells report it: 128 + number.
#[must_use]
pub fn signal_exit_code(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}
