//! Activity of a connection: waiting for its client, or busy with a request.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time limit for receiving a header, for receiving a body, and for a client that does not read the
/// response. The limit of a header begins with the connection or the end of the previous request, so
/// it also closes idle connections. 30 s is the default of hyper; a slow link transfers the largest
/// body (2 MB) in this time with 70 kB/s.
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// State of a connection, shared by its task and the list of connections.
pub(crate) struct Activity(Mutex<State>);

struct State {
    /// Since when the server waits for the TLS handshake, a header or a body.
    receiving_since: Option<Instant>,
    /// Since when the client has not read a response that the server writes.
    write_blocked_since: Option<Instant>,
    /// The client has sent a part of a request.
    partial: bool,
}

impl Activity {
    /// The activity of a new connection, which waits for its client.
    pub(crate) fn new() -> Self {
        let receiving_since = Some(Instant::now());
        Self(Mutex::new(State { receiving_since, write_blocked_since: None, partial: false }))
    }

    /// Records that the request is complete.
    pub(crate) fn request_complete(&self) {
        self.0.lock().receiving_since = None;
    }

    /// Records that the response is complete: the server waits for the next request.
    pub(crate) fn response_complete(&self) {
        let mut state = self.0.lock();
        state.receiving_since = Some(Instant::now());
        state.partial = false;
    }

    /// Records bytes from the client.
    pub(crate) fn received(&self) {
        self.0.lock().partial = true;
    }

    /// Records whether the client does not read the response.
    pub(crate) fn set_write_blocked(&self, blocked: bool) {
        let mut state = self.0.lock();
        let since = blocked.then(|| state.write_blocked_since.unwrap_or_else(Instant::now));
        state.write_blocked_since = since;
    }

    /// Returns whether the client has sent a part of a request.
    pub(crate) fn is_partial(&self) -> bool {
        self.0.lock().partial
    }

    /// Returns for how long the server has waited for the client; `None` while it is busy.
    pub(crate) fn waited(&self) -> Option<Duration> {
        let state = self.0.lock();
        let since = [state.receiving_since, state.write_blocked_since];
        since.into_iter().flatten().map(|since| since.elapsed()).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_waits_unless_it_has_a_complete_request_and_a_client_that_reads() {
        let activity = Activity::new();
        assert!(activity.waited().is_some() && !activity.is_partial());
        activity.received();
        assert!(activity.waited().is_some() && activity.is_partial());
        activity.request_complete();
        assert!(activity.waited().is_none());
        activity.set_write_blocked(true);
        assert!(activity.waited().is_some());
        activity.set_write_blocked(false);
        assert!(activity.waited().is_none());
        activity.response_complete();
        assert!(activity.waited().is_some() && !activity.is_partial());
    }
}
