//! E-mail over SMTP.

use std::net::SocketAddr;

use lettre::Message;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, MessageBuilder};
use lettre::transport::smtp;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use serde_json::Value;

use crate::error::{SendError, SettingsError, unreadable};
use crate::settings::{EmailSettings, SmtpTls};
use crate::{address, http, text};

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
        std::fs::read(path).map_err(|error| SettingsError(unreadable(path, &error)))?;
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
    let port = settings.port.unwrap_or(match settings.tls {
        SmtpTls::StartTls => 587,
        SmtpTls::Tls => 465,
        SmtpTls::None => 25,
    });
    let addresses = address::resolve(&settings.host, port, settings.allow_private).await?;
    deliver(settings, &addresses, &message).await
}

/// Sends the message to the first of the checked addresses that accepts a connection. The certificate
/// still has to be that of the host.
async fn deliver(
    settings: &EmailSettings,
    addresses: &[SocketAddr],
    message: &Message,
) -> Result<(), SendError> {
    let failed = |error: smtp::Error| describe(&settings.host, &error);
    let (immediate, starttls) = match settings.tls {
        SmtpTls::None => (None, None),
        SmtpTls::StartTls => (None, Some(parameters(settings).await?)),
        SmtpTls::Tls => (Some(parameters(settings).await?), None),
    };
    let credentials = match (&settings.username, &settings.password_file) {
        (Some(user), Some(path)) => {
            Some(Credentials::new(user.clone(), http::read_secret(path).await?))
        }
        _ => None,
    };
    let (name, limit) = (ClientId::default(), Some(address::time_limit(addresses)));
    let opened = AsyncSmtpConnection::connect_tokio1(addresses, limit, &name, immediate, None);
    let mut session = opened.await.map_err(failed)?;
    if let Some(parameters) = starttls {
        session.starttls(parameters, &name).await.map_err(failed)?;
    }
    if let Some(credentials) = &credentials {
        session.auth(DEFAULT_MECHANISMS, credentials).await.map_err(failed)?;
    }
    session.send(message.envelope(), &message.formatted()).await.map_err(failed)?;
    // The server has accepted the message, so an error at the end of the session does not matter.
    session.abort().await;
    Ok(())
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;

    use super::*;
    use crate::address::tests::SilentAddress;

    /// Accepts one mail, and returns its lines.
    async fn accept_mail(listener: TcpListener) -> Vec<String> {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        stream.write_all(b"220 test\r\n").await.unwrap();
        let (mut lines, mut in_data) = (Vec::new(), false);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            let answer: &[u8] = match line.trim_end() {
                "QUIT" | "" if !in_data => return lines,
                "." => b"250 queued\r\n",
                "DATA" => b"354 go on\r\n",
                _ if in_data => b"",
                _ => b"250 ok\r\n",
            };
            in_data = line.trim_end() == "DATA" || in_data && line.trim_end() != ".";
            stream.write_all(answer).await.unwrap();
            lines.push(line);
        }
    }

    #[tokio::test]
    async fn a_mail_is_sent_to_the_next_address_if_the_first_one_is_silent() {
        let settings = EmailSettings {
            host: "mail.example".to_owned(),
            port: None,
            tls: SmtpTls::None,
            username: None,
            password_file: None,
            from: "mill@example.com".to_owned(),
            to: vec!["ann@example.com".to_owned()],
            ca_file: None,
            allow_private: true,
        };
        let message = envelope(&settings).unwrap().body("a text".to_owned()).unwrap();
        let silent = SilentAddress::new().await;
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [silent.address(), server.local_addr().unwrap()];
        let lines = tokio::select! {
            lines = accept_mail(server) => lines,
            Err(error) = deliver(&settings, &addresses, &message) => panic!("{error}"),
        };
        assert!(lines.contains(&"a text\r\n".to_owned()), "{lines:?}");
    }
}
