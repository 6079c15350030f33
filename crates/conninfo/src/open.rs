//! Tries hosts and addresses, with and without TLS, until one accepts a connection.
//!
//! | step | file |
//! |---|---|
//! | one attempt at one address, up to the end of authentication | `attempt` |
//! | connection types of the driver, first query on a new connection | `connection` |
//! | check of the session's `search_path`, which a pooler may drop | `search_path` |
//! | check whether the server is of the requested kind | `server_kind` |
//! | connections of a deadpool pool, opened in the same way | `pool` |

pub(crate) mod attempt;
pub(crate) mod connection;
pub(crate) mod pool;
pub(crate) mod search_path;
pub(crate) mod server_kind;

use crate::client::Client;
use crate::connection_target::ConnectionTarget;
use crate::endpoint::Endpoint;
use crate::error::ConnectError;
use crate::open::attempt::{Dial, attempt, from_driver, within};
use crate::open::connection::{Connection, Opened};
use crate::target_session_attrs::TargetSessionAttrs;
use crate::tls::{SslMode, idle_connector};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rand::seq::SliceRandom;
use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::sleep;
use tokio_postgres::CancelToken;
use tokio_postgres::config::SslMode as DriverSslMode;
use tokio_postgres::error::SqlState;

/// Time to wait for a host that does not answer before the next host is tried concurrently.
const STAGGER: Duration = Duration::from_secs(1);

/// Time after which a host that was unreachable or of the wrong kind is tried again while another
/// host has not answered yet. A standby may have become the primary meanwhile.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Opens a connection to the first host that answers and is of the requested kind.
///
/// If a host is unreachable, starting up or of the wrong kind, the next host is tried. A refusal
/// ends the search, as in libpq. Each address has `connect_timeout` to complete. Unlike in libpq, a
/// host that does not answer does not delay the others: after a second, the next host is tried
/// concurrently. So a machine that is frozen or cut off delays a failover by a second instead of
/// `connect_timeout`.
///
/// Reads the files with the connection string, the service and the password again, because a password
/// may have changed since `target` was resolved.
///
/// # Errors
/// Returns a usage error for these files and for those of certificates, or else the error of the server or
/// the network. A program that has connected before tries again also after a usage error: somebody may be
/// replacing the file.
pub async fn open(
    target: &ConnectionTarget,
) -> Result<(tokio_postgres::Client, Connection), ConnectError> {
    let (client, connection) = open_session(target).await?;
    Ok((client.into_session(), connection))
}

/// As [`open`], for a program whose target has a safe search_path, and whose statements may have a transaction each:
/// accepts a session in which a pooler has dropped the search_path.
///
/// # Errors
/// As [`open`].
pub async fn open_client(target: &ConnectionTarget) -> Result<(Client, Connection), ConnectError> {
    open_session(&target.with_own_transactions()).await
}

async fn open_session(target: &ConnectionTarget) -> Result<(Client, Connection), ConnectError> {
    let target = &target.current()?;
    let mut failures = Vec::new();
    for session_attrs in target.session_attrs.passes() {
        let mut endpoints: Vec<&Endpoint> = target.endpoints.iter().collect();
        if target.shuffled {
            endpoints.shuffle(&mut rand::rng());
        }
        match open_any(target, &endpoints, *session_attrs).await {
            Ok(opened) => return Ok(opened),
            Err(EndpointFailure { errors, next }) => {
                failures.extend(errors);
                if !next {
                    break;
                }
            }
        }
    }
    Err(combined(failures))
}

