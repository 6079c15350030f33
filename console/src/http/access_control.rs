//! Access rules: tokens, users of a proxy, signed-in sessions, allowed hosts and origins.

use std::collections::VecDeque;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::options::rights::Rights;
use crate::options::{AccessRules, ProxySignIn, Token, UserRule};

/// Maximum number of signed-in sessions, and of users of a proxy; a further one drops the oldest.
const MAX_LOGIN_SESSIONS: usize = 1000;

/// Name of the session cookie.
const COOKIE: &str = "pgmill";

/// The user of an admitted request.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Name of the token, of the user, or the name given at sign-in.
    pub(crate) name: Option<String>,
    /// What the user may do.
    pub(crate) rights: Rights,
    /// CSRF token, part of every form.
    pub(crate) csrf: String,
    /// Signed in with a token, so the user can sign out.
    pub(crate) signed_in: bool,
}

impl Identity {
    fn new(name: Option<String>, rights: Rights, signed_in: bool) -> Self {
        Self { name, rights, csrf: random_secret(), signed_in }
    }
}

struct LoginSession {
    cookie: String,
    identity: Identity,
}

/// Why a request is not admitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// The request names no user, and has no token.
    SignInRequired,
    /// The proxy names a user to whom no rule applies, or names more than one.
    UserRefused(String),
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

/// Tokens, users, allowed hosts and signed-in sessions.
pub(crate) struct AccessControl {
    rules: AccessRules,
    hosts: Vec<String>,
    https: TlsMode,
    csrf: String,
    sessions: Mutex<VecDeque<LoginSession>>,
    /// Users of the proxy, each with a CSRF token.
    proxy_users: Mutex<VecDeque<Identity>>,
}

/// Returns a secret of 244 random bits.
fn random_secret() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

