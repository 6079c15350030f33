//! Access checks before every handler, and security headers on every response.
//!
//! Any page that is open in a browser can make the browser send requests to the console, so each
//! request is checked. The Host header must name this console; a foreign name that resolves to the
//! console's address is refused. A POST must come from a page of this console, according to the
//! header Origin and, if the browser sends it, Sec-Fetch-Site. The cookie is SameSite, so the
//! browser sends it only with requests from such a page. Forms carry a CSRF token as well.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use super::access_control::header_text;
use super::app::App;
use super::json::json_error;

/// Content-Security-Policy: no external and no inline content.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// Middleware around all routes: checks access and adds security headers.
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

fn authorize(app: &App, mut request: Request) -> Result<Request, Box<Response>> {
    let path = request.uri().path();
    let path = path.strip_prefix(app.base.as_str()).unwrap_or(path);
    let is_api = path.starts_with("/api/");
    let refuse = |status: StatusCode, message: &str, hint: &str| {
        Box::new(if is_api {
            json_error(status, message, Some(hint))
        } else {
            plain_refusal(status, message, hint)
        })
    };
    let headers = request.headers();
    let host = header_text(headers, header::HOST).unwrap_or_default();
    if !app.access.is_allowed_host(host) {
        return Err(refuse(
            StatusCode::FORBIDDEN,
            "host name not allowed",
            "pgmill console --allow-host NAME",
        ));
    }
    if !app.access.arrived_over_tls(headers) {
        return Err(refuse(
            StatusCode::FORBIDDEN,
            "the request did not arrive over TLS",
            "use https; the proxy must set X-Forwarded-Proto: https",
        ));
    }
    if request.uri().query().is_some_and(|it| it.contains("%00")) {
        let message = "the query string contains a NUL character";
        return Err(refuse(StatusCode::BAD_REQUEST, message, "remove %00"));
    }
    match *request.method() {
        Method::GET | Method::HEAD => {}
        Method::POST => {
            if !app.access.is_same_origin(headers, host) {
                return Err(refuse(
                    StatusCode::FORBIDDEN,
                    "the request was not sent from a page of this console",
                    "go back and reload",
                ));
            }
        }
        _ => {
            let message = format!("method {} not allowed", request.method());
            return Err(refuse(
                StatusCode::METHOD_NOT_ALLOWED,
                &message,
                "read with GET; forms use POST",
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
            return Err(refuse(StatusCode::UNAUTHORIZED, "token required", hint));
        }
        None => return Err(Box::new(Redirect::to(&format!("{}/login", app.base)).into_response())),
    }
    Ok(request)
}

/// Returns a plain-text response that reveals nothing of the console.
fn plain_refusal(status: StatusCode, message: &str, hint: &str) -> Response {
    (status, format!("{message}\nhint: {hint}\n")).into_response()
}
