//! A resolved connection target. Safe to print and to log.

use super::endpoint::Endpoint;
use super::target_session_attrs::TargetSessionAttrs;
use super::tls::TlsRules;
use std::fmt;
use std::time::Duration;
use tokio_postgres::config::ChannelBinding;

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Timeouts that detect a dead peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// For one address, from the first packet to the end of authentication; `None` waits forever.
    pub(super) connect_timeout: Option<Duration>,
    /// Maximum time that sent data may stay unacknowledged; zero means the system's default.
    pub(super) tcp_user_timeout: Duration,
    pub(super) keepalives: bool,
    pub(super) keepalives_idle: Duration,
    pub(super) keepalives_interval: Duration,
    pub(super) keepalives_count: u32,
}

/// A resolved connection target.
///
/// `Display` shows `host=… port=… dbname=… user=…`; neither it nor `Debug` shows a password or the
/// text of `options`.
#[derive(Debug, Clone)]
pub struct ConnectionTarget {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) user: String,
    pub(super) dbname: String,
    pub(super) options: Option<Secret>,
    pub(super) application_name: Option<String>,
    pub(super) tls: TlsRules,
    pub(super) channel_binding: ChannelBinding,
    pub(super) session_attrs: TargetSessionAttrs,
    pub(super) shuffled: bool,
    pub(super) timeouts: Timeouts,
    pub(super) password_given_inline: bool,
    pub(super) warnings: Vec<String>,
}

impl ConnectionTarget {
    /// The login role.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database name.
    pub fn dbname(&self) -> &str {
        &self.dbname
    }

    /// The `application_name` that the user set, or the last one given to
    /// [`ConnectionTarget::with_application_name`].
    pub fn application_name(&self) -> Option<&str> {
        self.application_name.as_deref()
    }

    /// True if the connection string itself contained a password. In a command line every user of
    /// the machine can read it.
    pub fn password_given_inline(&self) -> bool {
        self.password_given_inline
    }

    /// Warnings about ignored options, for the log. Never contains a secret.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the same target under another `application_name`, regardless of the user's setting.
    #[must_use]
    pub fn with_application_name(&self, name: &str) -> Self {
        Self { application_name: Some(name.to_owned()), ..self.clone() }
    }

    /// Returns the same target with a server setting that applies from the start of the session.
    ///
    /// The setting goes into the start-up packet after the user's own `options`, so that it
    /// overrides them and survives `RESET ALL` and `DISCARD ALL`. An unknown `name` makes the
    /// server refuse the connection.
    #[must_use]
    pub fn with_option(&self, name: &str, value: &str) -> Self {
        let earlier = self.options.as_ref().map_or("", Secret::reveal);
        let space = if earlier.is_empty() { "" } else { " " };
        let options = format!("{earlier}{space}-c {}={}", escape(name), escape(value));
        Self { options: Some(Secret::new(options)), ..self.clone() }
    }
}

/// Escapes white space and backslashes: the server splits `options` at white space, and a backslash
/// escapes the next character.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\\' || c.is_ascii_whitespace() || c == '\x0b' {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

impl fmt::Display for ConnectionTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |part: fn(&Endpoint) -> String| {
            self.endpoints.iter().map(part).collect::<Vec<_>>().join(",")
        };
        let hosts = list(|endpoint| match (&endpoint.host, endpoint.address) {
            (Some(host), _) => host.clone(),
            (None, Some(address)) => address.to_string(),
            (None, None) => String::new(),
        });
        let ports = list(|endpoint| endpoint.port.to_string());
        write!(f, "host={hosts} port={ports} dbname={} user={}", self.dbname, self.user)
    }
}
