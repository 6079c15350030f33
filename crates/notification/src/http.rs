//! HTTP POST. Redirects are not followed, because the address of a redirect is chosen by the
//! receiver.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::header::{
    CONTENT_TYPE, DATE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::address;
use crate::error::{SendError, SettingsError, unreadable};
use crate::settings::HttpSettings;
use crate::tls;

/// A message.
pub(crate) struct Request<'a> {
    /// URL of destinations that set none.
    pub(crate) default_url: Option<&'a str>,
    /// Content.
    pub(crate) content: Bytes,
    /// Media type of the content.
    pub(crate) content_type: &'static str,
    /// Id of the message, by which the receiver can recognize a repetition.
    pub(crate) id: Option<&'a str>,
}

/// The parts of a URL.
struct Target {
    encrypted: bool,
    host: String,
    port: u16,
    path: String,
}

impl Target {
    /// Parses a URL. The error does not contain the URL, which may be a secret.
    fn parse(url: &str, allow_plain: bool) -> Result<Self, String> {
        let uri: Uri = url.trim().parse().map_err(|_| "the url is invalid".to_owned())?;
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if allow_plain => false,
            _ => {
                return Err(
                    "the url must begin with https://, or with http:// if allow_private is set"
                        .to_owned(),
                );
            }
        };
        let authority = uri.authority().ok_or("the url has no host")?;
        if authority.as_str().contains('@') {
            return Err(
                "the url has a user name; set the header Authorization in headers_file".to_owned()
            );
        }
        Ok(Self {
            encrypted,
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 }),
            path: uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
        })
    }
}

/// Checks the settings, and reads the files once.
pub(crate) fn check(
    settings: &HttpSettings,
    default_url: Option<&str>,
) -> Result<(), SettingsError> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| SettingsError(unreadable(path, &error)))
    };
    let url = match (&settings.url, &settings.url_file) {
        (Some(url), _) => url.clone(),
        (None, Some(path)) => read(path)?,
        (None, None) => default_url.unwrap_or_default().to_owned(),
    };
    Target::parse(&url, settings.allow_private).map_err(SettingsError)?;
    if let Some(path) = &settings.headers_file {
        parse_headers(&read(path)?).map_err(SettingsError)?;
    }
    if let Some(path) = &settings.routing_key_file {
        read(path)?;
    }
    tls::connector(settings.ca_file.as_deref()).map(drop).map_err(SettingsError)
}

/// Reads a file that contains a secret.
pub(crate) async fn read_secret(path: &Path) -> Result<String, SendError> {
    let text = tokio::fs::read_to_string(path).await;
    text.map(|text| text.trim().to_owned())
        .map_err(|error| SendError::unavailable(unreadable(path, &error)))
}

/// Sends the message.
pub(crate) async fn post(settings: &HttpSettings, request: Request<'_>) -> Result<(), SendError> {
    let url = match (&settings.url, &settings.url_file) {
        (Some(url), _) => url.clone(),
        (None, Some(path)) => read_secret(path).await?,
        (None, None) => request.default_url.unwrap_or_default().to_owned(),
    };
    let target = Target::parse(&url, settings.allow_private).map_err(SendError::unavailable)?;
    let mut headers = match &settings.headers_file {
        Some(path) => parse_headers(&read_secret(path).await?).map_err(SendError::unavailable)?,
        None => HeaderMap::new(),
    };
    let host = HeaderValue::from_str(&host_header(&target))
        .map_err(|_| SendError::unavailable("the host of the url is invalid"))?;
    headers.insert(HOST, host);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(request.content_type));
    let agent = concat!("pgmill/", env!("CARGO_PKG_VERSION"));
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(agent));
    if let Some(Ok(id)) = request.id.map(HeaderValue::from_str) {
        headers.insert(HeaderName::from_static("idempotency-key"), id);
    }
    let mut message = hyper::Request::new(Full::new(request.content));
    *message.method_mut() = Method::POST;
    *message.uri_mut() =
        target.path.parse().map_err(|_| SendError::unavailable("the url is invalid"))?;
    *message.headers_mut() = headers;
    let stream = address::connect(&target.host, target.port, settings.allow_private).await?;
    if target.encrypted {
        let stream = tls::connect(&target.host, stream, settings.ca_file.as_deref()).await?;
        exchange(stream, message, &target.host).await
    } else {
        exchange(stream, message, &target.host).await
    }
}

fn host_header(target: &Target) -> String {
    let usual = if target.encrypted { 443 } else { 80 };
    if target.port == usual {
        target.host.clone()
    } else {
        format!("{}:{}", target.host, target.port)
    }
}

