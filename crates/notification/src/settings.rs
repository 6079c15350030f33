//! Settings of destinations: `[destinations.NAME]` in the configuration of a worker.

use std::path::PathBuf;

use serde::Deserialize;

/// Settings of a destination.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum DestinationSettings {
    /// POST of the document, or of a template.
    Webhook(HttpSettings),
    /// Incoming webhook of Slack.
    Slack(HttpSettings),
    /// Workflow webhook of Microsoft Teams.
    Teams(HttpSettings),
    /// Events API v2 of `PagerDuty`.
    PagerDuty(HttpSettings),
    /// API v2 of Alertmanager.
    Alertmanager(HttpSettings),
    /// Mail over SMTP.
    Email(EmailSettings),
}

/// Settings of a destination that is reached over HTTP.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    /// The URL, if it contains no secret.
    pub url: Option<String>,
    /// File with the URL.
    pub url_file: Option<PathBuf>,
    /// File with additional headers, one `Name: value` per line.
    pub headers_file: Option<PathBuf>,
    /// `PagerDuty`: file with the routing key.
    pub routing_key_file: Option<PathBuf>,
    /// Webhook: JSON to send instead of the document.
    pub template: Option<String>,
    /// Root certificates in addition to those of the system.
    pub ca_file: Option<PathBuf>,
    /// Whether the receiver may have a private address and may use plain HTTP.
    #[serde(default)]
    pub allow_private: bool,
}

/// Settings of a mail server and of the messages to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmailSettings {
    /// Name of the mail server.
    pub host: String,
    /// Port of the mail server; by default the usual one for `tls`.
    pub port: Option<u16>,
    /// Encryption.
    #[serde(default)]
    pub tls: SmtpTls,
    /// User name.
    pub username: Option<String>,
    /// File with the password.
    pub password_file: Option<PathBuf>,
    /// Sender.
    pub from: String,
    /// Receivers.
    pub to: Vec<String>,
    /// Root certificates in addition to those of the system.
    pub ca_file: Option<PathBuf>,
    /// Whether the mail server may have a private address.
    #[serde(default)]
    pub allow_private: bool,
}

/// Encryption of a session with a mail server.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SmtpTls {
    /// TLS after the command STARTTLS, port 587.
    #[default]
    StartTls,
    /// TLS from the beginning, port 465.
    Tls,
    /// None, port 25.
    None,
}

impl DestinationSettings {
    /// Returns the name of the kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::Slack(_) => "slack",
            Self::Teams(_) => "teams",
            Self::PagerDuty(_) => "pagerduty",
            Self::Alertmanager(_) => "alertmanager",
            Self::Email(_) => "email",
        }
    }

    /// Returns whether the receiver may keep an incident, which a later message resolves. A webhook may
    /// lead to any service.
    #[must_use]
    pub fn keeps_incidents(&self) -> bool {
        match self {
            Self::Webhook(_) | Self::PagerDuty(_) | Self::Alertmanager(_) => true,
            Self::Slack(_) | Self::Teams(_) | Self::Email(_) => false,
        }
    }
}