fn equal(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

impl AccessControl {
    pub(crate) fn new(rules: AccessRules, hosts: Vec<String>, https: TlsMode) -> Self {
        Self {
            rules,
            hosts,
            https,
            csrf: random_secret(),
            sessions: Mutex::default(),
            proxy_users: Mutex::default(),
        }
    }

    /// Returns whether users can sign in with a token.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.rules.tokens.is_empty()
    }

    /// Finds the token by its secret. Compares with all tokens, so that the response time reveals
    /// nothing about them.
    fn find_token<'a>(&'a self, secret: &str) -> Option<&'a Token> {
        let fits = |found, token: &'a Token| {
            if equal(secret, &token.secret) { Some(token) } else { found }
        };
        self.rules.tokens.iter().fold(None, fits)
    }

    /// Signs in with a token and returns the session cookie; `None` if the token is invalid. The
    /// name of the token takes precedence over the given name.
    pub(crate) fn sign_in(&self, token: &str, name: Option<String>) -> Option<String> {
        let token = self.find_token(token)?;
        let cookie = random_secret();
        let identity = Identity::new(token.label.clone().or(name), token.rights.clone(), true);
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

    /// Returns the user of a request from this address.
    pub(crate) fn identify(
        &self,
        headers: &HeaderMap,
        from: IpAddr,
    ) -> Result<Identity, NotAdmitted> {
        if !self.rules.require_sign_in() {
            return Ok(Identity {
                csrf: self.csrf.clone(),
                ..Identity::new(None, Rights::default(), false)
            });
        }
        let bearer =
            header_text(headers, header::AUTHORIZATION).and_then(|it| it.strip_prefix("Bearer "));
        if let Some(token) = bearer.and_then(|bearer| self.find_token(bearer)) {
            // The caller is a program. Its requests get a random CSRF token, which no form has, so
            // programs cannot submit forms.
            return Ok(Identity::new(token.label.clone(), token.rights.clone(), true));
        }
        if let Some(cookie) = cookie(headers) {
            let signed_in = self.sessions.lock();
            if let Some(session) = signed_in.iter().find(|it| equal(cookie, &it.cookie)) {
                return Ok(session.identity.clone());
            }
        }
        match &self.rules.proxy {
            Some(proxy) if proxy.addresses.contains(&from) => self.proxy_user(proxy, headers),
            _ => Err(NotAdmitted::SignInRequired),
        }
    }

    /// Returns the user whom the proxy names. The user keeps the CSRF token, so that a form works
    /// that was opened before other requests of the user.
    fn proxy_user(
        &self,
        proxy: &ProxySignIn,
        headers: &HeaderMap,
    ) -> Result<Identity, NotAdmitted> {
        let mut names = headers.get_all(&proxy.user_header).iter();
        let name = match (names.next().map(|it| it.to_str().map(str::trim)), names.next()) {
            (None | Some(Ok("")), None) => return Err(NotAdmitted::SignInRequired),
            (Some(Ok(name)), None) => name,
            // A proxy that adds its header to that of the client would let the client choose.
            _ => return Err(NotAdmitted::UserRefused(proxy.user_header.to_string())),
        };
        let lists = proxy.groups_header.iter().flat_map(|header| headers.get_all(header));
        let groups: Vec<&str> = lists
            .filter_map(|list| list.to_str().ok())
            .flat_map(|list| list.split(',').map(str::trim))
            .collect();
        let fits = |rule: &&UserRule| {
            rule.name.as_deref().is_none_or(|it| it == name)
                && rule.group.as_deref().is_none_or(|it| groups.contains(&it))
        };
        let Some(rule) = proxy.users.iter().find(fits) else {
            return Err(NotAdmitted::UserRefused(name.to_owned()));
        };
        let mut users = self.proxy_users.lock();
        let known = users.iter().find(|it| it.name.as_deref() == Some(name));
        let csrf = known.map(|it| it.csrf.clone());
        let mut identity = Identity::new(Some(name.to_owned()), rule.rights.clone(), false);
        match csrf {
            Some(csrf) => identity.csrf = csrf,
            None => {
                users.push_back(identity.clone());
                if users.len() > MAX_LOGIN_SESSIONS {
                    users.pop_front();
                }
            }
        }
        Ok(identity)
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
        origin.is_some_and(|(scheme, authority)| {
            authority.eq_ignore_ascii_case(host)
                && (self.https == TlsMode::None || scheme.eq_ignore_ascii_case("https"))
        })
    }

    /// Returns whether no page of another site caused the request, as far as the browser tells.
    /// Pages cannot forge the header. Its value `none` means that the user caused the request
    /// without a page.
    pub(crate) fn is_same_site(headers: &HeaderMap) -> bool {
        let mut site = headers.get_all("sec-fetch-site").iter().map(HeaderValue::as_bytes);
        site.all(|it| it == b"same-origin" || it == b"none")
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

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn access(rules: AccessRules) -> AccessControl {
        AccessControl::new(rules, vec!["console.example".to_owned()], TlsMode::None)
    }

    #[test]
    fn unlisted_host_names_are_refused() {
        let access = access(AccessRules::default());
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
            rights: Rights::default(),
        };
        let tokens = vec![token("sesame", None), token("simsim", Some("night shift"))];
        let access = access(AccessRules { tokens, proxy: None });
        assert_eq!(access.sign_in("Sesame", None), None);
        let value = access.sign_in("sesame", Some("ann".to_owned())).unwrap();
        let mut headers = HeaderMap::new();
        assert!(access.identify(&headers, HERE).is_err());
        headers.insert(header::COOKIE, format!("a=b; pgmill={value}").parse().unwrap());
        assert_eq!(access.identify(&headers, HERE).unwrap().name.as_deref(), Some("ann"));
        access.sign_out(&headers);
        assert!(access.identify(&headers, HERE).is_err());
        let value = access.sign_in("simsim", Some("ann".to_owned())).unwrap();
        headers.insert(header::COOKIE, format!("pgmill={value}").parse().unwrap());
        assert_eq!(access.identify(&headers, HERE).unwrap().name.as_deref(), Some("night shift"));
    }

    #[test]
    fn only_the_proxy_can_name_a_user() {
        let rule = |name: Option<&str>, group: Option<&str>, role: &str| UserRule {
            name: name.map(str::to_owned),
            group: group.map(str::to_owned),
            rights: Rights { role: Some(role.to_owned()), ..Rights::default() },
        };
        let users =
            vec![rule(Some("ann"), None, "mill_operator"), rule(None, Some("dba"), "mill_viewer")];
        let user_header = header::HeaderName::from_static("x-forwarded-user");
        let groups_header = Some(header::HeaderName::from_static("x-forwarded-groups"));
        let proxy = ProxySignIn { addresses: vec![HERE], user_header, groups_header, users };
        let access = access(AccessRules { tokens: Vec::new(), proxy: Some(proxy) });
        let role = |headers: &[(&'static str, &'static str)], from: IpAddr| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, HeaderValue::from_static(value));
            }
            access.identify(&map, from).map(|it| it.rights.role.unwrap_or_default())
        };
        let (user, groups) = ("x-forwarded-user", "x-forwarded-groups");
        assert_eq!(role(&[(user, "ann")], HERE), Ok("mill_operator".to_owned()));
        assert_eq!(role(&[(user, "eve"), (groups, "x, dba")], HERE), Ok("mill_viewer".to_owned()));
        let refused = |name: &str| Err(NotAdmitted::UserRefused(name.to_owned()));
        assert_eq!(role(&[(user, "eve"), (groups, "dbas")], HERE), refused("eve"));
        assert_eq!(role(&[(user, "ann"), (user, "eve")], HERE), refused(user));
        let elsewhere = "192.0.2.7".parse().unwrap();
        assert_eq!(role(&[(user, "ann")], elsewhere), Err(NotAdmitted::SignInRequired));
        assert_eq!(role(&[(user, " ")], HERE), Err(NotAdmitted::SignInRequired));
    }
}
