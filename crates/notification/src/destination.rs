//! A destination with valid settings, to which documents are sent.

use std::time::Duration;

use serde_json::Value;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::email;
use crate::error::{SendError, SettingsError};
use crate::http::{self, Request};
use crate::settings::DestinationSettings;
use crate::shape;
use crate::template::Template;

/// Time limit of one message.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Address of the Events API of `PagerDuty`.
const PAGERDUTY_URL: &str = "https://events.pagerduty.com/v2/enqueue";

/// A destination whose settings are valid.
#[derive(Debug)]
pub struct Destination {
    settings: DestinationSettings,
    template: Option<Template>,
}

impl Destination {
    /// Checks the settings of the destination, and reads its files once.
    ///
    /// # Errors
    /// A setting is missing or invalid, or a file cannot be read.
    pub fn open(settings: DestinationSettings) -> Result<Self, SettingsError> {
        let mut template = None;
        match &settings {
            DestinationSettings::Email(email) => email::check(email)?,
            DestinationSettings::Webhook(http)
            | DestinationSettings::Slack(http)
            | DestinationSettings::Teams(http)
            | DestinationSettings::PagerDuty(http)
            | DestinationSettings::Alertmanager(http) => {
                let pagerduty = settings.kind() == "pagerduty";
                let urls = usize::from(http.url.is_some()) + usize::from(http.url_file.is_some());
                if urls > 1 || urls == 0 && !pagerduty {
                    return Err(SettingsError("needs exactly one of url and url_file".into()));
                }
                if pagerduty != http.routing_key_file.is_some() {
                    return Err(SettingsError(
                        "routing_key_file is required for kind pagerduty, and for no other".into(),
                    ));
                }
                if let Some(text) = &http.template {
                    if settings.kind() != "webhook" {
                        return Err(SettingsError("template is for kind webhook only".into()));
                    }
                    template = Some(Template::parse(text)?);
                }
                http::check(http, pagerduty.then_some(PAGERDUTY_URL))?;
            }
        }
        Ok(Self { settings, template })
    }

    /// Returns the name of the kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.settings.kind()
    }

    /// Returns whether the receiver may keep an incident, which a later message resolves.
    #[must_use]
    pub fn keeps_incidents(&self) -> bool {
        self.settings.keeps_incidents()
    }

    /// Sends the document once, within ten seconds.
    ///
    /// # Errors
    /// The receiver did not confirm the message. The message may have arrived nevertheless.
    pub async fn send(&self, document: &Value) -> Result<(), SendError> {
        timeout(TIMEOUT, self.send_now(document)).await.map_err(late)?
    }

    async fn send_now(&self, document: &Value) -> Result<(), SendError> {
        let (settings, url, body) = match &self.settings {
            DestinationSettings::Email(email) => return email::send(email, document).await,
            DestinationSettings::Webhook(http) => {
                let body = self.template.as_ref().map(|template| template.render(document));
                (http, None, body.unwrap_or_else(|| document.clone()))
            }
            DestinationSettings::Slack(http) => (http, None, shape::slack::body(document)),
            DestinationSettings::Teams(http) => (http, None, shape::teams::body(document)),
            DestinationSettings::Alertmanager(http) => {
                (http, None, shape::alertmanager::body(document))
            }
            DestinationSettings::PagerDuty(http) => {
                let key = match &http.routing_key_file {
                    Some(path) => http::read_secret(path).await?,
                    None => String::new(),
                };
                let Some(body) = shape::pagerduty::body(document, &key) else { return Ok(()) };
                (http, Some(PAGERDUTY_URL), body)
            }
        };
        // A notification has the same id in every message, so that a receiver can recognize a
        // repetition.
        let id = match document["notification_id"].as_i64() {
            Some(id) => format!("notification-{id}"),
            None => document["message_id"].as_str().unwrap_or_default().to_owned(),
        };
        let request = Request {
            default_url: url,
            content: body.to_string().into(),
            content_type: "application/json",
            id: Some(&id),
        };
        http::post(settings, request).await
    }
}

/// Returns the error of a message that was not answered within [`TIMEOUT`].
pub(crate) fn late(_: Elapsed) -> SendError {
    SendError::unavailable(format!("no answer within {} s", TIMEOUT.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::HttpSettings;

    fn problem(kind: fn(HttpSettings) -> DestinationSettings, settings: HttpSettings) -> String {
        Destination::open(kind(settings)).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_destination_is_checked_before_it_is_used() {
        let url = |url: &str| HttpSettings { url: Some(url.to_owned()), ..HttpSettings::default() };
        let webhook = DestinationSettings::Webhook;
        assert_eq!(problem(webhook, url("https://hooks.example.com/x")), "");
        assert!(problem(webhook, HttpSettings::default()).contains("exactly one of url"));
        assert!(problem(webhook, url("http://hooks.example.com/x")).contains("https"));
        assert!(problem(webhook, url("ftp://hooks.example.com/x")).contains("https"));
        assert!(problem(webhook, url("https://user:secret@example.com/")).contains("user name"));
        let plain = HttpSettings { allow_private: true, ..url("http://hooks.example.com/x") };
        assert_eq!(problem(webhook, plain), "");
        let unread =
            HttpSettings { url_file: Some("/nowhere/url".into()), ..HttpSettings::default() };
        assert!(problem(webhook, unread).contains("/nowhere/url"));
        let template = HttpSettings { template: Some("{}".into()), ..url("https://a.example/") };
        assert!(problem(DestinationSettings::Slack, template).contains("webhook only"));
        assert!(
            problem(DestinationSettings::PagerDuty, HttpSettings::default())
                .contains("routing_key_file")
        );
    }
}
