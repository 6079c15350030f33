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
use crate::trouble::told;

/// Nothing from elsewhere, nothing inline.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// Whoever signs in once more pushes the oldest out.
const MOST_SIGNED_IN: usize = 1000;

/// Name of the cookie.
const COOKIE: &str = "pgmill";

/// Who asks, once the guard has let them in.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// As they called themselves when they signed in.
    pub(crate) name: Option<String>,
    /// Stands in every form of theirs.
    pub(crate) csrf: String,
    /// With a token, rather than because nobody is kept out.
    pub(crate) signed_in: bool,
}

struct SignedIn {
    cookie: String,
    who: Who,
}

/// How nobody on the way reads along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Https {
    /// It listens on this machine only.
    None,
    /// The console speaks TLS.
    Own,
    /// A proxy does, and says so with every request.
    OfProxy,
}

/// What the guard knows.
pub(crate) struct Doors {
    tokens: Vec<Token>,
    hosts: Vec<String>,
    https: Https,
    csrf: String,
    signed_in: Mutex<VecDeque<SignedIn>>,
}

/// 244 random bits.
fn random() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

fn equal(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

impl Doors {
    pub(crate) fn new(tokens: Vec<Token>, hosts: Vec<String>, https: Https) -> Self {
        Self { tokens, hosts, https, csrf: random(), signed_in: Mutex::default() }
    }

    pub(crate) fn asks_for_token(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// All are looked at, so that the time tells nothing of the others.
    fn known<'a>(&'a self, secret: &str) -> Option<&'a Token> {
        let fits = |found, token: &'a Token| {
            if equal(secret, &token.secret) { Some(token) } else { found }
        };
        self.tokens.iter().fold(None, fits)
    }

    /// The cookie of somebody who knows a token. Whose it is counts more than what they call themselves.
    pub(crate) fn sign_in(&self, token: &str, name: Option<String>) -> Option<String> {
        let name = self.known(token)?.label.clone().or(name);
        let cookie = random();
        let who = Who { name, csrf: random(), signed_in: true };
        let mut signed_in = self.signed_in.lock().unwrap_or_else(PoisonError::into_inner);
        signed_in.push_back(SignedIn { cookie: cookie.clone(), who });
        if signed_in.len() > MOST_SIGNED_IN {
            signed_in.pop_front();
        }
        Some(cookie)
    }

    pub(crate) fn sign_out(&self, headers: &HeaderMap) {
        let cookie = cookie(headers);
        let mut signed_in = self.signed_in.lock().unwrap_or_else(PoisonError::into_inner);
        signed_in.retain(|it| cookie.is_none_or(|cookie| !equal(cookie, &it.cookie)));
    }

    fn who(&self, headers: &HeaderMap) -> Option<Who> {
        if !self.asks_for_token() {
            return Some(Who { name: None, csrf: self.csrf.clone(), signed_in: false });
        }
        let bearer = text(headers, header::AUTHORIZATION).and_then(|it| it.strip_prefix("Bearer "));
        if let Some(token) = bearer.and_then(|bearer| self.known(bearer)) {
            // For programs: without a cookie there is no CSRF token that a form could bring.
            return Some(Who { name: token.label.clone(), csrf: random(), signed_in: true });
        }
        let cookie = cookie(headers)?;
        let signed_in = self.signed_in.lock().unwrap_or_else(PoisonError::into_inner);
        signed_in.iter().find(|it| equal(cookie, &it.cookie)).map(|it| it.who.clone())
    }

    /// Whether it came over TLS if a proxy has to say so: through each proxy, if there are several.
    fn came_securely(&self, headers: &HeaderMap) -> bool {
        let mut said = headers.get_all("x-forwarded-proto").iter().peekable();
        let https = |it: &HeaderValue| {
            let mut all = it.to_str().unwrap_or_default().split(',');
            all.all(|it| it.trim().eq_ignore_ascii_case("https"))
        };
        self.https != Https::OfProxy || (said.peek().is_some() && said.all(https))
    }

    /// Whether a page of this console sent it. Where TLS is asked for, one that came over TLS.
    fn own_page(&self, headers: &HeaderMap, host: &str) -> bool {
        let origin = text(headers, header::ORIGIN).and_then(|it| it.split_once("://"));
        let own = origin.is_some_and(|(scheme, authority)| {
            authority.eq_ignore_ascii_case(host)
                && (self.https == Https::None || scheme.eq_ignore_ascii_case("https"))
        });
        // No page can say otherwise. `none`: no page at all, the user did it.
        let mut site = headers.get_all("sec-fetch-site").iter().map(HeaderValue::as_bytes);
        own && site.all(|it| it == b"same-origin" || it == b"none")
    }

    /// An address cannot be made to point elsewhere, other names can.
    fn knows_host(&self, host: &str) -> bool {
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
pub(crate) fn secure(headers: &HeaderMap) -> bool {
    headers.get(header::ORIGIN).is_some_and(|it| it.as_bytes().starts_with(b"https:"))
}

/// `Set-Cookie` that signs in, or out with an empty value.
pub(crate) fn set_cookie(base: &str, value: &str, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    let age = if value.is_empty() { "; Max-Age=0" } else { "" };
    format!("{COOKIE}={value}; Path={base}/; HttpOnly; SameSite=Strict{age}{secure}")
}

/// The middleware around everything.
pub(crate) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let fixed = path.strip_prefix(app.base.as_str()).is_some_and(|it| it.starts_with("/static/"));
    let mut response = match admit(&app, request) {
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

fn admit(app: &App, mut request: Request) -> Result<Request, Box<Response>> {
    let path = request.uri().path();
    let path = path.strip_prefix(app.base.as_str()).unwrap_or(path);
    let for_program = path.starts_with("/api/");
    let refuse = |status: StatusCode, why: &str, hint: &str| {
        Box::new(if for_program {
            told(status, why, Some(hint))
        } else {
            refusal(status, why, hint)
        })
    };
    let headers = request.headers();
    let host = text(headers, header::HOST).unwrap_or_default();
    if !app.doors.knows_host(host) {
        return Err(refuse(
            StatusCode::FORBIDDEN,
            "this console is not known by that name",
            "pgmill console --allow-host NAME",
        ));
    }
    if !app.doors.came_securely(headers) {
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
            if !app.doors.own_page(headers, host) {
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
    match app.doors.who(headers) {
        Some(who) => {
            request.extensions_mut().insert(who);
        }
        None if open => {}
        None if for_program => {
            let hint = "Authorization: Bearer TOKEN";
            return Err(refuse(StatusCode::UNAUTHORIZED, "a token is asked for", hint));
        }
        None => return Err(Box::new(Redirect::to(&format!("{}/login", app.base)).into_response())),
    }
    Ok(request)
}

/// Text only: whoever is refused here gets nothing of the console.
fn refusal(status: StatusCode, why: &str, hint: &str) -> Response {
    (status, format!("{why}\nhint: {hint}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_point_anywhere_are_refused() {
        let doors = Doors::new(Vec::new(), vec!["console.example".to_owned()], Https::None);
        for host in
            ["localhost", "LOCALHOST:8787", "127.0.0.1:8787", "[::1]:8787", "console.example:443"]
        {
            assert!(doors.knows_host(host), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8787", "[x]"]
        {
            assert!(!doors.knows_host(host), "{host}");
        }
    }

    #[test]
    fn only_the_token_signs_in_and_only_the_cookie_stays() {
        let token = |secret: &str, label: Option<&str>| Token {
            secret: secret.to_owned(),
            label: label.map(str::to_owned),
        };
        let tokens = vec![token("sesame", None), token("simsim", Some("night shift"))];
        let doors = Doors::new(tokens, Vec::new(), Https::None);
        assert_eq!(doors.sign_in("Sesame", None), None);
        let value = doors.sign_in("sesame", Some("ann".to_owned())).unwrap();
        let mut headers = HeaderMap::new();
        assert!(doors.who(&headers).is_none());
        headers.insert(header::COOKIE, format!("a=b; pgmill={value}").parse().unwrap());
        assert_eq!(doors.who(&headers).unwrap().name.as_deref(), Some("ann"));
        doors.sign_out(&headers);
        assert!(doors.who(&headers).is_none());
        let value = doors.sign_in("simsim", Some("ann".to_owned())).unwrap();
        headers.insert(header::COOKIE, format!("pgmill={value}").parse().unwrap());
        assert_eq!(doors.who(&headers).unwrap().name.as_deref(), Some("night shift"));
    }
}
