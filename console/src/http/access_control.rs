//! Access rules: tokens, signed-in sessions, allowed hosts and origins.

use std::collections::VecDeque;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::options::Token;

/// Maximum number of signed-in sessions; a further sign-in drops the oldest session.
const MAX_LOGIN_SESSIONS: usize = 1000;

/// Name of the session cookie.
const COOKIE: &str = "pgmill";

/// The user of an admitted request.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Name of the token, or the name given at sign-in.
    pub(crate) name: Option<String>,
    /// CSRF token, part of every form.
    pub(crate) csrf: String,
    /// Signed in with a token; false if the console requires none.
    pub(crate) signed_in: bool,
}

struct LoginSession {
    cookie: String,
    identity: Identity,
}

/// Place where TLS is terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// No TLS: the console listens on a loopback address only.
    None,
    /// The console terminates TLS.
    Own,
    /// A proxy terminates TLS and sets X-Forwarded-Proto on every request.
    Proxy,
}

/// Tokens, allowed hosts and signed-in sessions.
pub(crate) struct AccessControl {
    tokens: Vec<Token>,
    hosts: Vec<String>,
    https: TlsMode,
    csrf: String,
    sessions: Mutex<VecDeque<LoginSession>>,
}

/// Returns a secret of 244 random bits.
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

    /// Finds the token by its secret. Compares with all tokens, so that the response time reveals
    /// nothing about them.
    fn find_token<'a>(&'a self, secret: &str) -> Option<&'a Token> {
        let fits = |found, token: &'a Token| {
            if equal(secret, &token.secret) { Some(token) } else { found }
        };
        self.tokens.iter().fold(None, fits)
    }

    /// Signs in with a token and returns the session cookie; `None` if the token is invalid. The
    /// name of the token takes precedence over the given name.
    pub(crate) fn sign_in(&self, token: &str, name: Option<String>) -> Option<String> {
        let name = self.find_token(token)?.label.clone().or(name);
        let cookie = random_secret();
        let identity = Identity { name, csrf: random_secret(), signed_in: true };
        let mut signed_in = self.sessions.lock();
        signed_in.push_back(LoginSession { cookie: cookie.clone(), identity });
        if signed_in.len() > MAX_LOGIN_SESSIONS {
            signed_in.pop_front();
        }
        Some(cookie)
    }

    pub(crate) fn sign_out(&self, headers: &HeaderMap) {
        let cookie = cookie(headers);
        let mut signed_in = self.sessions.lock();
        signed_in.retain(|it| cookie.is_none_or(|cookie| !equal(cookie, &it.cookie)));
    }

    pub(crate) fn identify(&self, headers: &HeaderMap) -> Option<Identity> {
        if !self.requires_token() {
            return Some(Identity { name: None, csrf: self.csrf.clone(), signed_in: false });
        }
        let bearer =
            header_text(headers, header::AUTHORIZATION).and_then(|it| it.strip_prefix("Bearer "));
        if let Some(token) = bearer.and_then(|bearer| self.find_token(bearer)) {
            // The caller is a program. Its requests get a random CSRF token, which no form has, so
            // programs cannot submit forms.
            return Some(Identity {
                name: token.label.clone(),
                csrf: random_secret(),
                signed_in: true,
            });
        }
        let cookie = cookie(headers)?;
        let signed_in = self.sessions.lock();
        signed_in.iter().find(|it| equal(cookie, &it.cookie)).map(|it| it.identity.clone())
    }

    /// Returns whether the request came over TLS, if a proxy terminates TLS. All values of
    /// X-Forwarded-Proto must be https, in case of several proxies.
    pub(crate) fn arrived_over_tls(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all("x-forwarded-proto").iter().peekable();
        let https = |it: &HeaderValue| {
            let mut all = it.to_str().unwrap_or_default().split(',');
            all.all(|it| it.trim().eq_ignore_ascii_case("https"))
        };
        self.https != TlsMode::Proxy || (values.peek().is_some() && values.all(https))
    }

    /// Returns whether a page of this console sent the request; with TLS, the page must be https.
    pub(crate) fn is_same_origin(&self, headers: &HeaderMap, host: &str) -> bool {
        let origin = header_text(headers, header::ORIGIN).and_then(|it| it.split_once("://"));
        let own = origin.is_some_and(|(scheme, authority)| {
            authority.eq_ignore_ascii_case(host)
                && (self.https == TlsMode::None || scheme.eq_ignore_ascii_case("https"))
        });
        // Pages cannot forge this header. Its value `none` means that the user caused the request
        // without a page.
        let mut site = headers.get_all("sec-fetch-site").iter().map(HeaderValue::as_bytes);
        own && site.all(|it| it == b"same-origin" || it == b"none")
    }

    /// Returns whether the Host header is acceptable. Addresses always are, because DNS cannot
    /// redirect them; other names must be listed.
    pub(crate) fn is_allowed_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok()
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Returns the value of a header; `None` unless it is visible ASCII.
pub(crate) fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let pairs = header_text(headers, header::COOKIE)?.split(';').map(str::trim);
    pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == COOKIE).map(|it| it.1)
}

/// Returns whether the sign-in form came from an https page. Then the cookie must be `Secure`. With
/// TLS, every form comes from an https page.
pub(crate) fn is_https(headers: &HeaderMap) -> bool {
    headers.get(header::ORIGIN).is_some_and(|it| it.as_bytes().starts_with(b"https:"))
}

/// Returns the `Set-Cookie` value that signs in; an empty `value` signs out.
pub(crate) fn set_cookie(base: &str, value: &str, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    let age = if value.is_empty() { "; Max-Age=0" } else { "" };
    format!("{COOKIE}={value}; Path={base}/; HttpOnly; SameSite=Strict{age}{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_host_names_are_refused() {
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
    fn a_token_signs_in_and_the_cookie_identifies_the_session() {
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
