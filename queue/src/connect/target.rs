//! Where to connect and how, with everything decided. Safe to print and to log.

use super::endpoint::Endpoint;
use super::target_session_attrs::TargetSessionAttrs;
use super::tls::TlsRules;
use std::fmt;
use std::time::Duration;
use tokio_postgres::config::ChannelBinding;

/// A text that is never shown.
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

/// How a dead peer is noticed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// For one address, from the first packet to the end of authentication; `None` waits forever.
    pub(super) connect_timeout: Option<Duration>,
    /// How long sent data may stay unacknowledged; zero leaves it to the operating system.
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
pub struct Target {
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

impl Target {
    /// The role to log in as.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database to connect to.
    pub fn dbname(&self) -> &str {
        &self.dbname
    }

    /// The `application_name` that the user set, or the last one given to
    /// [`Target::with_application_name`].
    pub fn application_name(&self) -> Option<&str> {
        self.application_name.as_deref()
    }

    /// True if the connection string itself held a password. In a command line every user of the
    /// machine can read it.
    pub fn password_given_inline(&self) -> bool {
        self.password_given_inline
    }

    /// What was ignored and why, for the log. Never contains a secret.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The same target under another `application_name`, whatever the user set.
    #[must_use]
    pub fn with_application_name(&self, name: &str) -> Self {
        Self { application_name: Some(name.to_owned()), ..self.clone() }
    }

    /// The same target with a server setting in force from the start of the session.
    ///
    /// Goes into the start-up packet behind the user's own `options`, so that it wins over them and
    /// survives `RESET ALL` and `DISCARD ALL`. An unknown `name` makes the server refuse the
    /// connection.
    #[must_use]
    pub fn with_option(&self, name: &str, value: &str) -> Self {
        let earlier = self.options.as_ref().map_or("", Secret::reveal);
        let space = if earlier.is_empty() { "" } else { " " };
        let options = format!("{earlier}{space}-c {}={}", escape(name), escape(value));
        Self { options: Some(Secret::new(options)), ..self.clone() }
    }
}

/// The server splits `options` at white space; a backslash takes the next character as it is.
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

impl fmt::Display for Target {
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
