//! The server that this worker is registered at, and the end of the sessions to an earlier one.
//!
//! A primary whose machine is frozen or cut off answers nothing, and no packet says that it never will. The
//! heartbeat notices: it has a deadline, and its next session goes to the new primary. Nothing of the kind
//! would happen to a claimer, a poller or a task's statement that waits for an answer of the old one. So when
//! the control session comes to another server, all sessions that were opened before are closed, and what
//! waits on them goes on as after any lost connection.
//!
//! Claims wait for the registration: the other workers would take a worker that holds claims and is not
//! registered for dead.

use std::sync::Arc;

use queue::server::Server;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Shared by everything in the process that has sessions.
#[derive(Clone, Default)]
pub(crate) struct Registration(Arc<watch::Sender<State>>);

#[derive(Default)]
struct State {
    /// Of the last registration.
    server: Option<Server>,
    /// Whether the control session that registered there lives.
    current: bool,
    /// Ends the sessions that are opened from now on.
    end: CancellationToken,
}

impl Registration {
    /// The worker is registered at this server. If it was at another one before, every session that
    /// was opened until now is closed.
    pub(crate) fn registered(&self, server: Server) {
        self.0.send_modify(|state| {
            if state.server.is_some_and(|before| before != server) {
                tracing::warn!(
                    "the queue is on another server now; closing the sessions to the old one"
                );
                std::mem::take(&mut state.end).cancel();
            }
            state.server = Some(server);
            state.current = true;
        });
    }

    /// The control session is gone or does not answer.
    pub(crate) fn lost(&self) {
        self.0.send_modify(|state| state.current = false);
    }

    /// Cancelled when a session that is opened now has to be closed. Ask before opening it.
    pub(crate) fn end_of_session(&self) -> CancellationToken {
        self.0.borrow().end.clone()
    }

    /// The server of the last registration, if it still stands.
    pub(crate) fn server(&self) -> Option<Server> {
        let state = self.0.borrow();
        state.server.filter(|_| state.current)
    }

    /// Whether a session for tasks goes to the queue's database: a task elsewhere could not commit its
    /// completion. `true` before the first registration.
    pub(crate) fn same_database(&self, server: &Server) -> bool {
        self.0.borrow().server.is_none_or(|known| known.same_database(server))
    }

    /// Resolves once the worker is registered.
    pub(crate) async fn until_registered(&self) -> Server {
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
