//! Access rules: tokens, users of a proxy, signed-in sessions, allowed hosts and origins.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::AsHeaderName;
use axum::http::{HeaderMap, HeaderValue, header};
use http_server::{Refusal, RefusalObserver};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use uuid::Uuid;

use super::guess_limit::{GuessLimit, TokenRefusal};
use crate::options::rights::Rights;
use crate::options::{AccessRules, ProxySignIn, Token, UserRule};

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
    /// To whom the idempotency keys of the requests belong: the name, or else a digest of the token.
    pub(crate) caller: String,
    /// What the user may do.
    pub(crate) rights: Rights,
    /// CSRF token, part of every form.
    pub(crate) csrf: String,
    /// Signed in with a token, so the user can sign out.
    pub(crate) signed_in: bool,
}

impl Identity {
    pub(crate) fn new(name: Option<String>, rights: Rights, signed_in: bool) -> Self {
        let caller = name.clone().unwrap_or_default();
        Self { name, caller, rights, csrf: random_secret(), signed_in }
    }

    /// Returns the holder of a token, who may have given a name.
    fn of_token(token: &Token, given_name: Option<&String>) -> Self {
        let name = token.label.as_ref().or(given_name).cloned();
        let caller = name.clone().unwrap_or_else(|| digest(&token.secret));
        Self { caller, ..Self::new(name, token.rights.clone(), true) }
    }
}

struct LoginSession {
    cookie: String,
    /// The token with which the user signed in. The session ends if the token is no longer accepted.
    token: String,
    /// The name that the user has given, if the token has none.
    name: Option<String>,
    csrf: String,
}

impl LoginSession {
    /// Returns the user, with the present rights of the token.
    fn identity(&self, rules: &AccessRules) -> Option<Identity> {
        let token = rules.tokens.iter().find(|token| token.secret == self.token)?;
        let csrf = self.csrf.clone();
        Some(Identity { csrf, ..Identity::of_token(token, self.name.as_ref()) })
    }
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
    rules: watch::Sender<Arc<AccessRules>>,
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

/// Returns what tells tokens apart in the database and reveals none of them.
fn digest(secret: &str) -> String {
    let hash = Sha256::digest(secret);
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
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
            rules: watch::Sender::new(Arc::new(rules)),
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

    fn rules(&self) -> Arc<AccessRules> {
        Arc::clone(&self.rules.borrow())
    }

    /// Returns a receiver that is notified when the rules change.
    pub(crate) fn subscribe_rules(&self) -> watch::Receiver<Arc<AccessRules>> {
        self.rules.subscribe()
    }

    /// Replaces the rules, and ends the sessions of tokens that are no longer accepted. Returns whether
    /// the rules differ.
    pub(crate) fn set_rules(&self, rules: AccessRules) -> bool {
        if *self.rules() == rules {
            return false;
        }
        self.sessions.lock().retain(|session| session.identity(&rules).is_some());
        self.rules.send_replace(Arc::new(rules));
        true
    }

    /// Returns whether users can sign in with a token.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.rules().tokens.is_empty()
    }

    /// Finds the token by its secret. Compares with all tokens, so that the response time reveals
    /// nothing about them.
    fn find_token(&self, secret: &str, client: IpAddr) -> Result<Token, TokenRefusal> {
        let rules = self.rules();
        let find = || {
            let found = rules.tokens.iter().fold(None, |found, token| {
                if equal(secret, &token.secret) { Some(token) } else { found }
            });
            found.cloned()
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
        let rules = self.rules();
        let proxy = rules.proxy.as_ref();
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
        let token = self.find_token(secret, self.client(headers, peer))?.secret;
        let cookie = random_secret();
        let mut signed_in = self.sessions.lock();
        let mut others = signed_in.iter().enumerate().filter(|(_, it)| it.token == token);
        if let Some((oldest, _)) = others.next()
            && others.count() + 1 >= MAX_SESSIONS_OF_TOKEN
        {
            signed_in.remove(oldest);
        }
        let csrf = random_secret();
        signed_in.push_back(LoginSession { cookie: cookie.clone(), token, name, csrf });
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
        let rules = self.rules();
        if !rules.require_sign_in() {
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
        if let Some(Ok(token)) = found {
            // The caller is a program. Its requests get a random CSRF token, which no form has, so
            // programs cannot submit forms.
            return Ok(Identity::of_token(&token, None));
        }
        for cookie in self.cookies(headers) {
            let signed_in = self.sessions.lock();
            let session = signed_in.iter().find(|it| equal(cookie, &it.cookie));
            if let Some(identity) = session.and_then(|session| session.identity(&rules)) {
                return Ok(identity);
            }
        }
        match &rules.proxy {
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
mod tests;
