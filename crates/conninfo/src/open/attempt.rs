//! One attempt at one address: the driver's configuration, the TLS connector and the errors.

use crate::connection_target::ConnectionTarget;
use crate::endpoint::Endpoint;
use crate::error::ConnectError;
use crate::open::connection::{Handshake, Opened, Stream};
use crate::secret::Secret;
use crate::tls::idle_connector;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_postgres::config::SslMode as DriverSslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// See [`ConnectionTarget::with_safe_search_path`]. Without `pg_temp` at its end, temporary tables would come first.
const SAFE_SEARCH_PATH: &str = "pg_catalog,pg_temp";

/// An endpoint whose name has been resolved.
pub(crate) struct Dial {
    pub(crate) endpoint: Endpoint,
    /// The server's name in messages.
    pub(crate) server: String,
}

pub(crate) struct Failure {
    pub(crate) error: ConnectError,
    /// Whether the server offered TLS.
    pub(crate) tls_begun: bool,
}

impl Failure {
    /// Returns the more informative of two errors. This is the first error, unless the server
    /// refused the second attempt for another reason than `pg_hba.conf`.
    pub(crate) fn or(self, second: Self) -> Self {
        match &second.error {
            ConnectError::Refused { sqlstate, .. }
                if *sqlstate != SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
            {
                second
            }
            _ => self,
        }
    }
}

/// Opens one socket, with or without TLS, up to the end of authentication.
pub(crate) async fn attempt(
    target: &ConnectionTarget,
    dial: &Dial,
    mode: DriverSslMode,
) -> Result<Opened, Failure> {
    let connector = match mode {
        DriverSslMode::Disable => idle_connector(),
        _ => target.tls.connector(),
    };
    let begun = Arc::new(AtomicBool::new(false));
    let opened = match connector {
        Ok(inner) => {
            let connector = Connector { inner, begun: Arc::clone(&begun) };
            within(target, &dial.server, async {
                let opened = config(target, &dial.endpoint, mode).connect(connector).await;
                opened.map_err(|error| from_driver(&dial.server, error))
            })
            .await
        }
        Err(error) => Err(error),
    };
    opened.map_err(|error| Failure { error, tls_begun: begun.load(Ordering::Relaxed) })
}

/// Limits the time of the whole start-up. The driver's own limit covers only the first packet, but
/// a stopped server accepts the connection and then sends nothing.
pub(crate) async fn within<T>(
    target: &ConnectionTarget,
    server: &str,
    work: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let Some(limit) = target.timeouts.connect_timeout else { return work.await };
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => {
            let server = server.to_owned();
            Err(ConnectError::TimedOut { server, seconds: limit.as_secs() })
        }
    }
}

fn config(target: &ConnectionTarget, endpoint: &Endpoint, mode: DriverSslMode) -> Config {
    let mut config = Config::new();
    config.user(&target.user).dbname(&target.dbname).port(endpoint.port).ssl_mode(mode);
    config.ssl_negotiation(target.tls.negotiation).channel_binding(target.channel_binding);
    match (endpoint.socket_directory(), &endpoint.host, endpoint.address) {
        (Some(directory), _, _) => config.host_path(directory),
        (None, Some(host), Some(address)) if !host.starts_with('/') => {
            config.host(host).hostaddr(address)
        }
        (None, _, Some(address)) => config.host(address.to_string()),
        (None, host, None) => config.host(host.clone().unwrap_or_default()),
    };
    if let Some(password) = &endpoint.password {
        config.password(password.reveal());
    }
    let options = match target.overrides.sends_search_path {
        true => program_options(target),
        false => target.all_options(),
    };
    if let Some(options) = options.as_ref().map(Secret::reveal) {
        config.options(options);
    }
    if let Some(name) = target.application_name() {
        config.application_name(name);
    }
    set_timeouts(&mut config, target);
    config
}

