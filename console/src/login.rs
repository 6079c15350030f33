//! Signing in with the token, and out.

use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::app::{App, Shared};
use crate::guard::{secure, set_cookie};
use crate::trouble::Trouble;
use crate::visit::Act;

/// One wrong token at a time, and each takes this long.
static WRONG: Mutex<()> = Mutex::const_new(());
const WRONG_TAKES: Duration = Duration::from_millis(500);

/// Longer names are cut.
const NAME_CHARS: usize = 60;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/login", get(show).post(sign_in)).route("/logout", post(sign_out))
}

#[derive(Template)]
#[template(path = "login.html")]
struct Screen<'a> {
    base: &'a str,
    wrong: bool,
}

#[derive(Deserialize)]
struct Fields {
    token: String,
    #[serde(default)]
    name: String,
}

async fn show(State(app): State<App>) -> Result<Response, Trouble> {
    if !app.doors.asks_for_token() {
        return Ok(home(&app));
    }
    Ok(Html(Screen { base: &app.base, wrong: false }.render()?).into_response())
}

async fn sign_in(
    State(app): State<App>,
    headers: HeaderMap,
    Form(fields): Form<Fields>,
) -> Result<Response, Trouble> {
    let name: String = fields.name.trim().chars().take(NAME_CHARS).collect();
    let name = Some(name).filter(|name| !name.is_empty());
    let Some(cookie) = app.doors.sign_in(fields.token.trim(), name) else {
        let _one_at_a_time = WRONG.lock().await;
        tokio::time::sleep(WRONG_TAKES).await;
        let page = Screen { base: &app.base, wrong: true }.render()?;
        return Ok((StatusCode::UNAUTHORIZED, Html(page)).into_response());
    };
    let cookie = set_cookie(&app.base, &cookie, secure(&headers));
    Ok(([(header::SET_COOKIE, cookie)], home(&app)).into_response())
}

async fn sign_out(State(app): State<App>, headers: HeaderMap, _act: Act) -> Response {
    app.doors.sign_out(&headers);
    let cookie = set_cookie(&app.base, "", secure(&headers));
    ([(header::SET_COOKIE, cookie)], home(&app)).into_response()
}

fn home(app: &Shared) -> Response {
    Redirect::to(&format!("{}/", app.base)).into_response()
}
