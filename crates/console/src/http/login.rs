//! Sign-in with a token, and sign-out.

use std::sync::Arc;

use askama::Template;
use axum::extract::{DefaultBodyLimit, Form, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use http_server::PeerAddress;
use serde::Deserialize;

use super::access_check::seconds;
use super::access_control::Identity;
use super::access_control::is_https;
use super::app::Frame;
use super::body_limit::MAX_SIGN_IN_BYTES;
use super::guess_limit::TokenRefusal;
use super::request::{FormFields, check_csrf};
use crate::error::HttpError;

/// Maximum length of a name; longer names are truncated.
const NAME_CHARS: usize = 60;

/// Returns the routes, which belong to the console and not to one of its databases.
pub(crate) fn routes() -> Router<Arc<Frame>> {
    Router::new()
        .route("/login", get(show).post(sign_in))
        .route("/logout", post(sign_out))
        .layer(DefaultBodyLimit::max(MAX_SIGN_IN_BYTES))
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    frame: &'a Frame,
    error: Option<&'a str>,
}

#[derive(Deserialize)]
struct Fields {
    token: String,
    #[serde(default)]
    name: String,
}

async fn show(State(frame): State<Arc<Frame>>) -> Result<Response, HttpError> {
    if !frame.access.has_tokens() {
        return Ok(home(&frame));
    }
    Ok(Html(LoginPage { frame: &frame, error: None }.render()?).into_response())
}

async fn sign_in(
    State(frame): State<Arc<Frame>>,
    Extension(peer): Extension<PeerAddress>,
    headers: HeaderMap,
    Form(fields): Form<Fields>,
) -> Result<Response, HttpError> {
    let name: String = fields.name.trim().chars().take(NAME_CHARS).collect();
    let name = Some(name).filter(|name| !name.is_empty());
    let cookie = match frame.access.sign_in(fields.token.trim(), name, (&headers, peer.0)) {
        Ok(cookie) => cookie,
        Err(TokenRefusal::Wrong) => {
            let page = LoginPage { frame: &frame, error: Some("Invalid token.") }.render()?;
            return Ok((StatusCode::UNAUTHORIZED, Html(page)).into_response());
        }
        Err(TokenRefusal::Locked(left)) => {
            let left = seconds(left);
            let error = format!("Too many wrong tokens: try again in {left} s.");
            let page = LoginPage { frame: &frame, error: Some(&error) }.render()?;
            let wait = [(header::RETRY_AFTER, left.to_string())];
            return Ok((StatusCode::TOO_MANY_REQUESTS, wait, Html(page)).into_response());
        }
    };
    let cookie = frame.access.set_cookie(&cookie, is_https(&headers));
    Ok(([(header::SET_COOKIE, cookie)], home(&frame)).into_response())
}

async fn sign_out(
    State(frame): State<Arc<Frame>>,
    identity: Option<Extension<Identity>>,
    headers: HeaderMap,
    Form(fields): Form<FormFields>,
) -> Result<Response, HttpError> {
    check_csrf(&fields, identity.as_ref().map(|it| &it.0))?;
    frame.access.sign_out(&headers);
    let cookie = frame.access.set_cookie("", is_https(&headers));
    Ok(([(header::SET_COOKIE, cookie)], home(&frame)).into_response())
}

fn home(frame: &Frame) -> Response {
    Redirect::to(&format!("{}/", frame.root)).into_response()
}
