//! Sign-in with a token, and sign-out.

use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::access_control::{is_https, set_cookie};
use super::app::{App, AppState};
use super::error::HttpError;
use super::request::FormRequest;
use crate::options::environment::Environment;

/// Wrong tokens are answered one at a time, each after [`WRONG_TOKEN_DELAY`], to slow down
/// guessing.
static WRONG_TOKEN_LOCK: Mutex<()> = Mutex::const_new(());
const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(500);

/// Maximum length of a name; longer names are truncated.
const NAME_CHARS: usize = 60;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/login", get(show).post(sign_in)).route("/logout", post(sign_out))
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    base: &'a str,
    environment: Option<&'a Environment>,
    wrong: bool,
}

fn login_page(app: &AppState, wrong: bool) -> LoginPage<'_> {
    LoginPage { base: &app.base, environment: app.environment.as_ref(), wrong }
}

#[derive(Deserialize)]
struct Fields {
    token: String,
    #[serde(default)]
    name: String,
}

async fn show(State(app): State<App>) -> Result<Response, HttpError> {
    if !app.access.has_tokens() {
        return Ok(home(&app));
    }
    Ok(Html(login_page(&app, false).render()?).into_response())
}

async fn sign_in(
    State(app): State<App>,
    headers: HeaderMap,
    Form(fields): Form<Fields>,
) -> Result<Response, HttpError> {
    let name: String = fields.name.trim().chars().take(NAME_CHARS).collect();
    let name = Some(name).filter(|name| !name.is_empty());
    let Some(cookie) = app.access.sign_in(fields.token.trim(), name) else {
        let _one_at_a_time = WRONG_TOKEN_LOCK.lock().await;
        tokio::time::sleep(WRONG_TOKEN_DELAY).await;
        let page = login_page(&app, true).render()?;
        return Ok((StatusCode::UNAUTHORIZED, Html(page)).into_response());
    };
    let cookie = set_cookie(&app.base, &cookie, is_https(&headers));
    Ok(([(header::SET_COOKIE, cookie)], home(&app)).into_response())
}

async fn sign_out(State(app): State<App>, headers: HeaderMap, _form: FormRequest) -> Response {
    app.access.sign_out(&headers);
    let cookie = set_cookie(&app.base, "", is_https(&headers));
    ([(header::SET_COOKIE, cookie)], home(&app)).into_response()
}

fn home(app: &AppState) -> Response {
    Redirect::to(&format!("{}/", app.base)).into_response()
}
