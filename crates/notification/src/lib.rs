//! Sends notifications: webhooks, the formats of Slack, Microsoft Teams, `PagerDuty` and
//! Alertmanager, and e-mail.
//!
//! A notification is a JSON document (`mill.notifications`). A [`Destination`] renders it and sends
//! it once, with a time limit. Whether and when a message is sent again is decided by the caller.
//!
//! An [`Endpoint`] takes other content over HTTP in the same way.
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
