//! Request context (user, path, database session) and form submissions.

use std::convert::Infallible;

use axum::extract::{Form, FromRequest, FromRequestParts, OriginalUri, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use queue::QueueError;
use queue::insight::viewer::{self, Viewer};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;
use tokio_postgres::Transaction;

use super::access_control::Identity;
use super::app::App;
use super::time_zone::time_zone;
use crate::database::{Session, WriteTransaction};
use crate::error::{HandlerResult, HttpError};
use crate::options::rights::{Rights, Scope};

/// User and path of a request.
pub(crate) struct RequestContext {
    pub(crate) app: App,
    pub(crate) identity: Identity,
    /// Path and query, without the base path.
    pub(crate) current_path: String,
    /// Time zone of the browser; UTC if it is not known.
    pub(crate) zone: TimeZone,
}

impl RequestContext {
    /// Obtains a database session for this request, with the role of its user.
    pub(crate) async fn session(&self) -> Result<Session, HttpError> {
        self.app.throughput.mark_used();
        self.app.database.session_for(&self.identity.rights).await
    }

    /// Returns the actor recorded in the audit log.
    pub(crate) fn actor(&self) -> String {
        match &self.identity.name {
            Some(name) => format!("console: {name}"),
            None => "console".to_owned(),
        }
    }

    /// Returns the privileges of the user's role, without write access if the console is read-only or
    /// the user lacks the scope.
    pub(crate) async fn viewer(&self, tx: &Transaction<'_>) -> Result<Viewer, QueueError> {
        let viewer = viewer::viewer(tx).await?;
        let may_act =
            viewer.may_act && !self.app.read_only && self.identity.rights.allow(Scope::Operate);
        Ok(Viewer { may_act, ..viewer })
    }
}

impl FromRequestParts<App> for RequestContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let identity = parts.extensions.get::<Identity>().cloned();
        let identity = identity.unwrap_or_else(|| Identity::new(None, Rights::default(), false));
        let uri =
            OriginalUri::from_request_parts(parts, app).await.map_or(parts.uri.clone(), |it| it.0);
        let whole = uri.path_and_query().map_or("/", |it| it.as_str());
        let current_path = whole.strip_prefix(app.frame.base.as_str()).unwrap_or(whole).to_owned();
        let zone = time_zone(&parts.headers);
        Ok(Self { app: App::clone(app), identity, current_path, zone })
    }
}

/// A form submission from a page of this console, with a valid CSRF token.
pub(crate) struct FormRequest {
    pub(crate) context: RequestContext,
    fields: FormFields,
}

/// Names and values of the fields of a form.
pub(crate) type FormFields = Vec<(String, String)>;

/// Returns the trimmed value of a field; empty if the field is missing.
fn field<'a>(fields: &'a FormFields, name: &str) -> &'a str {
    fields.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.trim())
}

/// Checks that a form has the CSRF token of the user.
pub(crate) fn check_csrf(
    fields: &FormFields,
    identity: Option<&Identity>,
) -> Result<(), HttpError> {
    let given = field(fields, "csrf").as_bytes();
    if identity.is_some_and(|it| bool::from(given.ct_eq(it.csrf.as_bytes()))) {
        return Ok(());
    }
    Err(HttpError::forbidden("the form has expired")
        .hint("the console was restarted or you signed in again: go back and reload"))
}

impl FormRequest {
    /// Returns the trimmed value of a field; empty if the field is missing.
    pub(crate) fn field(&self, name: &str) -> &str {
        field(&self.fields, name)
    }

