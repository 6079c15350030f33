//! Error responses, rendered as an HTML page or as JSON.

use std::sync::Arc;

use askama::Template;
use axum::body::to_bytes;
use axum::extract::{OriginalUri, State};
use axum::response::{Html, IntoResponse, Response};

use super::app::Frame;
use super::json::json_error;
use crate::error::HttpError;

/// Maximum size of an error body of the framework, in bytes. Actual bodies are shorter.
const MAX_BODY_BYTES: usize = 4096;

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    frame: &'a Frame,
    /// Whether the page is served without a sign-in, so that it names no database and no screen.
    open: bool,
    error: &'a HttpError,
}

/// Renders an [`HttpError`] as JSON below `/api/` and as an HTML page elsewhere.
pub(crate) async fn render_errors(
    State(frame): State<Arc<Frame>>,
    OriginalUri(uri): OriginalUri,
    response: Response,
) -> Response {
    let path = uri.path().strip_prefix(frame.base.as_str()).unwrap_or(uri.path());
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
    let open = path == "/login" || path.starts_with("/static/");
    let screen = ErrorPage { frame: &frame, open, error: &error };
    let body = screen.render().unwrap_or_else(|_| "cannot render the error page".to_owned());
    (error.status, Html(body)).into_response()
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
