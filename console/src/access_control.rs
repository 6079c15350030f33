//! Who may ask at all: the checks before every handler, and the headers of every answer.
//!
//! A browser is asked by any page that its user looks at. So a request has to name this console as
//! its host (a foreign name that resolves to this address is refused), a POST has to come from a page of
//! this console by its Origin and, where the browser tells it, by Sec-Fetch-Site, and cookies are sent along from such pages only. Forms carry a CSRF
//! token as well.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::Token;
use crate::app::App;
use crate::http_error::json_error;

/// Nothing from elsewhere, nothing inline.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// Whoever signs in once more pushes the oldest out.
const MAX_LOGIN_SESSIONS: usize = 1000;

/// Name of the cookie.
const COOKIE: &str = "pgmill";

/// Who asks, once the guard has let them in.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// As they called themselves when they signed in.
    pub(crate) name: Option<String>,
    /// Stands in every form of theirs.
    pub(crate) csrf: String,
    /// With a token, rather than because nobody is kept out.
    pub(crate) signed_in: bool,
}

struct LoginSession {
    cookie: String,
    identity: Identity,
}

/// How nobody on the way reads along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// It listens on this machine only.
    None,
    /// The console speaks TLS.
    Own,
    /// A proxy does, and says so with every request.
    Proxy,
}

/// What the guard knows.
pub(crate) struct AccessControl {
    tokens: Vec<Token>,
    hosts: Vec<String>,
    https: TlsMode,
    csrf: String,
    sessions: Mutex<VecDeque<LoginSession>>,
}

/// 244 random bits.
fn random_secret() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

fn equal(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

impl AccessControl {
    pub(crate) fn new(tokens: Vec<Token>, hosts: Vec<String>, https: TlsMode) -> Self {
        Self { tokens, hosts, https, csrf: random_secret(), sessions: Mutex::default() }
    }

    pub(crate) fn requires_token(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// All are looked at, so that the time tells nothing of the others.
    fn find_token<'a>(&'a self, secret: &str) -> Option<&'a Token> {
        let fits = |found, token: &'a Token| {
            if equal(secret, &token.secret) { Some(token) } else { found }
        };
        self.tokens.iter().fold(None, fits)
    }

    /// The cookie of somebody who knows a token. Whose it is counts more than what they call themselves.
    pub(crate) fn sign_in(&self, token: &str, name: Option<String>) -> Option<String> {
        let name = self.find_token(token)?.label.clone().or(name);
        let cookie = random_secret();
        let identity = Identity { name, csrf: random_secret(), signed_in: true };
        let mut signed_in = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        signed_in.push_back(LoginSession { cookie: cookie.clone(), identity });
        if signed_in.len() > MAX_LOGIN_SESSIONS {
            signed_in.pop_front();
        }
        Some(cookie)
    }

    pub(crate) fn sign_out(&self, headers: &HeaderMap) {
        let cookie = cookie(headers);
        let mut signed_in = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        signed_in.retain(|it| cookie.is_none_or(|cookie| !equal(cookie, &it.cookie)));
    }

    fn identify(&self, headers: &HeaderMap) -> Option<Identity> {
        if !self.requires_token() {
            return Some(Identity { name: None, csrf: self.csrf.clone(), signed_in: false });
        }
        let bearer = text(headers, header::AUTHORIZATION).and_then(|it| it.strip_prefix("Bearer "));
        if let Some(token) = bearer.and_then(|bearer| self.find_token(bearer)) {
            // For programs: without a cookie there is no CSRF token that a form could bring.
            return Some(Identity {
                name: token.label.clone(),
                csrf: random_secret(),
                signed_in: true,
            });
        }
        let cookie = cookie(headers)?;
        let signed_in = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        signed_in.iter().find(|it| equal(cookie, &it.cookie)).map(|it| it.identity.clone())
    }

    /// Whether it came over TLS if a proxy has to say so: through each proxy, if there are several.
    fn arrived_over_tls(&self, headers: &HeaderMap) -> bool {
        let mut protocols = headers.get_all("x-forwarded-proto").iter().peekable();
        let https = |it: &HeaderValue| {
            let mut all = it.to_str().unwrap_or_default().split(',');
            all.all(|it| it.trim().eq_ignore_ascii_case("https"))
        };
        self.https != TlsMode::Proxy || (protocols.peek().is_some() && protocols.all(https))
    }

    /// Whether a page of this console sent it. Where TLS is asked for, one that came over TLS.
    fn is_same_origin(&self, headers: &HeaderMap, host: &str) -> bool {
        let origin = text(headers, header::ORIGIN).and_then(|it| it.split_once("://"));
        let own = origin.is_some_and(|(scheme, authority)| {
            authority.eq_ignore_ascii_case(host)
                && (self.https == TlsMode::None || scheme.eq_ignore_ascii_case("https"))
        });
        // No page can say otherwise. `none`: no page at all, the user did it.
        let mut site = headers.get_all("sec-fetch-site").iter().map(HeaderValue::as_bytes);
        own && site.all(|it| it == b"same-origin" || it == b"none")
    }

    /// An address cannot be made to point elsewhere, other names can.
    fn is_allowed_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok()
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let pairs = text(headers, header::COOKIE)?.split(';').map(str::trim);
    pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == COOKIE).map(|it| it.1)
}

