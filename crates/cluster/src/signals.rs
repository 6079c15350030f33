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

/// Runs `work` and returns its exit code. At a signal, drops `work`, which has to clean up what it has
/// set up, and returns the exit code for the signal.
///
/// # Errors
/// Returns the error of `work`, or one if the operating system refuses the handlers.
pub async fn until_signal(
    program: &str,
    work: impl Future<Output = anyhow::Result<u8>>,
) -> anyhow::Result<u8> {
    // Install the handlers before `work` begins: from then on, no signal ends this process without
    // clean-up.
    let mut signals = Signals::new()?;
    tokio::select! {
        biased;
        signal = signals.next() => {
            eprintln!("{program}: interrupted, cleaning up");
            Ok(signal_exit_code(signal.as_raw()))
        }
        code = work => code,
    }
}

/// Returns the exit code of a process ended by a signal, as shells report it: 128 + number.
#[must_use]
pub fn signal_exit_code(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}
