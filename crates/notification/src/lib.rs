//! Sends notifications: webhooks, the formats of Slack, Microsoft Teams, `PagerDuty` and
//! Alertmanager, and e-mail.
//!
//! | task | file |
//! |---|---|
//! | settings of destinations in the configuration of a worker | `settings` |
//! | check of the settings; sending a notification once, with a time limit | `destination` |
//! | sending other content over HTTP in the same way, such as traces | `endpoint` |
//! | title, details and lines of a notification for people | `text` |
//! | JSON of a webhook with placeholders for values | `template` |
//! | formats of Slack, Teams, `PagerDuty` and Alertmanager | `shape` |
//! | HTTP POST without redirects, and the errors of its answers | `http` |
//! | e-mail over SMTP, plain or encrypted | `email` |
//! | resolving a host, refusing private addresses, and connecting | `address` |
//! | certificates of the system and of a file; TLS handshake | `tls` |
//! | errors of settings and of messages | `error` |
//!
//! A notification is a JSON document (`mill.notifications`). A [`Destination`] renders it and sends
//! it once. Whether and when a message is sent again is decided by the caller.
//!
//! Secrets (URLs, keys, passwords) are read from their files for each message, so that a changed
//! file needs no restart. No error of this crate contains a secret, or the path of a URL.

mod address;
mod destination;
mod email;
mod endpoint;
mod error;
mod http;
mod settings;
mod shape;
mod template;
mod text;
mod tls;

pub use destination::Destination;
pub use endpoint::Endpoint;
pub use error::{SendError, SettingsError};
pub use settings::{DestinationSettings, EmailSettings, HttpSettings, SmtpTls};
