//! HTTP below the screens: TLS, access control, sign-in, requests, error responses, embedded files,
//! and the state that all handlers share.

pub(crate) mod access_check;
pub(crate) mod access_control;
pub(crate) mod api_request;
pub(crate) mod app;
pub(crate) mod assets;
pub(crate) mod body_limit;
pub(crate) mod download;
pub(crate) mod error;
pub(crate) mod error_response;
mod guess_limit;
pub(crate) mod json;
pub(crate) mod login;
pub(crate) mod request;
mod time_zone;
pub(crate) mod tls;
