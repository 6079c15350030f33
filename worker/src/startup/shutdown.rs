//! Shutdown in steps: the worker stops claiming, running tasks finish, the remaining tasks are
//! cancelled.

use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use fleet_decisions::timing::CANCEL_TIMEOUT;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use crate::context::in_flight::InFlight;
use crate::control::registration::Registration;

/// Receives requests to shut down.
pub(crate) enum Signals {
    /// SIGTERM and SIGINT.
    OfProcess { terminate: Signal, interrupt: Signal },
    /// The future of a program that embeds the worker; `None` after its end.
    OfProgram(Option<Pin<Box<dyn Future<Output = ()> + Send>>>),
}

impl Signals {
    /// Installs the handlers, which replace the default action of both signals.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses a handler.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self::OfProcess {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        match self {
            Self::OfProcess { terminate, interrupt } => tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            },
            Self::OfProgram(Some(request)) => {
                request.await;
                *self = Self::OfProgram(None);
                "program"
            }
            Self::OfProgram(None) => pending().await,
        }
    }
}

/// Waits up to `shutdown_timeout` for running tasks to finish, then cancels the rest and waits up
/// to [`CANCEL_TIMEOUT`] for their release. A second signal skips the first wait. After
/// `shutdown_timeout`, waits no longer for a database that does not answer.
pub(crate) async fn wait_for_readers(
    readers: &TaskTracker,
    in_flight: &InFlight,
    signals: &mut Signals,
    shutdown_timeout: Duration,
    registration: &Registration,
) {
    let deadline = Instant::now() + shutdown_timeout;
    readers.close();
    let running = in_flight.count();
    tracing::info!(running, ?shutdown_timeout, "draining");
    tokio::select! {
        () = readers.wait() => return,
        signal = signals.next() => {
            tracing::warn!(signal, "second signal received, cancelling running tasks");
        }
        () = tokio::time::sleep(shutdown_timeout) => {
            tracing::warn!("grace period expired, cancelling running tasks");
        }
    }
    in_flight.stop_all();
    tokio::select! {
        () = readers.wait() => {}
        signal = signals.next() => {
            tracing::error!(signal, "third signal received, exiting without releasing claims");
        }
        () = async { sleep_until(deadline).await; registration.until_lost().await } => {
            tracing::error!(
                running = in_flight.count(),
                "the database does not answer, leaving claims to the other workers"
            );
        }
        () = tokio::time::sleep(CANCEL_TIMEOUT) => {
            tracing::error!(
                running = in_flight.count(),
                "could not release claims in time, leaving them to the other workers"
            );
        }
    }
}
