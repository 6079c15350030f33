//! Between a connection and a screen: TLS, access control, sign-in, requests, error responses and
//! embedded files.

pub(crate) mod access_control;
pub(crate) mod assets;
pub(crate) mod error;
pub(crate) mod login;
pub(crate) mod request;
pub(crate) mod tls;
