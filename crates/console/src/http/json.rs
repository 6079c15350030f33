//! JSON responses.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use crate::error::HttpError;

/// Returns a value as a JSON response.
pub(crate) fn json_response(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => HttpError::bad_request(error.to_string()).into_response(),
    }
}

/// Returns a JSON error response with the fields `error` and `hint`.
pub(crate) fn json_error(status: StatusCode, message: &str, hint: Option<&str>) -> Response {
    let body = json!({ "error": message, "hint": hint }).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
