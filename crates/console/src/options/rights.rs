//! Rights of the console's users: a database role, the kinds of requests, and an expiry time.

use jiff::Timestamp;
use serde::Deserialize;

/// A kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Pages, and GET requests of the API.
    Read,
    /// Requests of the API that enqueue tasks.
    Enqueue,
    /// Requests of the API that start runs.
    Run,
    /// All other requests of the API that change something, and all forms of the pages.
    Operate,
}

impl Scope {
    /// Returns the name in an access file.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Enqueue => "enqueue",
            Self::Run => "run",
            Self::Operate => "operate",
        }
    }
}

/// What a user may do. The default: everything that the console's login may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Rights {
    /// Database role that the transactions of the user's requests assume; `None` for the console's
    /// login. The database checks the privileges of this role.
    pub role: Option<String>,
    /// Allowed kinds of requests; `None` for all.
    pub scopes: Option<Vec<Scope>>,
    /// Time from which requests are refused, by the database clock; `None` for never.
    pub expires_at: Option<Timestamp>,
}

impl Rights {
    pub(crate) fn allow(&self, scope: Scope) -> bool {
        self.scopes.as_ref().is_none_or(|scopes| scopes.contains(&scope))
    }
}
