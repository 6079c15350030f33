//! Access checks before every handler, and security headers on every response.
//!
//! Any page that is open in a browser can make the browser send requests to the console, so each
//! request is checked. The Host header must name this console; a foreign name that resolves to the
//! console's address is refused. A POST must come from a page of this console, according to the
//! header Origin and, if the browser sends it, Sec-Fetch-Site. The cookie is SameSite, so the
//! browser sends it only with requests from such a page. Forms carry a CSRF token as well.
//!
//! Programs send no Origin, so a POST to the API may omit it, but `api_request` requires JSON as
//! content type: a page of another site cannot send that type without asking first (a CORS preflight
//! request), which is refused.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use http_server::PeerAddress;

use super::access_control::{AccessControl, Identity, NotAdmitted, header_text};
use super::app::Frame;
use super::json::json_error;
use crate::options::rights::Scope;

/// Content-Security-Policy: no external and no inline content.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// Middleware around all routes: checks access and adds security headers.
pub(crate) async fn enforce(
    State(frame): State<Arc<Frame>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let fixed = path.strip_prefix(frame.base.as_str()).is_some_and(|it| it.starts_with("/static/"));
    let mut response = match authorize(&frame, request) {
        Ok(request) => next.run(request).await,
        Err(response) => *response,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // Not no-referrer: browsers would then omit the origin from a POST.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !fixed {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

/// Why a request is refused.
enum Refusal {
    /// An error.
    Error { status: StatusCode, message: String, hint: &'static str },
    /// The client has sent too many wrong tokens, and has to wait.
    Locked(Duration),
    /// The browser is sent to the sign-in page.
    SignIn,
}

fn error(status: StatusCode, message: impl Into<String>, hint: &'static str) -> Refusal {
    Refusal::Error { status, message: message.into(), hint }
}

fn authorize(frame: &Frame, mut request: Request) -> Result<Request, Box<Response>> {
    let path = request.uri().path();
    let path = path.strip_prefix(frame.base.as_str()).unwrap_or(path).to_owned();
    let is_api = path.starts_with("/api/");
    let admitted = check_origin(frame, &request, is_api)
        .and_then(|scope| check_user(frame, &request, &path, is_api, scope));
    match admitted {
        Ok(identity) => {
            if let Some(identity) = identity {
                request.extensions_mut().insert(identity);
            }
            Ok(request)
        }
        Err(Refusal::SignIn) => {
            Err(Box::new(Redirect::to(&format!("{}/login", frame.root)).into_response()))
        }
        Err(Refusal::Locked(left)) => {
            let hint = "wait; the header Retry-After says how many seconds";
            let (status, message) = (StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens");
            let mut response = match is_api {
                true => json_error(status, message, Some(hint)),
                false => plain_refusal(status, message, hint),
            };
            response.headers_mut().insert(header::RETRY_AFTER, seconds(left).into());
            Err(Box::new(response))
        }
        Err(Refusal::Error { status, message, hint }) if is_api => {
            Err(Box::new(json_error(status, &message, Some(hint))))
        }
        Err(Refusal::Error { status, message, hint }) => {
            Err(Box::new(plain_refusal(status, &message, hint)))
        }
    }
}

/// Checks the way of the request. Returns the scope that it needs.
fn check_origin(frame: &Frame, request: &Request, is_api: bool) -> Result<Scope, Refusal> {
    let headers = request.headers();
    if headers.get_all(header::HOST).iter().count() > 1 {
        let message = "the request has more than one Host header";
        return Err(error(StatusCode::BAD_REQUEST, message, "send one Host header"));
    }
    let host = header_text(headers, header::HOST).unwrap_or_default();
    if !frame.access.is_allowed_host(host) {
        let hint = "pgmill console --allow-host NAME";
        return Err(error(StatusCode::FORBIDDEN, "host name not allowed", hint));
    }
    if !frame.access.arrived_over_tls(headers) {
        let hint = "use https; the proxy must set X-Forwarded-Proto: https";
        return Err(error(StatusCode::FORBIDDEN, "the request did not arrive over TLS", hint));
    }
    if request.uri().query().is_some_and(|it| it.contains("%00")) {
        let message = "the query string contains a NUL character";
        return Err(error(StatusCode::BAD_REQUEST, message, "remove %00"));
    }
    match *request.method() {
        Method::GET | Method::HEAD => return Ok(Scope::Read),
        Method::POST => {}
        _ => {
            let message = format!("method {} not allowed", request.method());
            let hint = "read with GET, change with POST";
            return Err(error(StatusCode::METHOD_NOT_ALLOWED, message, hint));
        }
    }
    let from_program = is_api && !headers.contains_key(header::ORIGIN);
    let own_page = from_program || frame.access.is_same_origin(headers, host);
    if !own_page || !AccessControl::is_same_site(headers) {
        let message = "the request was not sent from a page of this console";
        return Err(error(StatusCode::FORBIDDEN, message, "go back and reload"));
    }
    Ok(Scope::Operate)
}

/// Returns the user, who has the scope; `None` for a path that is open to everyone.
fn check_user(
    frame: &Frame,
    request: &Request,
    path: &str,
    is_api: bool,
    scope: Scope,
) -> Result<Option<Identity>, Refusal> {
    // The handlers of the API check the scope of a change.
    let open = path.starts_with("/static/") || path == "/login" || path == "/livez";
    let needs_scope = !open && path != "/logout" && !(is_api && scope == Scope::Operate);
    match frame.access.identify(request.headers(), peer_address(request)) {
        Ok(identity) if needs_scope && !identity.rights.allow(scope) => {
            let message = format!("the scope \"{}\" is required", scope.as_str());
            Err(error(StatusCode::FORBIDDEN, message, "use another token"))
        }
        Ok(identity) => Ok(Some(identity)),
        Err(_) if open => Ok(None),
        Err(NotAdmitted::Locked(left)) => Err(Refusal::Locked(left)),
        Err(NotAdmitted::UserRefused(name)) => {
            let message = format!("\"{name}\" has no access to this console");
            Err(error(StatusCode::FORBIDDEN, message, "add the user to the access file"))
        }
        Err(NotAdmitted::SignInRequired) if !frame.access.has_tokens() => {
            let hint = "open the console through the proxy that signs users in";
            Err(error(StatusCode::UNAUTHORIZED, "sign-in required", hint))
        }
        Err(NotAdmitted::SignInRequired) if is_api => {
            let hint = "Authorization: Bearer TOKEN";
            Err(error(StatusCode::UNAUTHORIZED, "token required", hint))
        }
        Err(NotAdmitted::SignInRequired) => Err(Refusal::SignIn),
    }
}

/// Returns whole seconds, rounded up.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Returns the address from which the request came.
fn peer_address(request: &Request) -> IpAddr {
    let peer = request.extensions().get::<PeerAddress>();
    peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |it| it.0)
}

/// Returns a plain-text response that reveals nothing of the console.
fn plain_refusal(status: StatusCode, message: &str, hint: &str) -> Response {
    (status, format!("{message}\nhint: {hint}\n")).into_response()
}
