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
use crate::held::Stop;
use crate::session::Canceller;

/// How long a cancelled statement may take to end before the next, harder step.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a statement that goes on is asked after.
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// Why a statement was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its own deadline passed.
    Deadline,
    /// Somebody said so.
    Told(Stop),
    /// Its backend is gone, and nothing on the way from there has said so.
    BackendGone,
}

/// How a guarded statement ended.
pub(crate) enum Guarded<T> {
    /// By itself.
    Done(T),
    /// After it was told to stop; `Some`: what it had to say in the end.
    Stopped(Reason, Option<T>),
}

/// What it takes to stop the statement of one session.
pub(crate) struct Guard<'a> {
    pub(crate) canceller: Canceller,
    pub(crate) identity: SessionIdentity,
    pub(crate) control: &'a Control,
    pub(crate) deadline: Option<Duration>,
    pub(crate) stop: &'a mut watch::Receiver<Option<Stop>>,
    /// A completion is among what is run. It finds out by itself whether the claim is lost, and once
    /// it has committed, a beat finds the claim gone before the reader has the answer.
    pub(crate) completes: bool,
}

impl Guard<'_> {
    /// Runs the statement to its end, or to the end that it is brought to.
    pub(crate) async fn run<T>(self, statement: impl Future<Output = T>) -> Guarded<T> {
        let mut statement = pin!(statement);
        let reason = tokio::select! {
            biased;
            reason = told(self.stop, self.completes) => reason,
            done = &mut statement => return Guarded::Done(done),
            () = deadline(self.deadline) => Reason::Deadline,
            () = backend_gone(self.control, self.identity) => {
                return Guarded::Stopped(Reason::BackendGone, None);
            }
        };
        for step in [Step::Cancel, Step::Cancel, Step::Terminate] {
            // The statement is read on meanwhile: a server that cannot send does not see a cancel.
            let taken = async {
                match step {
                    Step::Cancel => self.canceller.cancel(PATIENCE).await,
                    Step::Terminate => self.control.terminate(self.identity).await,
                }
                sleep(PATIENCE).await;
            };
            tokio::select! {
                done = &mut statement => return Guarded::Stopped(reason, Some(done)),
                () = taken => {}
            }
        }
        Guarded::Stopped(reason, timeout(Duration::ZERO, statement).await.ok())
    }
}

enum Step {
    Cancel,
    Terminate,
}

async fn told(stop: &mut watch::Receiver<Option<Stop>>, completes: bool) -> Reason {
    let counts = |reason: &Option<Stop>| match reason {
        None => false,
        Some(Stop::Lost) => !completes,
        Some(Stop::Cancelled | Stop::Shutdown) => true,
    };
    let reason = stop.wait_for(counts).await.map(|reason| *reason);
    match reason {
        Ok(reason) => Reason::Told(reason.unwrap_or(Stop::Lost)),
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
            return sleep(PATIENCE).await;
        }
    }
}

async fn deadline(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}