fn parse_headers(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let invalid = || "headers_file has a line that is not \"Name: value\"".to_owned();
        let (name, value) = line.split_once(':').ok_or_else(invalid)?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// Sends the request on a new connection, and reads the head of the answer only.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    message: hyper::Request<Full<Bytes>>,
    host: &str,
) -> Result<(), SendError> {
    let failed = |error: hyper::Error| {
        SendError::unavailable(format!("could not send the request to {host}: {error}"))
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let answer = sender.send_request(message);
    tokio::pin!(answer, connection);
    let response = tokio::select! {
        response = &mut answer => response,
        ended = &mut connection => match ended {
            Ok(()) => answer.await,
            Err(error) => Err(error),
        },
    };
    let response = response.map_err(failed)?;
    evaluate(host, response.status(), response.headers())
}

fn evaluate(host: &str, status: StatusCode, headers: &HeaderMap) -> Result<(), SendError> {
    if status.is_success() {
        return Ok(());
    }
    let message = format!("{host} answered {}", status.as_u16());
    if status.is_redirection() {
        return Err(SendError::rejected(format!("{message}; redirects are not followed")));
    }
    let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    if status.is_client_error() && !later.contains(&status) {
        return Err(SendError::rejected(message));
    }
    Err(SendError::unavailable(message).after(retry_after(headers)))
}

/// Reads the header Retry-After, which has a number of seconds or a date. A date counts from the
/// header Date of the same answer, so the clock of this machine does not matter.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let now = parse_date(headers.get(DATE)?.to_str().ok()?)?;
    Some(Duration::try_from(parse_date(text)?.duration_since(now)).unwrap_or_default())
}

/// Parses a date in one of the three formats of HTTP, which are all in UTC.
fn parse_date(text: &str) -> Option<Timestamp> {
    const FORMATS: [&str; 3] =
        ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];
    let parsed = FORMATS.iter().find_map(|it| DateTime::strptime(it, text.trim()).ok())?;
    parsed.to_zoned(TimeZone::UTC).ok().map(|it| it.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_decides_whether_other_messages_wait() {
        let answer = |status: u16, retry_after: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", HeaderValue::from_static(retry_after));
            evaluate("host", StatusCode::from_u16(status).unwrap(), &headers).err()
        };
        assert!(answer(202, "").is_none());
        for (status, rejected) in
            [(302, true), (400, true), (404, true), (408, false), (500, false)]
        {
            let error = answer(status, "").unwrap();
            assert_eq!(error.rejected, rejected, "{error}");
        }
        let limited = answer(429, "120").unwrap();
        assert_eq!(
            (limited.rejected, limited.retry_after),
            (false, Some(Duration::from_secs(120)))
        );
    }

    #[test]
    fn a_date_in_retry_after_counts_from_the_date_of_the_answer() {
        let wait = |retry_after: &'static str, date: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(retry_after));
            if let Some(date) = date {
                headers.insert(DATE, HeaderValue::from_static(date));
            }
            let error = evaluate("host", StatusCode::SERVICE_UNAVAILABLE, &headers).unwrap_err();
            error.retry_after.map(|wait| wait.as_secs())
        };
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(wait("Sun, 06 Nov 1994 09:00:07 GMT", date), Some(630));
        assert_eq!(wait("Sunday, 06-Nov-94 08:50:37 GMT", date), Some(60));
        assert_eq!(wait("Sun Nov  6 08:49:38 1994", date), Some(1));
        assert_eq!(wait("Sat, 05 Nov 1994 09:00:07 GMT", date), Some(0), "in the past: at once");
        assert_eq!(wait("Sun, 06 Nov 1994 09:00:07 GMT", None), None, "no clock to compare with");
        assert_eq!(wait("soon", date), None);
        assert_eq!(wait("Mon, 06 Nov 1994 09:00:07 GMT", date), None, "not a Monday");
    }

    #[test]
    fn a_url_is_split_and_its_errors_do_not_contain_it() {
        let target =
            Target::parse("https://hooks.example.com/services/T0/B0?x=1\n", false).unwrap();
        assert_eq!((target.host.as_str(), target.port), ("hooks.example.com", 443));
        assert_eq!(target.path, "/services/T0/B0?x=1");
        assert_eq!(host_header(&Target::parse("http://[::1]:81", true).unwrap()), "[::1]:81");
        let error = Target::parse("https://exa mple/secret", false).err().unwrap();
        assert!(!error.contains("secret"), "{error}");
    }
}