/// Whether a cookie for who sent this form is for HTTPS alone. Where TLS is asked for, every form is from there.
pub(crate) fn is_https(headers: &HeaderMap) -> bool {
    headers.get(header::ORIGIN).is_some_and(|it| it.as_bytes().starts_with(b"https:"))
}

/// `Set-Cookie` that signs in, or out with an empty value.
pub(crate) fn set_cookie(base: &str, value: &str, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    let age = if value.is_empty() { "; Max-Age=0" } else { "" };
    format!("{COOKIE}={value}; Path={base}/; HttpOnly; SameSite=Strict{age}{secure}")
}

/// The middleware around everything.
pub(crate) async fn enforce(State(app): State<App>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let fixed = path.strip_prefix(app.base.as_str()).is_some_and(|it| it.starts_with("/static/"));
    let mut response = match authorize(&app, request) {
        Ok(request) => next.run(request).await,
        Err(response) => *response,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // Not no-referrer: with that, browsers leave the origin out of a POST.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !fixed {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

fn authorize(app: &App, mut request: Request) -> Result<Request, Box<Response>> {
    let path = request.uri().path();
    let path = path.strip_prefix(app.base.as_str()).unwrap_or(path);
    let is_api = path.starts_with("/api/");
    let refuse = |status: StatusCode, why: &str, hint: &str| {
        Box::new(if is_api {
            json_error(status, why, Some(hint))
        } else {
            plain_refusal(status, why, hint)
        })
    };
    let headers = request.headers();
    let host = text(headers, header::HOST).unwrap_or_default();
    if !app.access.is_allowed_host(host) {
        return Err(refuse(
            StatusCode::FORBIDDEN,
            "this console is not known by that name",
            "pgmill console --allow-host NAME",
        ));
    }
    if !app.access.arrived_over_tls(headers) {
        return Err(refuse(
            StatusCode::FORBIDDEN,
            "this did not come over TLS",
            "ask the proxy by https; it has to send X-Forwarded-Proto: https along",
        ));
    }
    if request.uri().query().is_some_and(|it| it.contains("%00")) {
        let why = "no text of the database has a NUL in it";
        return Err(refuse(StatusCode::BAD_REQUEST, why, "leave out %00"));
    }
    match *request.method() {
        Method::GET | Method::HEAD => {}
        Method::POST => {
            if !app.access.is_same_origin(headers, host) {
                return Err(refuse(
                    StatusCode::FORBIDDEN,
                    "this was not sent from a page of this console",
                    "go back and reload",
                ));
            }
        }
        _ => {
            let why = format!("there is no {} here", request.method());
            return Err(refuse(
                StatusCode::METHOD_NOT_ALLOWED,
                &why,
                "GET looks, forms act by POST",
            ));
        }
    }
    let open = path.starts_with("/static/") || path == "/login" || path == "/livez";
    match app.access.identify(headers) {
        Some(identity) => {
            request.extensions_mut().insert(identity);
        }
        None if open => {}
        None if is_api => {
            let hint = "Authorization: Bearer TOKEN";
            return Err(refuse(StatusCode::UNAUTHORIZED, "a token is asked for", hint));
        }
        None => return Err(Box::new(Redirect::to(&format!("{}/login", app.base)).into_response())),
    }
    Ok(request)
}

/// Text only: whoever is refused here gets nothing of the console.
fn plain_refusal(status: StatusCode, why: &str, hint: &str) -> Response {
    (status, format!("{why}\nhint: {hint}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_point_anywhere_are_refused() {
        let access =
            AccessControl::new(Vec::new(), vec!["console.example".to_owned()], TlsMode::None);
        for host in
            ["localhost", "LOCALHOST:8787", "127.0.0.1:8787", "[::1]:8787", "console.example:443"]
        {
            assert!(access.is_allowed_host(host), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8787", "[x]"]
        {
            assert!(!access.is_allowed_host(host), "{host}");
        }
    }

    #[test]
    fn only_the_token_signs_in_and_only_the_cookie_stays() {
        let token = |secret: &str, label: Option<&str>| Token {
            secret: secret.to_owned(),
            label: label.map(str::to_owned),
        };
        let tokens = vec![token("sesame", None), token("simsim", Some("night shift"))];
        let access = AccessControl::new(tokens, Vec::new(), TlsMode::None);
        assert_eq!(access.sign_in("Sesame", None), None);
        let value = access.sign_in("sesame", Some("ann".to_owned())).unwrap();
        let mut headers = HeaderMap::new();
        assert!(access.identify(&headers).is_none());
        headers.insert(header::COOKIE, format!("a=b; pgmill={value}").parse().unwrap());
        assert_eq!(access.identify(&headers).unwrap().name.as_deref(), Some("ann"));
        access.sign_out(&headers);
        assert!(access.identify(&headers).is_none());
        let value = access.sign_in("simsim", Some("ann".to_owned())).unwrap();
        headers.insert(header::COOKIE, format!("pgmill={value}").parse().unwrap());
        assert_eq!(access.identify(&headers).unwrap().name.as_deref(), Some("night shift"));
    }
}
