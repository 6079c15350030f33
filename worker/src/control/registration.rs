//! Tracks the server at which the worker is registered, and closes sessions to a former server.
//!
//! When the machine of a primary is frozen or cut off, the primary no longer answers, and no packet
//! tells its clients so. Heartbeats detect this, because each heartbeat has a deadline, and after a
//! missed deadline the heartbeat opens a session to the new primary. The claimer, the poller and
//! task statements have no such deadline and would wait for the old primary. Therefore, when the
//! control session connects to another server, all earlier sessions are closed, and their users
//! continue as after any lost connection.
//!
//! Claims wait for the registration, because the other workers consider a worker dead that holds
//! claims but is not registered.

use std::sync::Arc;
use std::time::Instant;

use fleet_decisions::registration_state::RegistrationState;
use queue::QueueError;
use queue::server::Server;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const MOVED: &str = "the queue is on another server now";

/// Returns the error for a user of a session that was closed because the worker moved to another
/// server.
pub(crate) fn moved() -> QueueError {
    QueueError::Refused { message: MOVED.to_owned(), hint: None }
}

/// State of the registration, shared by all users of sessions in the process.
#[derive(Clone, Default)]
pub(crate) struct Registration(Arc<watch::Sender<State>>);

#[derive(Default)]
struct State {
    registration: RegistrationState<Server>,
    /// Number of registrations so far.
    registrations: u64,
    /// Time at which the control session was last lost.
    lost_at: Option<Instant>,
    /// Closes the sessions that are opened from now on.
    end: CancellationToken,
}

impl Registration {
    /// Records a registration at `server`. If the previous registration was at another server,
    /// closes all sessions opened so far.
    pub(crate) fn registered(&self, server: Server) {
        self.0.send_modify(|state| {
            if state.registration.registered(server) {
                tracing::warn!("{MOVED}; closing sessions to the former server");
                std::mem::take(&mut state.end).cancel();
            }
            state.registrations += 1;
        });
    }

    /// Returns the number of registrations so far.
    pub(crate) fn registrations(&self) -> u64 {
        self.0.borrow().registrations
    }

    /// Resolves once there were more than `seen` registrations.
    pub(crate) async fn after(&self, seen: u64) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.0.subscribe().wait_for(|state| state.registrations > seen).await;
    }

    /// Records that the control session is lost or does not answer.
    pub(crate) fn lost(&self) {
        self.0.send_modify(|state| {
            state.registration.lost();
            state.lost_at = Some(Instant::now());
        });
    }

    /// Returns whether the control session was lost at this time or later.
    pub(crate) fn lost_since(&self, time: Instant) -> bool {
        self.0.borrow().lost_at.is_some_and(|at| at >= time)
    }

    /// Resolves once the control session is lost or does not answer.
    pub(crate) async fn until_lost(&self) {
        let lost = |state: &State| state.registration.server().is_none();
        // The sender is in `self`, so this cannot fail.
        let _ = self.0.subscribe().wait_for(lost).await;
    }

    /// Returns the number of control sessions that were lost so far.
    pub(crate) fn lost_sessions(&self) -> u64 {
        self.0.borrow().registration.lost_sessions()
    }

    /// Returns a token that is cancelled when a session opened now must be closed. Call this before
    /// opening the session.
    pub(crate) fn end_of_session(&self) -> CancellationToken {
        self.0.borrow().end.clone()
    }

    /// Returns the server of the last registration if the registration is current.
    pub(crate) fn server(&self) -> Option<Server> {
        self.0.borrow().registration.server()
    }

    /// Returns whether `server` has the queue's database: a task in another database could not
    /// commit its completion. `true` before the first registration.
    pub(crate) fn same_database(&self, server: &Server) -> bool {
        self.0.borrow().registration.last_server().is_none_or(|known| known.same_database(server))
    }

    /// Resolves once the worker is registered.
    pub(crate) async fn until_registered(&self) -> Server {
        // The common case before every claim, which needs no receiver.
        if let Some(server) = self.server() {
            return server;
        }
        let mut states = self.0.subscribe();
        loop {
            if let Some(server) = self.server() {
                return server;
            }
            // The sender is in `self`, so this cannot fail.
            let _ = states.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::control::Backoff;
    use fleet_decisions::timing::{MAX_BACKOFF, MIN_BACKOFF};

    #[tokio::test]
    async fn a_registration_ends_one_wait_and_the_back_off() {
        let registration = Registration::default();
        let mut backoff = Backoff::up_to(MAX_BACKOFF).ended_by(&registration);
        for _ in 0..10 {
            backoff.step();
        }
        assert!(backoff.wait().now_or_never().is_none());
        registration.0.send_modify(|state| state.registrations += 1);
        assert!(backoff.wait().now_or_never().is_some());
        assert!(backoff.step() <= MIN_BACKOFF.mul_f64(1.5));
        assert!(backoff.wait().now_or_never().is_none());
    }
}
