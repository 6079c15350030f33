//! What can go wrong between a connection string and an open connection.

use super::settings::Origin;
use tokio_postgres::error::SqlState;

/// Why no connection came about.
///
/// Messages are lower-case fragments; none of them holds a password or the text of `options`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The connection string, the service file or a variable is malformed or contradicts itself.
    #[error("{message}")]
    Usage {
        /// What is wrong, and where.
        message: String,
        /// What to do about it, where there is something to say.
        hint: Option<String>,
    },
    /// A keyword that libpq does not know either.
    #[error("unknown connection option \"{keyword}\"")]
    UnknownKeyword {
        /// As written.
        keyword: String,
        /// The known keyword with the fewest letters' difference, if one is near.
        closest: Option<&'static str>,
    },
    /// A keyword that libpq honours and this program cannot, where ignoring it would be unsafe.
    #[error("connection option \"{keyword}\" ({origin}) is not supported")]
    UnsupportedKeyword {
        /// The keyword.
        keyword: &'static str,
        /// Where it was set.
        origin: Origin,
        /// What would be lost by ignoring it.
        reason: &'static str,
    },
    /// A known keyword with a value out of its range.
    #[error("invalid value for connection option \"{keyword}\" ({origin}): {problem}")]
    InvalidValue {
        /// The keyword.
        keyword: &'static str,
        /// Where it was set.
        origin: Origin,
        /// What was expected.
        problem: String,
    },
    /// A certificate or key file is missing, unreadable or too readable.
    #[error("{what} \"{path}\": {problem}")]
    TlsFile {
        /// `root certificate file`, `certificate file` or `private key file`.
        what: &'static str,
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Nobody answered at that address, or the connection broke before the session began.
    #[error("connection to server at {server} failed: {reason}")]
    Unreachable {
        /// `"host" (address), port n` or the socket's path.
        server: String,
        /// The operating system's or the protocol's complaint.
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
    /// The TLS rules of `sslmode` were not met.
    #[error("connection to server at {server} failed: {reason}")]
    Tls {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// What the handshake or the certificate check complained of.
        reason: String,
    },
    /// This side ended the authentication: no password, no channel binding, unknown method.
    #[error("connection to server at {server} failed: {reason}")]
    Authentication {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// Why.
        reason: String,
    },
    /// The server answered with an error.
    #[error("connection to server at {server} failed: {message} (SQLSTATE {})", .sqlstate.code())]
    Refused {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// The server's primary message.
        message: String,
        /// The server's SQLSTATE.
        sqlstate: SqlState,
        /// The server's own hint.
        server_hint: Option<String>,
        /// The error as the driver gave it.
        source: Box<tokio_postgres::Error>,
    },
    /// The server is of another kind than `target_session_attrs` asks for.
    #[error("connection to server at {server} failed: {problem}")]
    WrongSession {
        /// As in [`ConnectError::Unreachable`].
        server: String,
        /// As in `server is in hot standby mode`.
        problem: &'static str,
    },
    /// Several addresses were tried and none would do.
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
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: None }
    }

    pub(super) fn usage_with_hint(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// True for the operator's mistakes: the same string fails again until somebody changes the
    /// string, the files or the variables. False for servers that are away or refuse.
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

    /// The server's SQLSTATE, if a server answered with an error.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Refused { sqlstate, .. } => Some(sqlstate),
            Self::NoneOf { failures } => failures.iter().rev().find_map(Self::sqlstate),
            _ => None,
        }
    }

    /// What the reader may do about it, as a lower-case fragment.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::UnknownKeyword { closest, .. } => Some(match closest {
                Some(closest) => format!("did you mean \"{closest}\"?"),
                None => "the options are those of libpq's connection strings".to_owned(),
            }),
            Self::UnsupportedKeyword { reason, .. } => {
                Some(format!("{reason}: remove the option to connect without"))
            }
            Self::Authentication { reason, .. } if reason.contains("none was given") => {
                hint_for(&SqlState::INVALID_PASSWORD).map(str::to_owned)
            }
            Self::Refused { server_hint, sqlstate, .. } => {
                server_hint.clone().or_else(|| hint_for(sqlstate).map(str::to_owned))
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
        Some("name the certificate authority's file in sslrootcert, or use sslrootcert=system")
    } else if reason.contains("not valid for") {
        Some(
            "the host must be listed in the certificate's subjectAltName; its common name does not count",
        )
    } else if reason.contains("UnsupportedCertVersion") {
        Some("the certificate is of X.509 version 1: make one with extensions (version 3)")
    } else if reason.contains("does not support TLS") {
        Some("set ssl = on in the server's configuration, or use sslmode=prefer")
    } else {
        None
    }
}
