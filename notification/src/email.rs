//! E-mail over SMTP.

use std::time::Duration;

use lettre::message::header::ContentType;
use lettre::message::{Mailbox, MessageBuilder};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::transport::smtp::{self, AsyncSmtpTransport};
use lettre::{AsyncTransport, Message, Tokio1Executor};
use serde_json::Value;

use crate::error::{SendError, SettingsError};
use crate::settings::{EmailSettings, SmtpTls};
use crate::{address, http, text};

/// Time limit of each command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(8);

/// Checks the settings, and reads the files once.
pub(crate) fn check(settings: &EmailSettings) -> Result<(), SettingsError> {
    if settings.to.is_empty() {
        return Err(SettingsError("to is empty".to_owned()));
    }
    if settings.username.is_some() != settings.password_file.is_some() {
        return Err(SettingsError("username and password_file belong together".to_owned()));
    }
    if settings.tls == SmtpTls::None && settings.username.is_some() {
        return Err(SettingsError("a password requires tls = \"starttls\" or \"tls\"".to_owned()));
    }
    for path in settings.password_file.iter().chain(&settings.ca_file) {
        std::fs::read(path).map_err(|error| {
            SettingsError(format!("could not read {}: {error}", path.display()))
        })?;
    }
    envelope(settings).map(drop).map_err(SettingsError)
}

/// Returns a message with sender and receivers.
fn envelope(settings: &EmailSettings) -> Result<MessageBuilder, String> {
    let mailbox = |text: &str| {
        text.parse::<Mailbox>().map_err(|error| format!("invalid address \"{text}\": {error}"))
    };
    let mut message = Message::builder().from(mailbox(&settings.from)?);
    for to in &settings.to {
        message = message.to(mailbox(to)?);
    }
    Ok(message)
}

/// Sends the document as plain text.
pub(crate) async fn send(settings: &EmailSettings, document: &Value) -> Result<(), SendError> {
    let id = document["message_id"].as_str().unwrap_or_default();
    let message = envelope(settings)
        .map_err(SendError::unavailable)?
        .subject(format!("[pgmill] {}", text::title(document)))
        .message_id(Some(format!("<{id}@pgmill>")))
        .header(ContentType::TEXT_PLAIN)
        .body(text::body(document))
        .map_err(|error| SendError::rejected(format!("could not build the mail: {error}")))?;
    let transport = transport(settings).await?;
    match transport.send(message).await {
        Ok(_) => Ok(()),
        Err(error) => Err(describe(&settings.host, &error)),
    }
}

async fn transport(
    settings: &EmailSettings,
) -> Result<AsyncSmtpTransport<Tokio1Executor>, SendError> {
    let EmailSettings { host, .. } = settings;
    let port = settings.port.unwrap_or(match settings.tls {
        SmtpTls::StartTls => 587,
        SmtpTls::Tls => 465,
        SmtpTls::None => 25,
    });
    // Connects to the checked address; the certificate still has to be that of the host.
    let checked = address::resolve(host, port, settings.allow_private).await?;
    let tls = match settings.tls {
        SmtpTls::None => Tls::None,
        SmtpTls::StartTls => Tls::Required(parameters(settings).await?),
        SmtpTls::Tls => Tls::Wrapper(parameters(settings).await?),
    };
    let address = checked[0].ip().to_string();
    let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(address)
        .port(port)
        .tls(tls)
        .timeout(Some(COMMAND_TIMEOUT));
    if let (Some(user), Some(path)) = (&settings.username, &settings.password_file) {
        let password = http::read_secret(path).await?;
        builder = builder.credentials(Credentials::new(user.clone(), password));
    }
    Ok(builder.build())
}

async fn parameters(settings: &EmailSettings) -> Result<TlsParameters, SendError> {
    let failed = |error: smtp::Error| SendError::unavailable(format!("TLS settings: {error}"));
    let mut builder = TlsParameters::builder(settings.host.clone());
    if let Some(path) = &settings.ca_file {
        let pem = http::read_secret(path).await?;
        builder =
            builder.add_root_certificate(Certificate::from_pem(pem.as_bytes()).map_err(failed)?);
    }
    builder.build_rustls().map_err(failed)
}

/// A permanent answer refuses this message, except during authentication.
fn describe(host: &str, error: &smtp::Error) -> SendError {
    let mut message = format!("mail server {host}: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        message = format!("{message}: {inner}");
        cause = inner.source();
    }
    let code = error.status().map(u16::from);
    if error.is_permanent() && !matches!(code, Some(530 | 534 | 535 | 538)) {
        SendError::rejected(message)
    } else {
        SendError::unavailable(message)
    }
}
