//! One visit: who asks, from which page, and what a form of theirs brings along.

use std::convert::Infallible;

use axum::extract::{Form, FromRequest, FromRequestParts, OriginalUri, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};
use deadpool_postgres::Transaction;
use queue::QueueError;
use queue::insight::viewer::{self, Viewer};
use subtle::ConstantTimeEq;

use crate::app::App;
use crate::database::Session;
use crate::guard::Who;
use crate::page::Page;
use crate::trouble::Trouble;

/// Who asks, and for what.
pub(crate) struct Visit {
    pub(crate) app: App,
    pub(crate) who: Who,
    /// Path and query, without the base path.
    pub(crate) here: String,
}

impl Visit {
    /// A session for this request.
    pub(crate) async fn session(&self) -> Result<Session, QueueError> {
        self.app.tally.somebody_looks();
        self.app.database.session().await
    }

    /// What the login may do here and now, less what nobody may here.
    pub(crate) async fn viewer(&self, look: &Transaction<'_>) -> Result<Viewer, QueueError> {
        let viewer = viewer::viewer(&**look).await?;
        Ok(Viewer { may_act: viewer.may_act && !self.app.read_only, ..viewer })
    }

    /// The frame of a screen.
    pub(crate) fn page(&self, title: impl Into<String>, viewer: Viewer) -> Page {
        Page {
            title: title.into(),
            base: self.app.base.clone(),
            here: self.here.clone(),
            read_only: self.app.read_only,
            csrf: self.who.csrf.clone(),
            name: self.who.name.clone(),
            signed_in: self.who.signed_in,
            viewer,
        }
    }
}

impl FromRequestParts<App> for Visit {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let who = parts.extensions.get::<Who>().cloned().unwrap_or_else(|| Who {
            name: None,
            // Nobody's: no form can bring it.
            csrf: uuid::Uuid::new_v4().to_string(),
            signed_in: false,
        });
        let uri =
            OriginalUri::from_request_parts(parts, app).await.map_or(parts.uri.clone(), |it| it.0);
        let whole = uri.path_and_query().map_or("/", |it| it.as_str());
        let here = whole.strip_prefix(app.base.as_str()).unwrap_or(whole).to_owned();
        Ok(Self { app: App::clone(app), who, here })
    }
}

/// A form that somebody sent from a page of this console.
pub(crate) struct Act {
    pub(crate) visit: Visit,
    fields: Vec<(String, String)>,
}

impl Act {
    /// The value of a field; empty if there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.trim())
    }

    /// The same as what was meant by it.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, name: &str) -> Result<T, Trouble> {
        let value = self.field(name);
        value.parse().map_err(|_| Trouble::bad(format!("\"{value}\" is no value for {name}")))
    }

    /// As [`Self::parsed`]; an empty field is `None`.
    pub(crate) fn optional<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Trouble> {
        if self.field(name).is_empty() { Ok(None) } else { self.parsed(name).map(Some) }
    }

    /// A transaction in the name of who sent it. Without the right to act, the database refuses.
    pub(crate) async fn begin<'a>(
        &self,
        session: &'a mut Session,
    ) -> Result<Transaction<'a>, Trouble> {
        if self.visit.app.read_only {
            return Err(Trouble::forbidden("this console is read-only"));
        }
        Ok(session.act(&self.actor()).await?)
    }

    /// Who is said to have done it.
    fn actor(&self) -> String {
        match &self.visit.who.name {
            Some(name) => format!("console: {name}"),
            None => "console".to_owned(),
        }
    }

    /// Back to the page with the form, or where it says.
    pub(crate) fn back(&self, otherwise: &str) -> Response {
        let to = Some(self.field("back")).filter(|to| own_path(to)).unwrap_or(otherwise);
        Redirect::to(&format!("{}{to}", self.visit.app.base)).into_response()
    }
}

/// A path of this console, and nothing that a browser would take for another host.
fn own_path(path: &str) -> bool {
    let foreign = |c: char| c == '\\' || c.is_control();
    path.starts_with('/') && !path.starts_with("//") && !path.contains(foreign)
}

impl FromRequest<App> for Act {
    type Rejection = Trouble;

    async fn from_request(request: Request, app: &App) -> Result<Self, Trouble> {
        let (mut parts, body) = request.into_parts();
        let Ok(visit) = Visit::from_request_parts(&mut parts, app).await;
        let request = Request::from_parts(parts, body);
        let fields = Form::<Vec<(String, String)>>::from_request(request, app)
            .await
            .map_err(|_| Trouble::bad("this is no form of this console"))?
            .0;
        let act = Self { visit, fields };
        if !bool::from(act.field("csrf").as_bytes().ct_eq(act.visit.who.csrf.as_bytes())) {
            return Err(Trouble::forbidden("this form is out of date")
                .hint("the console was restarted, or you signed in anew: go back and reload"));
        }
        Ok(act)
    }
}

#[cfg(test)]
mod tests {
    use super::own_path;

    #[test]
    fn nobody_is_sent_elsewhere() {
        assert!(own_path("/tasks?q=state%3Apending"));
        for path in [
            "",
            "tasks",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/\u{1}",
            "/\r\n",
        ] {
            assert!(!own_path(path), "{path}");
        }
    }
}
