//! Error of a handler: status, message and hint.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use conninfo::ConnectError;
use queue::QueueError;
use tokio_postgres::error::SqlState;

/// The result of a handler.
pub(crate) type HandlerResult = Result<Response, HttpError>;

/// An error response: status, message and optional hint.
#[derive(Clone, Debug)]
pub(crate) struct HttpError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
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

    /// Returns the error of a COMMIT. If the server may have committed, the status is not one after which
    /// clients simply repeat the request.
    pub(crate) fn of_commit(error: QueueError) -> Self {
        if !error.commit_in_doubt() {
            return error.into();
        }
        let message =
            format!("connection lost, and it is not known whether the change was made: {error}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
            .hint("look whether the change was made before you try again; the audit shows the last actions")
    }

    /// Returns the error, unless what is to be changed is known.
    pub(crate) fn unless(known: bool, not_found: impl FnOnce() -> Self) -> Result<(), Self> {
        if known { Ok(()) } else { Err(not_found()) }
    }

    pub(crate) fn invalid_cursor() -> Self {
        Self::bad_request("invalid page cursor").hint("start at the first page")
    }

    /// Returns the result of a search, and whether the search exceeded the statement timeout, so that a
    /// page can report the timeout next to its search form.
    pub(crate) fn unless_timed_out<T: Default>(found: Result<T, Self>) -> Result<(T, bool), Self> {
        match found {
            Err(error) if error.status == StatusCode::GATEWAY_TIMEOUT => Ok((T::default(), true)),
            found => Ok((found?, false)),
        }
    }
}

impl From<QueueError> for HttpError {
    fn from(error: QueueError) -> Self {
        let state = error.sqlstate();
        let with_hint =
            |status, hint: Option<String>| Self { hint, ..Self::new(status, error.to_string()) };
        if state == Some(&SqlState::QUERY_CANCELED) {
            let message = "the query exceeded the time limit of the console";
            return Self { hint: error.hint(), ..Self::new(StatusCode::GATEWAY_TIMEOUT, message) };
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
    /// Attaches the error to the response; `error_response` renders the body.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}
