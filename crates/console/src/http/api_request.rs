//! Requests of the API that change something.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, OriginalUri, Request};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use queue::idempotency;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Transaction;

use super::access_control::header_text;
use super::app::App;
use super::json::json_response;
use super::request::RequestContext;
use crate::error::{HandlerResult, HttpError};
use crate::options::rights::Scope;

/// Header with the idempotency key, as in the draft `draft-ietf-httpapi-idempotency-key-header`.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Maximum length of an idempotency key, in bytes.
const MAX_KEY_BYTES: usize = 255;

/// A POST request of the API, with its JSON body. An empty body counts as `{}`.
pub(crate) struct ApiRequest<T> {
    context: RequestContext,
    body: T,
    key: Option<String>,
    /// Path, query and body, which a repeated request has in common with the first one.
    text: String,
}

impl<T> ApiRequest<T> {
    /// Makes a change in one transaction, with the privileges of the user's role, and returns the
    /// result as JSON. If the request repeats an earlier one (by its idempotency key), returns the
    /// result of the earlier one instead.
    pub(crate) async fn execute<R: Serialize>(
        self,
        scope: Scope,
        change: impl AsyncFnOnce(&Transaction<'_>, T) -> Result<R, HttpError>,
    ) -> HandlerResult {
        if self.context.app.read_only {
            return Err(HttpError::forbidden("this console is read-only"));
        }
        if !self.context.identity.rights.allow(scope) {
            let message = format!("the scope \"{}\" is required", scope.as_str());
            return Err(HttpError::forbidden(message).hint("use another token"));
        }
        let caller = self.context.identity.caller.as_str();
        let mut session = self.context.session().await?;
        let tx = session.begin_write(&self.context.actor()).await?;
        if let Some(key) = &self.key
            && let Some(answer) = idempotency::begin(&*tx, caller, key, &self.text).await?
        {
            return Ok(json_response(&answer));
        }
        let done = change(&tx, self.body).await?;
        let answer = serde_json::to_value(done)
            .map_err(|error| HttpError::bad_request(error.to_string()))?;
        if let Some(key) = &self.key {
            idempotency::finish(&*tx, caller, key, &answer).await?;
        }
        tx.commit().await.map_err(|error| match &self.key {
            Some(_) if error.status == StatusCode::INTERNAL_SERVER_ERROR => {
                error.hint("repeat the request with the same Idempotency-Key")
            }
            _ => error,
        })?;
        Ok(json_response(&answer))
    }
}

impl<T: DeserializeOwned> FromRequest<App> for ApiRequest<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let Ok(context) = RequestContext::from_request_parts(&mut parts, app).await;
        check_content_type(&parts).map_err(IntoResponse::into_response)?;
        let key = key(&parts).map_err(IntoResponse::into_response)?;
        let Ok(uri) = OriginalUri::from_request_parts(&mut parts, app).await;
        let request = Request::from_parts(parts, body);
        let bytes = Bytes::from_request(request, app).await.map_err(IntoResponse::into_response)?;
        let invalid = |error: String| {
            HttpError::bad_request(format!("invalid JSON body: {error}"))
                .hint("/api/v1/openapi.json describes the API")
                .into_response()
        };
        let text = std::str::from_utf8(&bytes).map_err(|error| invalid(error.to_string()))?;
        let text = if text.trim().is_empty() { "{}" } else { text };
        let body = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        let path = uri.path_and_query().map_or("/", |it| it.as_str());
        Ok(Self { context, body, key, text: format!("{path}\n{text}") })
    }
}

/// Checks that the body is JSON. A form of another site cannot have this content type.
fn check_content_type(parts: &axum::http::request::Parts) -> Result<(), HttpError> {
    let kind = header_text(&parts.headers, header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = "the content type of the request is not JSON";
    Err(HttpError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
        .hint("send Content-Type: application/json"))
}

fn key(parts: &axum::http::request::Parts) -> Result<Option<String>, HttpError> {
    let mut keys = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
    if keys.next().is_none() {
        return Ok(None);
    }
    let key = header_text(&parts.headers, IDEMPOTENCY_KEY).unwrap_or_default();
    let plain =
        (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    if keys.next().is_some() || !plain {
        let message = "invalid Idempotency-Key";
        return Err(HttpError::bad_request(message).hint(format!(
            "send one key of 1 to {MAX_KEY_BYTES} visible ASCII characters, without spaces"
        )));
    }
    Ok(Some(key.to_owned()))
}
