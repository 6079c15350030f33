//! Options of a console server, and errors at its start.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use conninfo::ConnectError;
use queue::QueueError;

/// A sign-in token.
#[derive(Clone)]
pub struct Token {
    /// The token itself.
    pub secret: String,
    /// The name under which holders of this token act.
    pub label: Option<String>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("label", &self.label).finish_non_exhaustive()
    }
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
    /// Accepted tokens. Empty: everyone who reaches the console has access.
    pub tokens: Vec<Token>,
    /// Prefix of every path, such as `/pgmill`; empty for none.
    pub base_path: String,
    /// Allowed host names in addition to `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// Certificate and key; `None` serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// All requests come through a proxy that terminates TLS.
    pub behind_proxy: bool,
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
