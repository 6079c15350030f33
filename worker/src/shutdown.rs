//! How a worker ends: first it claims no more, then its tasks finish, then they are cancelled.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::in_flight::InFlight;

/// How long cancelled statements may take to end, and their tasks to go back.
pub(crate) const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);

/// The steps, each told to everybody who waits for it.
#[derive(Clone, Default)]
pub(crate) struct Shutdown {
    /// Claim no more.
    pub(crate) drain: CancellationToken,
    /// The readers are done: beat, reclaim and serve metrics no more.
    pub(crate) end: CancellationToken,
}

/// SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on the signals end the process this way and no other.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Waits for the readers: up to `grace` for their tasks to finish, then for the cancelled
/// statements to end and go back. A second signal skips the grace.
pub(crate) async fn wait_for_readers(
    readers: &TaskTracker,
    in_flight: &InFlight,
    signals: &mut Signals,
    shutdown_timeout: Duration,
) {
    readers.close();
    let running = in_flight.count();
    tracing::info!(running, ?shutdown_timeout, "draining");
    tokio::select! {
        () = readers.wait() => return,
        signal = signals.next() => tracing::warn!(signal, "second signal, cancelling now"),
        () = tokio::time::sleep(shutdown_timeout) => tracing::warn!("the grace is over, cancelling"),
    }
    in_flight.stop_all();
    tokio::select! {
        () = readers.wait() => {}
        signal = signals.next() => tracing::error!(signal, "third signal, leaving claims behind"),
        () = tokio::time::sleep(CANCEL_TIMEOUT) => {
            tracing::error!(
                running = in_flight.count(),
                "cannot give claims back, leaving them to the other workers"
            );
        }
    }
}