    /// Parses the value of a field.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, name: &str) -> Result<T, HttpError> {
        let value = self.field(name);
        value
            .parse()
            .map_err(|_| HttpError::bad_request(format!("invalid value \"{value}\" for {name}")))
    }

    /// Like [`Self::parsed`], but returns `None` for an empty field.
    pub(crate) fn optional<T: std::str::FromStr>(
        &self,
        name: &str,
    ) -> Result<Option<T>, HttpError> {
        if self.field(name).is_empty() { Ok(None) } else { self.parsed(name).map(Some) }
    }

    /// Returns the values of the fields `param:NAME`. Numbers, true and false keep their type, as on
    /// the command line; anything else is text.
    pub(crate) fn params(&self, names: &[String]) -> Map<String, Value> {
        let value = |name: &String| {
            let text = self.field(&format!("param:{name}"));
            let read = serde_json::from_str(text).ok().filter(|it: &Value| !it.is_string());
            (!text.is_empty()).then(|| (name.clone(), read.unwrap_or_else(|| text.into())))
        };
        names.iter().filter_map(value).collect()
    }

    /// Returns the value of a field; `None` if the field is empty.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        Some(self.field(name).to_owned()).filter(|text| !text.is_empty())
    }

    /// Returns whether a field is `true`, such as that of a ticked box.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.field(name) == "true"
    }

    /// Parses a time in a time zone.
    pub(crate) fn instant(&self, name: &str, zone: &TimeZone) -> Result<Timestamp, HttpError> {
        let zoned = self.parsed::<DateTime>(name)?.to_zoned(zone.clone());
        let invalid = |_| HttpError::bad_request(format!("invalid time for {name}"));
        Ok(zoned.map_err(invalid)?.timestamp())
    }

    /// Makes a change in one transaction on behalf of the user, and then redirects to the page named
    /// by the field `return_to`, or else to the path.
    pub(crate) async fn change<R>(
        &self,
        path: &str,
        change: impl AsyncFnOnce(&Transaction<'_>) -> Result<R, HttpError>,
    ) -> HandlerResult {
        self.change_and_open(async |tx| change(tx).await.map(|_| path)).await
    }

    /// As [`Self::change`], to the path that `change` returns.
    pub(crate) async fn change_and_open<P: AsRef<str>>(
        &self,
        change: impl AsyncFnOnce(&Transaction<'_>) -> Result<P, HttpError>,
    ) -> HandlerResult {
        let mut session = self.context.session().await?;
        let tx = self.begin(&mut session).await?;
        let path = change(&tx).await?;
        tx.commit().await?;
        Ok(self.redirect_back(path.as_ref()))
    }

    /// Begins a transaction on behalf of the user. The database checks the privileges of the login.
    pub(crate) async fn begin<'a>(
        &self,
        session: &'a mut Session,
    ) -> Result<WriteTransaction<'a>, HttpError> {
        if self.context.app.read_only {
            return Err(HttpError::forbidden("this console is read-only"));
        }
        Ok(session.begin_write(&self.context.actor()).await?)
    }

    /// Redirects to the page named by the field `return_to`, or else to `default`.
    pub(crate) fn redirect_back(&self, default: &str) -> Response {
        let to = Some(self.field("return_to")).filter(|to| is_local_path(to)).unwrap_or(default);
        Redirect::to(&format!("{}{to}", self.context.app.frame.base)).into_response()
    }
}

/// Returns whether a redirect to the path stays on this console. A browser would read a path that
/// begins with two slashes as the name of another host.
fn is_local_path(path: &str) -> bool {
    let foreign = |c: char| c == '\\' || c.is_control();
    path.starts_with('/') && !path.starts_with("//") && !path.contains(foreign)
}

impl FromRequest<App> for FormRequest {
    type Rejection = HttpError;

    async fn from_request(request: Request, app: &App) -> Result<Self, HttpError> {
        let (mut parts, body) = request.into_parts();
        let Ok(context) = RequestContext::from_request_parts(&mut parts, app).await;
        let request = Request::from_parts(parts, body);
        let fields = Form::<FormFields>::from_request(request, app)
            .await
            .map_err(|_| HttpError::bad_request("invalid form submission"))?
            .0;
        check_csrf(&fields, Some(&context.identity))?;
        Ok(Self { context, fields })
    }
}

#[cfg(test)]
mod tests {
    use super::is_local_path;

    #[test]
    fn redirects_stay_on_this_console() {
        assert!(is_local_path("/tasks?q=state%3Apending"));
        for path in [
            "",
            "tasks",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/\u{1}",
            "/\r\n",
        ] {
            assert!(!is_local_path(path), "{path}");
        }
    }
}
