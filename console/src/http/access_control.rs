//! Access rules: tokens, users of a proxy, signed-in sessions, allowed hosts and origins.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use axum::http::header::AsHeaderName;
use axum::http::{HeaderMap, HeaderValue, header};
use http_server::{Refusal, RefusalObserver};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::guess_limit::{GuessLimit, TokenRefusal};
use crate::options::rights::Rights;
use crate::options::{AccessRules, ProxySignIn, UserRule};

/// Maximum number of sessions of one token; a further one signs out the oldest of the same token.
const MAX_SESSIONS_OF_TOKEN: usize = 100;

/// Maximum number of users of a proxy with a CSRF token; a further one drops the oldest.
const MAX_PROXY_USERS: usize = 1000;

/// Name of the session cookie.
const COOKIE: &str = "pgmill";

/// Name of the session cookie over https, unless the console has a base path. With this prefix,
/// browsers accept the cookie only from this host over https, so that another host of the same
/// domain cannot replace it and sign the user in as somebody else.
const HOST_COOKIE: &str = "__Host-pgmill";

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
    /// Position of the token with which the user signed in.
    token: usize,
    identity: Identity,
}

/// Why a request is not admitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// The request names no user, and has no token.
    SignInRequired,
    /// The proxy names a user to whom no rule applies, or names more than one. Has the name of the
    /// user, or of the header.
    UserRefused(String),
    /// The client has sent too many wrong tokens, and is locked for this long.
    Locked(Duration),
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
    /// Base path of the console, to which the cookie applies.
    root: String,
    csrf: String,
    sessions: Mutex<VecDeque<LoginSession>>,
    guesses: GuessLimit,
    observer: RefusalObserver,
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
    pub(crate) fn new(
        rules: AccessRules,
        hosts: Vec<String>,
        https: TlsMode,
        root: String,
        observer: RefusalObserver,
    ) -> Self {
        Self {
            rules,
            hosts,
            https,
            root,
            csrf: random_secret(),
            sessions: Mutex::default(),
            guesses: GuessLimit::new(),
            observer,
            proxy_users: Mutex::default(),
        }
    }

    /// Returns whether users can sign in with a token.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.rules.tokens.is_empty()
    }

    /// Finds the token by its secret, and returns its position. Compares with all tokens, so that
    /// the response time reveals nothing about them.
    fn find_token(&self, secret: &str, client: IpAddr) -> Result<usize, TokenRefusal> {
        let find = || {
            let tokens = self.rules.tokens.iter().enumerate();
            tokens.fold(
                None,
                |found, (at, token)| {
                    if equal(secret, &token.secret) { Some(at) } else { found }
                },
            )
        };
        let found = self.guesses.examine((client, secret), Instant::now(), find);
        match found {
            Ok(_) => {}
            Err(TokenRefusal::Wrong) => (self.observer)(Refusal::WrongToken),
            Err(TokenRefusal::Locked(_)) => (self.observer)(Refusal::TokenLimit),
        }
        found
    }

    /// Returns the address of the client whose tokens are counted. A proxy adds the address of its
    /// client at the end of X-Forwarded-For.
    fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let proxy = self.rules.proxy.as_ref();
        if self.https != TlsMode::Proxy && proxy.is_none_or(|it| !it.addresses.contains(&peer)) {
            return peer;
        }
        let forwarded = headers.get_all("x-forwarded-for").iter().next_back();
        let last = forwarded.and_then(|it| it.to_str().ok()?.rsplit(',').next()).map(str::trim);
        last.and_then(|it| {
            it.parse().ok().or_else(|| it.parse().ok().map(|it: SocketAddr| it.ip()))
        })
        .unwrap_or(peer)
    }

    /// Signs in with a token and returns the session cookie. The name of the token takes precedence
    /// over the given name. A sign-in always creates a new session.
    pub(crate) fn sign_in(
        &self,
        secret: &str,
        name: Option<String>,
        (headers, peer): (&HeaderMap, IpAddr),
    ) -> Result<String, TokenRefusal> {
        let at = self.find_token(secret, self.client(headers, peer))?;
        let token = &self.rules.tokens[at];
        let cookie = random_secret();
        let identity = Identity::new(token.label.clone().or(name), token.rights.clone(), true);
        let mut signed_in = self.sessions.lock();
        let mut others = signed_in.iter().enumerate().filter(|(_, it)| it.token == at);
        if let Some((oldest, _)) = others.next()
            && others.count() + 1 >= MAX_SESSIONS_OF_TOKEN
        {
            signed_in.remove(oldest);
        }
        signed_in.push_back(LoginSession { cookie: cookie.clone(), token: at, identity });
        Ok(cookie)
    }

    pub(crate) fn sign_out(&self, headers: &HeaderMap) {
        let mut signed_in = self.sessions.lock();
        signed_in.retain(|it| !self.cookies(headers).any(|cookie| equal(cookie, &it.cookie)));
    }

    /// Returns the `Set-Cookie` value that signs in; an empty `value` signs out.
    pub(crate) fn set_cookie(&self, value: &str, secure: bool) -> String {
        let name = if secure && self.root.is_empty() { HOST_COOKIE } else { COOKIE };
        let secure = if secure { "; Secure" } else { "" };
        let age = if value.is_empty() { "; Max-Age=0" } else { "" };
        format!("{name}={value}; Path={}/; HttpOnly; SameSite=Strict{age}{secure}", self.root)
    }

    /// Returns the values of the session cookies of a request.
    fn cookies<'a>(&self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        let only_host = self.https != TlsMode::None && self.root.is_empty();
        let pairs = header_text(headers, header::COOKIE).unwrap_or_default().split(';');
        pairs.filter_map(|pair| pair.trim().split_once('=')).filter_map(move |(name, value)| {
            (name == HOST_COOKIE || name == COOKIE && !only_host).then_some(value)
        })
    }

    /// Returns the user of a request from this address.
    pub(crate) fn identify(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
    ) -> Result<Identity, NotAdmitted> {
        if !self.rules.require_sign_in() {
            return Ok(Identity {
                csrf: self.csrf.clone(),
                ..Identity::new(None, Rights::default(), false)
            });
        }
        let bearer =
            header_text(headers, header::AUTHORIZATION).and_then(|it| it.strip_prefix("Bearer "));
        let found = bearer.map(|bearer| self.find_token(bearer, self.client(headers, peer)));
        if let Some(Err(TokenRefusal::Locked(left))) = found {
            return Err(NotAdmitted::Locked(left));
        }
        if let Some(Ok(at)) = found {
            let token = &self.rules.tokens[at];
            // The caller is a program. Its requests get a random CSRF token, which no form has, so
            // programs cannot submit forms.
            return Ok(Identity::new(token.label.clone(), token.rights.clone(), true));
        }
        for cookie in self.cookies(headers) {
            let signed_in = self.sessions.lock();
            if let Some(session) = signed_in.iter().find(|it| equal(cookie, &it.cookie)) {
                return Ok(session.identity.clone());
            }
        }
        match &self.rules.proxy {
            Some(proxy) if proxy.addresses.contains(&peer) => self.proxy_user(proxy, headers),
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
        let has_one = |header: &header::HeaderName| headers.get_all(header).iter().count() <= 1;
        if let Some(header) = proxy.groups_header.as_ref().filter(|it| !has_one(it)) {
            return Err(NotAdmitted::UserRefused(header.to_string()));
        }
        let mut names = headers.get_all(&proxy.user_header).iter();
        let name = match (names.next().map(|it| it.to_str().map(str::trim)), names.next()) {
            (None | Some(Ok("")), None) => return Err(NotAdmitted::SignInRequired),
            (Some(Ok(name)), None) => name,
            // A proxy that adds its header to that of the client would let the client choose.
            _ => return Err(NotAdmitted::UserRefused(proxy.user_header.to_string())),
        };
        let groups = proxy.groups_header.as_ref().and_then(|it| header_text(headers, it));
        let groups: Vec<&str> = groups.unwrap_or_default().split(',').map(str::trim).collect();
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
                if users.len() > MAX_PROXY_USERS {
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
        let (name, port) = match host.strip_prefix('[').and_then(|it| it.split_once(']')) {
            Some((address, "")) => (address, None),
            Some((address, rest)) => (address, Some(rest.strip_prefix(':').unwrap_or("-"))),
            None => host.rsplit_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
        };
        if port.is_some_and(|it| !it.bytes().all(|byte| byte.is_ascii_digit())) {
            return false;
        }
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok()
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Returns the value of a header; `None` unless it is visible ASCII.
pub(crate) fn header_text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Returns whether the sign-in form came from an https page. Then the cookie must be `Secure`. With
/// TLS, every form comes from an https page.
pub(crate) fn is_https(headers: &HeaderMap) -> bool {
    headers.get(header::ORIGIN).is_some_and(|it| it.as_bytes().starts_with(b"https:"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::options::Token;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn access(rules: AccessRules) -> AccessControl {
        let hosts = vec!["console.example".to_owned()];
        AccessControl::new(rules, hosts, TlsMode::None, String::new(), Arc::new(|_| {}))
    }

    #[test]
    fn unlisted_host_names_are_refused() {
        let access = access(AccessRules::default());
        for host in
            ["localhost", "LOCALHOST:8787", "127.0.0.1:8787", "[::1]:8787", "console.example:443"]
        {
            assert!(access.is_allowed_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8787",
            "[x]",
            "localhost:evil.example",
            "localhost:1@evil.example",
            "[::1]evil.example",
            "[::1]:evil.example",
            "[::1",
        ] {
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
        let sign_in = |secret: &str| {
            access.sign_in(secret, Some("ann".to_owned()), (&HeaderMap::new(), HERE))
        };
        assert_eq!(sign_in("Sesame"), Err(TokenRefusal::Wrong));
        let value = sign_in("sesame").unwrap();
        let mut headers = HeaderMap::new();
        assert!(access.identify(&headers, HERE).is_err());
        headers.insert(header::COOKIE, format!("a=b; pgmill={value}").parse().unwrap());
        assert_eq!(access.identify(&headers, HERE).unwrap().name.as_deref(), Some("ann"));
        access.sign_out(&headers);
        assert!(access.identify(&headers, HERE).is_err());
        let value = sign_in("simsim").unwrap();
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
        let two_lists = [(user, "eve"), (groups, "x"), (groups, "dba")];
        assert_eq!(role(&two_lists, HERE), refused(groups));
        let elsewhere = "192.0.2.7".parse().unwrap();
        assert_eq!(role(&[(user, "ann")], elsewhere), Err(NotAdmitted::SignInRequired));
        assert_eq!(role(&[(user, " ")], HERE), Err(NotAdmitted::SignInRequired));
    }
}
