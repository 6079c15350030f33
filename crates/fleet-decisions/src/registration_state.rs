//! Tracks the server at which the worker is registered, and decides when sessions to a former
//! server have to be closed.

/// The registration of a worker. `S` identifies a running server.
#[derive(Debug)]
pub struct RegistrationState<S> {
    /// Server of the last registration.
    server: Option<S>,
    /// Whether the control session of that registration is alive.
    current: bool,
    /// Number of control sessions that were lost.
    lost_sessions: u64,
}

impl<S> Default for RegistrationState<S> {
    fn default() -> Self {
        Self { server: None, current: false, lost_sessions: 0 }
    }
}

impl<S: Copy + PartialEq> RegistrationState<S> {
    /// Records a registration at `server`. Returns whether the previous registration was at another
    /// server, so that all sessions opened so far have to be closed.
    #[must_use = "sessions to the former server may never answer"]
    pub fn registered(&mut self, server: S) -> bool {
        let moved = self.server.is_some_and(|before| before != server);
        self.server = Some(server);
        self.current = true;
        moved
    }

    /// Records that the control session is lost or does not answer.
    pub fn lost(&mut self) {
        self.lost_sessions += u64::from(self.current);
        self.current = false;
    }

    /// Returns the number of control sessions that were lost so far.
    #[must_use]
    pub fn lost_sessions(&self) -> u64 {
        self.lost_sessions
    }

    /// Returns the server of the last registration.
    #[must_use]
    pub fn last_server(&self) -> Option<S> {
        self.server
    }

    /// Returns the server of the last registration if the registration is current.
    #[must_use]
    pub fn server(&self) -> Option<S> {
        self.server.filter(|_| self.current)
    }
}