/// Makes one pass over the hosts. The pass ends when a host accepts the connection, when a host
/// refuses it, or when no host is left that may still answer.
async fn open_any(
    target: &ConnectionTarget,
    endpoints: &[&Endpoint],
    session_attrs: TargetSessionAttrs,
) -> Result<(Client, Connection), EndpointFailure> {
    let mut failures: Vec<Vec<ConnectError>> = endpoints.iter().map(|_| Vec::new()).collect();
    let mut attempts = FuturesUnordered::new();
    let attempt = |index: usize, wait: Duration| async move {
        if !wait.is_zero() {
            sleep(wait).await;
        }
        (index, open_endpoint(target, endpoints[index], session_attrs).await)
    };
    let mut untried = 0..endpoints.len();
    // Hosts whose first attempt has not ended.
    let mut silent = HashSet::new();
    let mut refused = false;
    let mut next_host = true;
    loop {
        if std::mem::take(&mut next_host)
            && !refused
            && let Some(index) = untried.next()
        {
            silent.insert(index);
            attempts.push(attempt(index, Duration::ZERO));
        }
        if silent.is_empty() {
            break;
        }
        tokio::select! {
            Some((index, ended)) = attempts.next() => {
                silent.remove(&index);
                let failure = match ended {
                    Ok(opened) => return Ok(opened),
                    Err(failure) => failure,
                };
                failures[index] = failure.errors;
                refused |= !failure.next;
                next_host = true;
                if failure.next && !(silent.is_empty() && untried.is_empty()) {
                    attempts.push(attempt(index, ASK_AGAIN));
                }
            }
            () = sleep(STAGGER), if !untried.is_empty() && !refused => next_host = true,
        }
    }
    Err(EndpointFailure { errors: failures.into_iter().flatten().collect(), next: !refused })
}

fn combined(mut failures: Vec<ConnectError>) -> ConnectError {
    match failures.len() {
        1 => failures.remove(0),
        _ => ConnectError::NoneOf { failures },
    }
}

/// Asks the server to cancel the current query of the connection of `token`, under the TLS rules
/// with which a connection would be opened now, or if they cannot be read, under the last ones known.
///
/// `Ok` means that the request was sent. The server does not report whether the request arrived in
/// time. If it did, the query ends with SQLSTATE 57014.
///
/// # Errors
/// The server is unreachable, or the certificate files are unreadable.
pub async fn cancel(token: &CancelToken, target: &ConnectionTarget) -> Result<(), ConnectError> {
    let current = target.current();
    let target = current.as_ref().unwrap_or(target);
    let without_tls = target.tls.mode == SslMode::Disable
        || target.endpoints.iter().all(|endpoint| endpoint.socket_directory().is_some());
    let connector = if without_tls { idle_connector()? } else { target.tls.connector()? };
    let server = target.to_string();
    within(target, &server, async {
        token.cancel_query(connector).await.map_err(|error| from_driver(&server, error))
    })
    .await
}

struct EndpointFailure {
    errors: Vec<ConnectError>,
    /// Whether the next host may be tried.
    next: bool,
}

async fn open_endpoint(
    target: &ConnectionTarget,
    endpoint: &Endpoint,
    session_attrs: TargetSessionAttrs,
) -> Result<(Client, Connection), EndpointFailure> {
    let mut errors = Vec::new();
    let dials = match dials(target, endpoint).await {
        Ok(dials) => dials,
        Err(error) => return Err(EndpointFailure { errors: vec![error], next: true }),
    };
    for dial in dials {
        match open_dial(target, &dial, session_attrs).await {
            Ok(opened) => return Ok(opened),
            Err(error) => {
                let next = tries_next_host(&error);
                errors.push(error);
                if !next {
                    return Err(EndpointFailure { errors, next });
                }
            }
        }
    }
    Err(EndpointFailure { errors, next: true })
}

fn tries_next_host(error: &ConnectError) -> bool {
    match error {
        ConnectError::Unreachable { .. }
        | ConnectError::TimedOut { .. }
        | ConnectError::WrongSession { .. } => true,
        ConnectError::Refused { sqlstate, .. } => *sqlstate == SqlState::CANNOT_CONNECT_NOW,
        _ => false,
    }
}

