//! Errors between a connection string and an open connection.

use crate::origin::Origin;
use tokio_postgres::error::SqlState;

/// Reason why no connection was opened.
///
/// Messages are lower-case fragments. None of them contains a password or the text of `options`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The connection string, the service file or a variable is malformed or contradicts itself.
    #[error("{message}")]
    Usage {
        /// The problem, and where it is.
        message: String,
        /// Suggested fix, if known.
        hint: Option<String>,
    },
    /// A keyword that libpq does not know either.
    #[error("unknown connection option \"{keyword}\"")]
    UnknownKeyword {
        /// The keyword as written.
        keyword: String,
        /// The most similar known keyword, if one is similar enough.
        closest: Option<&'static str>,
    },
    /// A keyword that libpq supports and this program does not, and that is unsafe to ignore.
    #[error("connection option \"{keyword}\" ({origin}) is not supported")]
    UnsupportedKeyword {
        /// The keyword.
        keyword: &'static str,
        /// Source of the option.
        origin: Origin,
        /// Reason why ignoring the option would be unsafe.
        reason: &'static str,
    },
    /// A known keyword with an invalid value.
    #[error("invalid value for connection option \"{keyword}\" ({origin}): {problem}")]
    InvalidValue {
        /// The keyword.
        keyword: &'static str,
        /// Source of the option.
        origin: Origin,
        /// The expected value.
        problem: String,
    },
    /// A certificate or key file is missing, unreadable or too readable.
    #[error("{what} \"{path}\": {problem}")]
    TlsFile {
        /// `root certificate file`, `certificate file` or `private key file`.
        what: &'static str,
        /// The file.
        path: String,
        /// The problem of the file.
        problem: String,
    },
    /// No server answered at that address, or the connection was lost before the session began.
    #[error("connection to server at {server} failed: {reason}")]
    Unreachable {
        /// `"host" (address), port n` or the socket's path.
        server: String,
        /// The operating system's or the protocol's error message.
        reason: String,
    },
    /// The server did not finish the start-up within `connect_timeout`.
    #[error("connection to server at {server} failed: timeout expired after {seconds} s")]
    TimedOut {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// The limit, in seconds.
        seconds: u64,
    },
    /// A pool had no session within its time limit.
    #[error("no session with the database within the time limit: {reason}")]
    NoSession {
        /// What the caller waited for.
        reason: &'static str,
    },
    /// The TLS rules of `sslmode` were not met.
    #[error("connection to server at {server} failed: {reason}")]
    Tls {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// The error of the handshake or the certificate check.
        reason: String,
    },
    /// The client ended the authentication: no password, no channel binding, unknown method.
    #[error("connection to server at {server} failed: {reason}")]
    Authentication {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// Reason of the failure.
        reason: String,
    },
    /// The server answered with an error.
    #[error("connection to server at {server} failed: {message} (SQLSTATE {})", .sqlstate.code())]
    Refused {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// The server's primary message.
        message: String,
        /// The error's SQLSTATE.
        sqlstate: SqlState,
        /// The server's own hint.
        server_hint: Option<String>,
        /// The driver's error.
        source: Box<tokio_postgres::Error>,
    },
    /// The server's kind does not match `target_session_attrs`.
    #[error("connection to server at {server} failed: {problem}")]
    WrongSession {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// The mismatch, such as `server is in hot standby mode`.
        problem: &'static str,
    },
    /// Other roles may create objects in the search_path, which a pooler lets the session not replace.
    #[error(
        "connection to server at {server} refused: the pooler dropped search_path, and role \"{role}\" may create \
         objects in schema \"{schema}\" of the login's search_path, which statements of this program could call"
    )]
    UnsafeSearchPath {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// The schema.
        schema: String,
        /// A role that may create objects in it; `PUBLIC`: every role.
        role: String,
    },
    /// Several addresses were tried and all of them failed.
    #[error("{}", join(.failures))]
    NoneOf {
        /// One error per address, in the order of the attempts.
        failures: Vec<ConnectError>,
    },
}

fn join(failures: &[ConnectError]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl ConnectError {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: None }
    }

    pub(crate) fn usage_with_hint(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// Returns whether this is a configuration error: the same string fails again until the string,
    /// the files or the variables change. `false` for servers that are unreachable or refuse the
    /// connection.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Usage { .. }
                | Self::UnknownKeyword { .. }
                | Self::UnsupportedKeyword { .. }
                | Self::InvalidValue { .. }
                | Self::TlsFile { .. }
        )
    }

    /// Returns the server's SQLSTATE, if a server answered with an error.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Refused { sqlstate, .. } => Some(sqlstate),
            Self::NoneOf { failures } => failures.iter().rev().find_map(Self::sqlstate),
            _ => None,
        }
    }

    /// Returns the suggested fix, as a lower-case fragment.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::UnknownKeyword { closest, .. } => Some(match closest {
                Some(closest) => format!("did you mean \"{closest}\"?"),
                None => "options are those of libpq connection strings".to_owned(),
            }),
            Self::UnsupportedKeyword { reason, .. } => {
                Some(format!("{reason}; remove the option to connect without it"))
            }
            Self::Authentication { reason, .. } if reason.contains("none was given") => {
                hint_for(&SqlState::INVALID_PASSWORD).map(str::to_owned)
            }
            Self::Refused { server_hint, sqlstate, .. } => {
                server_hint.clone().or_else(|| hint_for(sqlstate).map(str::to_owned))
            }
            Self::UnsafeSearchPath { schema, role, .. } => {
                let role = if role == "PUBLIC" { role.clone() } else { format!("\"{role}\"") };
                Some(format!(
                    "connect without the pooler, or REVOKE CREATE ON SCHEMA \"{schema}\" FROM {role}"
                ))
            }
            Self::Tls { reason, .. } => tls_hint(reason).map(str::to_owned),
            Self::Unreachable { reason, .. } if reason.contains("refused") => {
                Some("is the server running there and accepting TCP/IP connections?".to_owned())
            }
            Self::Unreachable { reason, .. } if reason.contains("No such file") => Some(
                "is the server running locally and accepting connections on that socket?"
                    .to_owned(),
            ),
            Self::NoneOf { failures } => failures.iter().rev().find_map(Self::hint),
            _ => None,
        }
    }
}

fn hint_for(sqlstate: &SqlState) -> Option<&'static str> {
    match *sqlstate {
        SqlState::INVALID_PASSWORD => Some("set PGPASSWORD or add a line to ~/.pgpass"),
        SqlState::TOO_MANY_CONNECTIONS => {
            Some("lower the number of connections or raise max_connections")
        }
        SqlState::CANNOT_CONNECT_NOW => {
            Some("the server is starting up or shutting down: try again")
        }
        _ => None,
    }
}

fn tls_hint(reason: &str) -> Option<&'static str> {
    if reason.contains("UnknownIssuer") {
        Some("set sslrootcert to the certificate authority's file, or to system")
    } else if reason.contains("not valid for") {
        Some(
            "the host must be listed in the certificate's subjectAltName; its common name does not count",
        )
    } else if reason.contains("UnsupportedCertVersion") {
        Some("the certificate is X.509 version 1; create one with extensions (version 3)")
    } else if reason.contains("does not support TLS") {
        Some("set ssl = on in the server's configuration, or use sslmode=prefer")
    } else {
        None
    }
}
