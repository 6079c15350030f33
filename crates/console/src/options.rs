//! Options of a console server, and errors at its start.
//!
//! | task | file |
//! |---|---|
//! | command-line flags, shared by all programs that serve the console | `flags` |
//! | access file with tokens and users, and token file | `access_file` |
//! | rights of a user: database role, scopes, expiry time | `rights` |
//! | several databases of one console, each with a name | `contexts` |
//! | name and colour of the environment, which every page shows | `environment` |

pub(crate) mod access_file;
pub(crate) mod contexts;
pub(crate) mod environment;
pub(crate) mod flags;
pub(crate) mod rights;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use axum::http::HeaderName;
use conninfo::ConnectError;
use queue::QueueError;

use crate::options::environment::Environment;
use crate::options::rights::Rights;

/// A sign-in token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The token itself.
    pub secret: String,
    /// The name under which holders of this token act.
    pub label: Option<String>,
    /// What holders of this token may do.
    pub rights: Rights,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("label", &self.label).finish_non_exhaustive()
    }
}

/// Who may use the console, and what for. The default: everyone who reaches the console.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRules {
    /// Accepted tokens.
    pub tokens: Vec<Token>,
    /// The proxy that signs users in.
    pub proxy: Option<ProxySignIn>,
}

impl AccessRules {
    /// Returns whether users have to sign in.
    #[must_use]
    pub fn require_sign_in(&self) -> bool {
        !self.tokens.is_empty() || self.proxy.is_some()
    }

    /// Returns the database roles that users assume.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        let tokens = self.tokens.iter().map(|token| &token.rights);
        let users = self.proxy.iter().flat_map(|proxy| &proxy.users).map(|rule| &rule.rights);
        tokens.chain(users).filter_map(|rights| rights.role.as_deref())
    }
}

/// A file that contains access rules.
#[derive(Clone, Debug)]
pub enum AccessSource {
    /// A token file.
    Tokens(PathBuf),
    /// An access file.
    Rules(PathBuf),
}

/// A proxy that signs users in, and names the user in a header of each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySignIn {
    /// Addresses from which the headers are believed.
    pub addresses: Vec<IpAddr>,
    /// Header with the name of the user.
    pub user_header: HeaderName,
    /// Header with the user's groups, separated by commas.
    pub groups_header: Option<HeaderName>,
    /// Rights of the users; the first rule that matches applies. A user that no rule matches is
    /// refused.
    pub users: Vec<UserRule>,
}

/// Rights of some users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRule {
    /// Name of the user; `None` matches every name.
    pub name: Option<String>,
    /// A group of the user; `None` matches every user.
    pub group: Option<String>,
    /// What these users may do.
    pub rights: Rights,
}

/// Paths of certificate and key.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// PEM file with the certificate, followed by its chain.
    pub certificate: PathBuf,
    /// PEM file with the unencrypted private key.
    pub key: PathBuf,
}

/// Options of a console server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Rejects all changes, regardless of the privileges of the login.
    pub read_only: bool,
    /// Who may use the console.
    pub access: AccessRules,
    /// The file that contains these rules, which is read again while the console serves.
    pub access_source: Option<AccessSource>,
    /// Prefix of every path, such as `/pgmill`; empty for none.
    pub base_path: String,
    /// Allowed host names in addition to `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// Certificate and key; `None` serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// All requests come through a proxy that terminates TLS.
    pub behind_proxy: bool,
    /// The environment that every page names.
    pub environment: Option<Environment>,
    /// Address of a trace in a tracing tool, with `{trace_id}`; `None` for no links.
    pub trace_url: Option<String>,
    /// Prefix of the console's flags in this program, for hints: `--` or `--console-`.
    pub flag_prefix: &'static str,
}

/// Errors at the start of a console.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The options are invalid or contradictory.
    #[error("{message}")]
    Usage {
        /// The error message.
        message: String,
        /// A hint how to fix the options.
        hint: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The connection to the database failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database has no pgmill schema, another schema version, or returned an error.
    #[error(transparent)]
    Database(#[from] QueueError),
}