/// Returns the options of sessions that run the programs' own statements. The last option of a name counts.
fn program_options(target: &ConnectionTarget) -> Option<Secret> {
    let timeout = target.overrides.statement_timeout;
    let timeout = timeout.map(|it| Secret::new(format!("-c statement_timeout={it}")));
    // Compiling a statement takes longer than any statement of the programs. Settings such as enable_nestloop = off
    // would have the server compile all of them.
    let own = target.with_option("search_path", SAFE_SEARCH_PATH).with_option("jit", "off");
    Secret::joined(timeout.as_ref(), own.all_options().as_ref())
}

fn set_timeouts(config: &mut Config, target: &ConnectionTarget) {
    let timeouts = &target.timeouts;
    config.keepalives(timeouts.keepalives);
    if let Some(limit) = timeouts.connect_timeout {
        config.connect_timeout(limit);
    }
    // Zero stands for the operating system's default, so the option is not set.
    if !timeouts.tcp_user_timeout.is_zero() {
        config.tcp_user_timeout(timeouts.tcp_user_timeout);
    }
    if !timeouts.keepalives_idle.is_zero() {
        config.keepalives_idle(timeouts.keepalives_idle);
    }
    if !timeouts.keepalives_interval.is_zero() {
        config.keepalives_interval(timeouts.keepalives_interval);
    }
    if timeouts.keepalives_count > 0 {
        config.keepalives_retries(timeouts.keepalives_count);
    }
}

/// Converts a driver error. The driver's error kinds are private, so their texts are compared.
pub(crate) fn from_driver(server: &str, error: tokio_postgres::Error) -> ConnectError {
    let server = server.to_owned();
    if let Some(db) = error.as_db_error() {
        return ConnectError::Refused {
            server,
            message: db.message().to_owned(),
            sqlstate: db.code().clone(),
            server_hint: db.hint().map(str::to_owned),
            source: Box::new(error),
        };
    }
    let kind = error.to_string();
    let reason = error.source().map_or_else(|| kind.clone(), ToString::to_string);
    match kind.as_str() {
        "error performing TLS handshake" => ConnectError::Tls { server, reason },
        "authentication error" => ConnectError::Authentication { server, reason },
        "invalid configuration" if reason == "password missing" => {
            let reason = "the server asks for a password and none was given".to_owned();
            ConnectError::Authentication { server, reason }
        }
        _ => ConnectError::Unreachable { server, reason },
    }
}

/// A TLS connector that records whether the server offered TLS.
#[derive(Clone)]
struct Connector {
    inner: MakeRustlsConnect,
    begun: Arc<AtomicBool>,
}

struct TrackedHandshake {
    inner: Handshake,
    begun: Arc<AtomicBool>,
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Stream;
    type TlsConnect = TrackedHandshake;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<TrackedHandshake, Self::Error> {
        let inner = MakeTlsConnect::<Socket>::make_tls_connect(&mut self.inner, domain)?;
        Ok(TrackedHandshake { inner, begun: Arc::clone(&self.begun) })
    }
}

impl TlsConnect<Socket> for TrackedHandshake {
    type Stream = Stream;
    type Error = <Handshake as TlsConnect<Socket>>::Error;
    type Future = <Handshake as TlsConnect<Socket>>::Future;

    fn connect(self, stream: Socket) -> Self::Future {
        self.begun.store(true, Ordering::Relaxed);
        self.inner.connect(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;

    #[test]
    fn sessions_of_programs_begin_with_their_own_settings() {
        let environment = Environment::from_variables::<&str, &str>([], Some("osuser"));
        let target = ConnectionTarget::resolve(Some("options='-c jit=on'"), &environment).unwrap();
        let options = |target: &ConnectionTarget| {
            let config = config(target, &target.endpoints[0], DriverSslMode::Disable);
            config.get_options().map(str::to_owned)
        };
        assert_eq!(options(&target).as_deref(), Some("-c jit=on"));
        let own = "-c jit=on -c search_path=pg_catalog,pg_temp -c jit=off";
        assert_eq!(options(&target.with_safe_search_path()).as_deref(), Some(own));
        let limited = target.with_safe_search_path().with_statement_timeout("30s");
        let own = format!("-c statement_timeout=30s {own}");
        assert_eq!(options(&limited), Some(own));
    }
}
