//! A resolved connection target. Safe to print and to log.

use crate::endpoint::{Endpoint, ServerAddress};
use crate::error::ConnectError;
use crate::parse::environment::Environment;
use crate::parse::source::ConnectionSource;
use crate::secret::Secret;
use crate::target_session_attrs::TargetSessionAttrs;
use crate::tls::TlsRules;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::ChannelBinding;

/// Timeouts that detect a server that no longer answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// Time limit for one address, from the first packet to the end of authentication; `None` means
    /// no limit.
    pub(crate) connect_timeout: Option<Duration>,
    /// Maximum time that sent data may stay unacknowledged; zero means the system's default.
    pub(crate) tcp_user_timeout: Duration,
    pub(crate) keepalives: bool,
    pub(crate) keepalives_idle: Duration,
    pub(crate) keepalives_interval: Duration,
    pub(crate) keepalives_count: u32,
}

/// Where the settings of a target come from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) given: Option<ConnectionSource>,
    pub(crate) environment: Environment,
}

/// What this program sets in place of the user's settings, or after them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) options: Option<Secret>,
    pub(crate) application_name: Option<String>,
    /// Whether the session must not resolve names to objects of other roles.
    pub(crate) safe_search_path: bool,
    /// Whether each statement can have a transaction of its own, if a pooler has dropped that search_path.
    pub(crate) own_transactions: bool,
    /// Whether the start-up packet may ask for that search_path; a pooler may refuse such a packet.
    pub(crate) sends_search_path: bool,
    /// `statement_timeout` of sessions for which the user has set none.
    pub(crate) statement_timeout: Option<&'static str>,
}

/// A resolved connection target.
///
/// The values are those of the time at which the target was resolved. [`open`](crate::open()) reads all
/// files again, so that each new session has the current user and password.
///
/// `Display` shows `host=… port=… dbname=… user=…`. Neither `Display` nor `Debug` shows a password
/// or the text of `options`.
#[derive(Debug, Clone)]
pub struct ConnectionTarget {
    pub(crate) source: Arc<Source>,
    pub(crate) overrides: Overrides,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) user: String,
    pub(crate) dbname: String,
    pub(crate) options: Option<Secret>,
    pub(crate) application_name: Option<String>,
    pub(crate) tls: TlsRules,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) session_attrs: TargetSessionAttrs,
    pub(crate) shuffled: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) password_given_inline: bool,
    pub(crate) warnings: Vec<String>,
}

impl ConnectionTarget {
    /// Returns the target with the current content of its files: connection string, service file, password
    /// file. The process environment is the same as before.
    ///
    /// # Errors
    /// As [`ConnectionTarget::from_source`].
    pub(crate) fn current(&self) -> Result<Self, ConnectError> {
        let now = Self::resolve_source(Arc::clone(&self.source))?;
        Ok(Self { overrides: self.overrides.clone(), ..now })
    }

    /// Returns the login role of the next session: that of the current content of the files, if it can be read.
    pub fn current_user(&self) -> String {
        self.current().map_or_else(|_| self.user.clone(), |current| current.user)
    }

    /// Returns the login role.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the database name.
    pub fn dbname(&self) -> &str {
        &self.dbname
    }

    /// Returns the address of the server; `None` if the target has several hosts, because a session
    /// may be connected to any of them.
    pub fn server_address(&self) -> Option<ServerAddress> {
        match &self.endpoints[..] {
            [endpoint] => Some(endpoint.server_address()),
            _ => None,
        }
    }

    /// Returns the `application_name` that the user set, or the last one given to
    /// [`ConnectionTarget::with_application_name`].
    pub fn application_name(&self) -> Option<&str> {
        self.overrides.application_name.as_deref().or(self.application_name.as_deref())
    }

    /// Returns whether the connection string itself contained a password. On a command line, every
    /// user of the machine can read such a password.
    pub fn password_given_inline(&self) -> bool {
        self.password_given_inline
    }

    /// Returns warnings about ignored options, for the log. They never contain a secret.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the same target under another `application_name`, regardless of the user's setting.
    #[must_use]
    pub fn with_application_name(&self, name: &str) -> Self {
        let application_name = Some(name.to_owned());
        self.with_overrides(Overrides { application_name, ..self.overrides.clone() })
    }

    /// Returns the same target for sessions that run this project's own statements: their search_path is `pg_catalog,
    /// pg_temp`, whatever the defaults of the role and the database are, so that no statement calls code of
    /// another role.
    ///
    /// A pooler may drop this setting. [`open`](crate::open()) then refuses the session if other roles may create
    /// objects in its search_path; [`open_client`](crate::open_client()) sets it in each transaction.
    #[must_use]
    pub fn with_safe_search_path(&self) -> Self {
        let overrides = self.overrides.clone();
        self.with_overrides(Overrides {
            safe_search_path: true,
            sends_search_path: true,
            ..overrides
        })
    }

    /// Returns the same target for sessions whose statements end after this time, such as `30s`, unless the user's own
    /// `options` have another `statement_timeout`. Needs [`Self::with_safe_search_path`]; a pooler may drop both.
    #[must_use]
    pub fn with_statement_timeout(&self, timeout: &'static str) -> Self {
        let statement_timeout = Some(timeout);
        self.with_overrides(Overrides { statement_timeout, ..self.overrides.clone() })
    }

    pub(crate) fn with_own_transactions(&self) -> Self {
        self.with_overrides(Overrides { own_transactions: true, ..self.overrides.clone() })
    }

    /// Returns the same target with a server setting that applies from the start of the session.
    ///
    /// The setting is sent in the start-up packet, after the user's own `options`. So it overrides
    /// them, and it survives `RESET ALL` and `DISCARD ALL`. If `name` is unknown, the server
    /// refuses the connection.
    #[must_use]
    pub fn with_option(&self, name: &str, value: &str) -> Self {
        let option = Secret::new(format!("-c {}={}", escape(name), escape(value)));
        let options = Secret::joined(self.overrides.options.as_ref(), Some(&option));
        self.with_overrides(Overrides { options, ..self.overrides.clone() })
    }

    /// Returns the text of `options` in the start-up packet.
    pub(crate) fn all_options(&self) -> Option<Secret> {
        Secret::joined(self.options.as_ref(), self.overrides.options.as_ref())
    }

    fn with_overrides(&self, overrides: Overrides) -> Self {
        Self { overrides, ..self.clone() }
    }
}

/// Escapes white space and backslashes. The server splits `options` at white space, and a backslash
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
        let hosts = list(|endpoint| endpoint.name().unwrap_or_default());
        let ports = list(|endpoint| endpoint.port.to_string());
        write!(f, "host={hosts} port={ports} dbname={} user={}", self.dbname, self.user)
    }
}
