//! Ids of workers and limits, and the fencing token of a claim.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

/// `mill.workers.id`: a random id that is new at each process start, never a host name or a pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
#[serde(transparent)]
pub struct WorkerId(pub Uuid);

impl WorkerId {
    /// Returns a new random id.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Returns the first eight characters, which are what `pgmill worker list` prints and what
    /// names a worker in its sessions.
    #[must_use]
    pub fn prefix(self) -> String {
        self.to_string()[..8].to_owned()
    }

    /// Returns the `application_name` of a session of this worker. With the id of a task, which the
    /// session of a shared commit appends, the name has less than 64 bytes, and the server keeps
    /// all of it.
    #[must_use]
    pub fn session_name(self, role: &str) -> String {
        format!("pgmill {role} worker {}", self.prefix())
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Fencing token, random and unique per claim. Attempt numbers and sequences cannot serve as
/// tokens: if the server crashes after a claim that committed asynchronously, it assigns the same
/// numbers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub(crate) Uuid);

impl Token {
    /// Returns a token that belongs to no claim.
    #[must_use]
    pub fn stale() -> Self {
        Self(Uuid::new_v4())
    }
}

/// `mill.limits.id`.
pub type LimitId = i64;
