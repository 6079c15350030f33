//! Limits of the memory that bodies of requests use.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::access_control::header_text;
use crate::error::HttpError;

/// Maximum size of a body, in kB: the limit of the framework.
const MAX_BODY_KB: u32 = 2048;

/// Maximum size of a small body, in kB: nearly all requests.
const SMALL_KB: u32 = 64;

/// Maximum size of all small bodies, and of all other bodies, that are received or processed at the
/// same time, in kB. A body of JSON takes up to 65 times its size once it is parsed: 131 MB for an
/// array of a million zeros.
const TOTAL_KB: u32 = 2 * MAX_BODY_KB;

/// Time for which a request waits until enough other requests have finished.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Maximum size of the forms that need no sign-in, in bytes: a token and a name.
pub(crate) const MAX_SIGN_IN_BYTES: usize = 8192;

/// What is left for small bodies. They have their own share, so that a few slow large requests do
/// not delay all others.
static LEFT_FOR_SMALL_KB: Semaphore = Semaphore::const_new(TOTAL_KB as usize);
static LEFT_KB: Semaphore = Semaphore::const_new(TOTAL_KB as usize);

/// Middleware of all handlers that accept a body from signed-in users.
pub(crate) async fn enforce(request: Request, next: Next) -> Response {
    let Some(size) = size_kb(&request) else { return next.run(request).await };
    if size > MAX_BODY_KB {
        let message = format!("the body has more than {MAX_BODY_KB} kB");
        return HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
            .hint("split the request, or use SQL")
            .into_response();
    }
    let left = if size <= SMALL_KB { &LEFT_FOR_SMALL_KB } else { &LEFT_KB };
    match timeout(MAX_WAIT, left.acquire_many(size)).await {
        Ok(Ok(_received_and_processed)) => next.run(request).await,
        _ => HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "too many large requests")
            .hint("try again later")
            .into_response(),
    }
}

/// Returns the size of the body in kB, at least 1; the maximum if the request does not tell it, and
/// `None` for a request without a body.
fn size_kb(request: &Request) -> Option<u32> {
    let headers = request.headers();
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Some(MAX_BODY_KB);
    }
    let bytes: u64 = header_text(headers, header::CONTENT_LENGTH)?.trim().parse().ok()?;
    (bytes > 0).then(|| u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX))
}
