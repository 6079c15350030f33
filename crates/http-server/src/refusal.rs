//! Reasons for which a server refuses clients.

use std::sync::Arc;

/// Why a connection was closed or a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server is full, and all connections are busy: the new connection was closed.
    ConnectionLimit,
    /// The server was full: a connection that waited for its client was closed for a new one.
    Replaced,
    /// The client was too slow.
    Timeout,
    /// The token is unknown.
    WrongToken,
    /// The address has sent too many wrong tokens, so the token was not examined.
    TokenLimit,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::ConnectionLimit, Self::Replaced, Self::Timeout, Self::WrongToken, Self::TokenLimit];

    /// Returns the name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConnectionLimit => "connection_limit",
            Self::Replaced => "replaced",
            Self::Timeout => "timeout",
            Self::WrongToken => "wrong_token",
            Self::TokenLimit => "token_limit",
        }
    }
}

/// Called for each refusal.
pub type RefusalObserver = Arc<dyn Fn(Refusal) + Send + Sync>;
