//! Sign-in with a token, and sign-out.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::{DefaultBodyLimit, Form, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::access_control::Identity;
use super::access_control::{is_https, set_cookie};
use super::app::Frame;
use super::body_limit::MAX_SIGN_IN_BYTES;
use super::error::HttpError;
use super::request::{FormFields, check_csrf};
use crate::options::environment::Environment;

/// Wrong tokens are answered one at a time, each after [`WRONG_TOKEN_DELAY`], to slow down
/// guessing.
static WRONG_TOKEN_LOCK: Mutex<()> = Mutex::const_new(());
const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(500);

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
    base: &'a str,
    environment: Option<&'a Environment>,
    wrong: bool,
}

fn login_page(frame: &Frame, wrong: bool) -> LoginPage<'_> {
    LoginPage { base: &frame.root, environment: frame.environment.as_ref(), wrong }
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
    Ok(Html(login_page(&frame, false).render()?).into_response())
}

async fn sign_in(
    State(frame): State<Arc<Frame>>,
    headers: HeaderMap,
    Form(fields): Form<Fields>,
) -> Result<Response, HttpError> {
    let name: String = fields.name.trim().chars().take(NAME_CHARS).collect();
    let name = Some(name).filter(|name| !name.is_empty());
    let Some(cookie) = frame.access.sign_in(fields.token.trim(), name) else {
        let _one_at_a_time = WRONG_TOKEN_LOCK.lock().await;
        tokio::time::sleep(WRONG_TOKEN_DELAY).await;
        let page = login_page(&frame, true).render()?;
        return Ok((StatusCode::UNAUTHORIZED, Html(page)).into_response());
    };
    let cookie = set_cookie(&frame.root, &cookie, is_https(&headers));
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
    let cookie = set_cookie(&frame.root, "", is_https(&headers));
    Ok(([(header::SET_COOKIE, cookie)], home(&frame)).into_response())
}

fn home(frame: &Frame) -> Response {
    Redirect::to(&format!("{}/", frame.root)).into_response()
}