async fn dials(target: &ConnectionTarget, endpoint: &Endpoint) -> Result<Vec<Dial>, ConnectError> {
    let named = |endpoint: Endpoint| Dial { server: endpoint.to_string(), endpoint };
    let host = match (&endpoint.host, endpoint.address) {
        (Some(host), None) if endpoint.socket_directory().is_none() => host,
        _ => return Ok(vec![named(endpoint.clone())]),
    };
    let server = endpoint.to_string();
    let mut addresses: Vec<IpAddr> = within(target, &server, async {
        let found = tokio::net::lookup_host((host.as_str(), endpoint.port)).await;
        found.map(|found| found.map(|address| address.ip()).collect()).map_err(|error| {
            let reason = format!("could not translate host name to address: {error}");
            ConnectError::Unreachable { server: server.clone(), reason }
        })
    })
    .await?;
    if addresses.is_empty() {
        let reason = "host name has no address".to_owned();
        return Err(ConnectError::Unreachable { server, reason });
    }
    if target.shuffled {
        addresses.shuffle(&mut rand::rng());
    }
    let dial = |ip| named(Endpoint { address: Some(ip), ..endpoint.clone() });
    Ok(addresses.into_iter().map(dial).collect())
}

/// Opens a session at one address, and checks that it is of the requested kind.
async fn open_dial(
    target: &ConnectionTarget,
    dial: &Dial,
    session_attrs: TargetSessionAttrs,
) -> Result<(Client, Connection), ConnectError> {
    let (client, mut connection) = match open_with_tls(target, dial).await {
        // PostgreSQL accepts settings in the start-up packet, a pooler may refuse them.
        Err(error)
            if target.overrides.sends_search_path
                && error.sqlstate() == Some(&SqlState::PROTOCOL_VIOLATION) =>
        {
            let mut silent = target.clone();
            silent.overrides.sends_search_path = false;
            open_with_tls(&silent, dial).await?
        }
        opened => opened?,
    };
    let checked = within(target, &dial.server, async {
        let dropped = search_path::check(target, &dial.server, &client, &mut connection).await?;
        let asked = session_attrs.mismatch(&client, &mut connection).await;
        Ok((dropped, asked.map_err(|error| from_driver(&dial.server, error))?))
    });
    let (dropped, complaint) = checked.await?;
    match complaint {
        None => Ok((Client::new(client, dropped, target.overrides.statement_timeout), connection)),
        Some(problem) => Err(ConnectError::WrongSession { server: dial.server.clone(), problem }),
    }
}

/// Tries TLS and plain text at one address, in the order that `sslmode` requires.
async fn open_with_tls(target: &ConnectionTarget, dial: &Dial) -> Result<Opened, ConnectError> {
    let mode = match dial.endpoint.socket_directory() {
        Some(_) => SslMode::Disable,
        None => target.tls.mode,
    };
    let plain = || attempt(target, dial, DriverSslMode::Disable);
    let offered = || attempt(target, dial, DriverSslMode::Prefer);
    let opened = match mode {
        SslMode::Disable => plain().await,
        SslMode::Allow => match plain().await {
            Err(first) if denied(&first.error) => {
                offered().await.map_err(|second| first.or(second))
            }
            other => other,
        },
        SslMode::Prefer => match offered().await {
            Err(first) if first.tls_begun && (denied(&first.error) || downgrades(&first.error)) => {
                plain().await.map_err(|second| first.or(second))
            }
            other => other,
        },
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
            attempt(target, dial, DriverSslMode::Require).await
        }
    };
    opened.map_err(|failure| failure.error)
}

/// Returns whether the server may still accept the other mode: `pg_hba.conf` can treat TLS and
/// plain text differently.
fn denied(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Refused { sqlstate, .. }
        if *sqlstate == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            || *sqlstate == SqlState::INVALID_PASSWORD)
}

/// Returns whether `prefer` continues without TLS after this error. A failed handshake lets it,
/// unless the only problem is that this program's TLS library cannot read the certificate: libpq
/// would have stayed with TLS.
fn downgrades(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Tls { reason, .. }
        if !["Unsupported", "BadEncoding", "BadDer"].iter().any(|word| reason.contains(word)))
}
