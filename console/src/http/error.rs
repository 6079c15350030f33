//! Error responses, rendered as an HTML page or as JSON.

use std::sync::Arc;

use askama::Template;
use axum::body::to_bytes;
use axum::extract::{OriginalUri, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use queue::QueueError;
use queue::connect::ConnectError;
use serde_json::json;
use tokio_postgres::error::SqlState;

use crate::server::App;

/// Maximum size of an error body of the framework, in bytes. Actual bodies are shorter.
const MAX_BODY_BYTES: usize = 4096;

/// An error response: status, message and optional hint.
#[derive(Clone, Debug)]
pub(crate) struct HttpError {
    status: StatusCode,
    message: String,
    hint: Option<String>,
}

impl HttpError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), hint: None }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Returns whether a search exceeded the statement timeout, so that a page can report the
    /// timeout next to its search form.
    pub(crate) fn timed_out(&self) -> bool {
        self.status == StatusCode::GATEWAY_TIMEOUT
    }
}

impl From<QueueError> for HttpError {
    fn from(error: QueueError) -> Self {
        let state = error.sqlstate();
        let with_hint =
            |status, hint: Option<String>| Self { hint, ..Self::new(status, error.to_string()) };
        if state == Some(&SqlState::QUERY_CANCELED) {
            let message = "the query exceeded the time limit of the console";
            return Self::new(StatusCode::GATEWAY_TIMEOUT, message)
                .hint("narrow the search: a queue, a state or a shorter time");
        }
        if state == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
            let hint = "GRANT mill_viewer TO the login for reading, mill_operator for actions";
            return with_hint(StatusCode::FORBIDDEN, Some(hint.to_owned()));
        }
        let status = match () {
            () if error.refused() => StatusCode::UNPROCESSABLE_ENTITY,
            () if error.temporary() => StatusCode::SERVICE_UNAVAILABLE,
            () => StatusCode::INTERNAL_SERVER_ERROR,
        };
        with_hint(status, error.hint())
    }
}

impl From<tokio_postgres::Error> for HttpError {
    fn from(error: tokio_postgres::Error) -> Self {
        QueueError::from(error).into()
    }
}

impl From<ConnectError> for HttpError {
    fn from(error: ConnectError) -> Self {
        QueueError::from(error).into()
    }
}

impl From<askama::Error> for HttpError {
    fn from(error: askama::Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

impl IntoResponse for HttpError {
    /// Attaches the error to the response; [`render_errors`] renders the body.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    base: &'a str,
    status: u16,
    message: &'a str,
    hint: Option<&'a str>,
}

/// Renders an [`HttpError`] as JSON below `/api/` and as an HTML page elsewhere.
pub(crate) async fn render_errors(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    response: Response,
) -> Response {
    let path = uri.path().strip_prefix(app.base.as_str()).unwrap_or(uri.path());
    let is_api = path.starts_with("/api/");
    let Some(error) = response.extensions().get::<Arc<HttpError>>().cloned() else {
        let failed = response.status().is_client_error() || response.status().is_server_error();
        return if is_api && failed { rewrite_framework_error(response).await } else { response };
    };
    if error.status.is_server_error() {
        tracing::warn!(status = error.status.as_u16(), "{}", error.message);
    }
    if is_api {
        return json_error(error.status, &error.message, error.hint.as_deref());
    }
    let screen = ErrorPage {
        base: &app.base,
        status: error.status.as_u16(),
        message: &error.message,
        hint: error.hint.as_deref(),
    };
    let body = screen.render().unwrap_or_else(|_| "cannot render the error page".to_owned());
    (error.status, Html(body)).into_response()
}

/// Returns a JSON error response with the fields `error` and `hint`.
pub(crate) fn json_error(status: StatusCode, message: &str, hint: Option<&str>) -> Response {
    let body = json!({ "error": message, "hint": hint }).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Rewrites an error response of the framework as JSON. The framework rejects malformed queries and
/// unsupported methods before a handler runs.
async fn rewrite_framework_error(response: Response) -> Response {
    let status = response.status();
    let body = to_bytes(response.into_body(), MAX_BODY_BYTES).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let reason = status.canonical_reason().unwrap_or("request rejected").to_lowercase();
    let message = if text.trim().is_empty() { reason.as_str() } else { text.trim() };
    json_error(status, message, Some("/api/v1/openapi.json describes the API"))
}

/// The fallback handler: answers 404.
pub(crate) async fn page_not_found() -> HttpError {
    HttpError::not_found("page not found")
}
