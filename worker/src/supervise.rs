//! A statement under a deadline and under the orders that reach its reader.
//!
//! Dropping a future does not stop a statement: the server has to be told. Cancel, a moment's
//! patience, cancel again, terminate the backend, and at last give up the connection.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use queue::claim::SessionIdentity;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::control::Control;
use crate::in_flight::StopSignal;
use crate::session::Canceller;

/// How long a cancelled statement may take to end before the next, harder step.
const ESCALATION_DELAY: Duration = Duration::from_secs(5);

/// How often a statement that goes on is asked after.
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// Why a statement was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// Its own deadline passed.
    Deadline,
    /// Somebody said so.
    Signal(StopSignal),
    /// Its backend is gone, and nothing on the way from there has said so.
    BackendGone,
}

/// How a guarded statement ended.
pub(crate) enum Supervised<T> {
    /// By itself.
    Done(T),
    /// After it was told to stop; `Some`: what it had to say in the end.
    Stopped(StopReason, Option<T>),
}

/// What it takes to stop the statement of one session.
pub(crate) struct Supervisor<'a> {
    pub(crate) canceller: Canceller,
    pub(crate) identity: SessionIdentity,
    pub(crate) control: &'a Control,
    pub(crate) deadline: Option<Duration>,
    pub(crate) stop: &'a mut watch::Receiver<Option<StopSignal>>,
    /// A completion is among what is run. It finds out by itself whether the claim is lost, and once
    /// it has committed, a beat finds the claim gone before the reader has the answer.
    pub(crate) includes_completion: bool,
}

impl Supervisor<'_> {
    /// Runs the statement to its end, or to the end that it is brought to.
    pub(crate) async fn run<T>(self, statement: impl Future<Output = T>) -> Supervised<T> {
        let mut statement = pin!(statement);
        let reason = tokio::select! {
            biased;
            reason = stop_signal(self.stop, self.includes_completion) => reason,
            done = &mut statement => return Supervised::Done(done),
            () = deadline(self.deadline) => StopReason::Deadline,
            () = backend_gone(self.control, self.identity) => {
                return Supervised::Stopped(StopReason::BackendGone, None);
            }
        };
        for step in [Escalation::Cancel, Escalation::Cancel, Escalation::Terminate] {
            // The statement is read on meanwhile: a server that cannot send does not see a cancel.
            let taken = async {
                match step {
                    Escalation::Cancel => self.canceller.cancel(ESCALATION_DELAY).await,
                    Escalation::Terminate => self.control.terminate(self.identity).await,
                }
                sleep(ESCALATION_DELAY).await;
            };
            tokio::select! {
                done = &mut statement => return Supervised::Stopped(reason, Some(done)),
                () = taken => {}
            }
        }
        Supervised::Stopped(reason, timeout(Duration::ZERO, statement).await.ok())
    }
}

enum Escalation {
    Cancel,
    Terminate,
}

async fn stop_signal(
    stop: &mut watch::Receiver<Option<StopSignal>>,
    includes_completion: bool,
) -> StopReason {
    let counts = |reason: &Option<StopSignal>| match reason {
        None => false,
        Some(StopSignal::Lost) => !includes_completion,
        Some(StopSignal::Cancelled | StopSignal::Shutdown) => true,
    };
    let reason = stop.wait_for(counts).await.map(|reason| *reason);
    match reason {
        Ok(reason) => StopReason::Signal(reason.unwrap_or(StopSignal::Lost)),
        // Nobody is left who could tell.
        Err(_) => std::future::pending().await,
    }
}

/// Asks by another session, now and then, whether the statement still has its backend: a connection
/// that was cut between two machines may never say so to the side that only waits.
async fn backend_gone(control: &Control, backend: SessionIdentity) {
    loop {
        sleep(PROBE_EVERY).await;
        if control.gone(backend).await.unwrap_or(false) {
            // What it sent last may be on its way.
            return sleep(ESCALATION_DELAY).await;
        }
    }
}

async fn deadline(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}
