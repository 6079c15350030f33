//! Supervises a statement: enforces its deadline and the stop signals of its task.
//!
//! Dropping a future does not stop a statement: the worker has to ask the server. It cancels the
//! statement, waits, cancels again, terminates the backend, and at last gives up the connection.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conninfo::ConnectionTarget;
use fleet_decisions::timing::{ESCALATION_DELAY, MAX_IDLE, PROBE_INTERVAL};
use queue::Condition;
use queue::claim::SessionIdentity;
use queue::server::{Server, server};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::CancelToken;
use tokio_util::sync::CancellationToken;

use crate::attempt::error::ExecutionError;
use crate::context::in_flight::StopSignal;
use crate::control::{Control, answered};

/// SQLSTATE with which the server ends a session, for an administrator or because it stops.
const ADMIN_SHUTDOWN: &str = "57P01";

/// Time in which a server that stops, or of which a backend has crashed, has ended all of its sessions.
const STOP_DURATION: Duration = Duration::from_millis(500);

/// Reason for stopping a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// The task's timeout expired.
    Deadline,
    /// A stop signal arrived.
    Signal(StopSignal),
    /// The backend is gone, but the connection did not report it; or the backend has answered long
    /// ago, but the answer did not arrive completely.
    BackendGone,
}

/// Result of a supervised statement.
pub(crate) enum Supervised<T> {
    /// Finished by itself.
    Done(T),
    /// Stopped, with the statement's own result if it returned one.
    Stopped(StopReason, Option<T>),
}

/// Supervises the statement of one session.
pub(crate) struct Supervisor<'a> {
    pub(crate) canceller: Canceller,
    pub(crate) identity: SessionIdentity,
    /// Control sessions in the database of the statement.
    pub(crate) host: Arc<Control>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) stop: &'a mut watch::Receiver<Option<StopSignal>>,
    /// Whether the statement also completes the task. If so, the signal for a lost claim is ignored,
    /// for two reasons. The completion fails by itself if the claim is lost. And when it has
    /// committed, the claim no longer exists: a heartbeat may report it as lost, although the task
    /// has succeeded, before the reader receives the server's answer.
    pub(crate) includes_completion: bool,
    /// Cancelled when the statement is stopped, if it is the handler of a call.
    pub(crate) stopping: Option<CancellationToken>,
}

impl Supervisor<'_> {
    /// Runs the statement until it finishes or is stopped.
    pub(crate) async fn run<T>(self, statement: impl Future<Output = T>) -> Supervised<T> {
        let mut statement = pin!(statement);
        // While a handler of the program runs, its session may be idle.
        let max_idle = self.stopping.is_none().then_some(MAX_IDLE);
        let reason = tokio::select! {
            biased;
            reason = stop_signal(self.stop, self.includes_completion) => reason,
            done = &mut statement => return Supervised::Done(done),
            () = deadline(self.deadline) => StopReason::Deadline,
            () = backend_gone(&self.host, self.identity, max_idle) => {
                return Supervised::Stopped(StopReason::BackendGone, None);
            }
        };
        if let Some(stopping) = &self.stopping {
            stopping.cancel();
        }
        if self.includes_completion {
            tokio::select! {
                done = &mut statement => return Supervised::Stopped(reason, Some(done)),
                () = replicated(&self.host, self.identity) => {}
            }
        }
        for step in [Escalation::Cancel, Escalation::Cancel, Escalation::Terminate] {
            // Keeps reading the result, because a server that is blocked on sending does not
            // process a cancel.
            let taken = async {
                match step {
                    Escalation::Cancel => self.canceller.cancel(ESCALATION_DELAY).await,
                    Escalation::Terminate => {
                        self.host.terminate(self.identity).await;
                    }
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

/// Sends cancel requests for one session.
pub(crate) struct Canceller {
    pub(crate) token: CancelToken,
    pub(crate) target: ConnectionTarget,
}

impl Canceller {
    /// Asks the server to cancel the session's statement. A request that arrives late would cancel
    /// the next statement of the session, so a cancelled session is never used again.
    async fn cancel(&self, patience: Duration) {
        let sent = timeout(patience, conninfo::cancel(&self.token, &self.target));
        match sent.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "could not send a cancel request"),
            Err(_) => tracing::warn!("a cancel request timed out after {patience:?}"),
        }
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
        // The sender is gone, so no signal can arrive any more.
        Err(_) => std::future::pending().await,
    }
}

/// Resolves once the statement's backend is gone. Checks this regularly on another session, because
/// the side that only waits may never learn that the connection between two machines was cut. A
/// backend that has been idle for too long counts as gone: its answer was damaged on the way, so that
/// the client waits for more bytes.
async fn backend_gone(host: &Control, backend: SessionIdentity, max_idle: Option<Duration>) {
    loop {
        sleep(PROBE_INTERVAL).await;
        if host.gone(backend, max_idle).await.unwrap_or(false) {
            // The last result may still be in transit.
            return sleep(ESCALATION_DELAY).await;
        }
    }
}

/// Resolves once the COMMIT of this backend does not wait for a synchronous standby. A cancel would end
/// this wait and report the COMMIT as successful, although a failover would undo it.
async fn replicated(host: &Control, backend: SessionIdentity) {
    let mut reported = false;
    while host.waits_for_standby(backend).await.unwrap_or(false) {
        if !std::mem::replace(&mut reported, true) {
            tracing::warn!(
                pid = backend.pid,
                "COMMIT waits for a synchronous standby and is not cancelled"
            );
        }
        sleep(ESCALATION_DELAY).await;
    }
}

async fn deadline(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// Finds out who has ended the session, if somebody has: an administrator, if the server goes on, and
/// otherwise the stop of the server, which is not the fault of the task. Nor is it if the worker's own
/// session has ended at the same time. If the session ended without a message, its backend may have
/// crashed: returns when the server has ended all sessions then, because `mill.detect_crash` finds the
/// tasks whose ends are not recorded yet. `before`: the server of the session. `at`: when the
/// end of the session was seen.
pub(crate) async fn find_terminator(
    host: &Control,
    before: Server,
    at: Instant,
    error: &mut ExecutionError,
) {
    let sqlstate = error.database_error().sqlstate.as_deref();
    let begun = error.database_error().condition != Some(Condition::NotBegun);
    let by_administrator = sqlstate == Some(ADMIN_SHUTDOWN) && begun;
    if !error.connection_lost() || sqlstate.is_some() && !by_administrator {
        return;
    }
    // A server that stops ends its sessions one after another.
    sleep(STOP_DURATION).await;
    let lost_with_it =
        at.checked_sub(STOP_DURATION).is_none_or(|begun| host.registration().lost_since(begun));
    if by_administrator && !lost_with_it {
        let now = answered(async { server(&*host.get().await?).await }).await;
        if now.is_ok_and(|now| now == before) {
            error.set_condition(Condition::Terminated);
        }
    }
}
