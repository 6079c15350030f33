//! Page layout shared by all screens: title, navigation, user.

use std::fmt::Display;
use std::ops::Deref;
use std::sync::Arc;

use askama::Template;
use axum::extract::Query;
use axum::response::{Html, IntoResponse};
use jiff::tz::TimeZone;
use queue::insight::viewer::Viewer;

use super::format;
use crate::error::HandlerResult;
use crate::http::access_control::Identity;
use crate::http::app::{Frame, NavItem};
use crate::http::request::RequestContext;

/// Data of the page layout.
pub(crate) struct Layout {
    pub(crate) title: String,
    frame: Arc<Frame>,
    /// Path and query of this page, without the base path.
    pub(crate) current_path: String,
    pub(crate) read_only: bool,
    pub(crate) identity: Identity,
    pub(crate) viewer: Viewer,
    /// Time zone of the browser; UTC if it is not known.
    pub(crate) zone: TimeZone,
}

impl Deref for Layout {
    type Target = Frame;

    fn deref(&self) -> &Frame {
        &self.frame
    }
}

impl Layout {
    /// Returns the layout of a page that answers a request.
    pub(crate) fn new(context: &RequestContext, title: impl Into<String>, viewer: Viewer) -> Self {
        Self {
            title: title.into(),
            frame: Arc::clone(&context.app.frame),
            current_path: context.current_path.clone(),
            read_only: context.app.read_only,
            identity: context.identity.clone(),
            viewer,
            zone: context.zone.clone(),
        }
    }

    /// Returns the name of the time zone.
    pub(crate) fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Returns the time zone of a period that was searched for: `given`, or else that of the browser.
    pub(crate) fn zone_of<'a>(&'a self, given: &'a str) -> &'a str {
        if given.is_empty() { self.zone_name() } else { given }
    }

    /// Returns the URL of a list or its file, with the parameters of this page and another value of one
    /// of them. Unless that is the cursor, the URL is that of the first page.
    pub(crate) fn link(&self, path: &str, name: &str, value: impl Display) -> String {
        let query = changed_query(&self.current_path, name, &value.to_string());
        format!("{}{path}{}{query}", self.base, if query.is_empty() { "" } else { "?" })
    }

    /// Returns whether this page belongs to the screen.
    pub(crate) fn is_current(&self, screen: &&NavItem) -> bool {
        let path = self.current_path.split('?').next().unwrap_or_default();
        if screen.path == "/" { path == "/" } else { path.starts_with(screen.path) }
    }
}

/// Returns the query of a path with another value of one parameter. Another filter begins with the first
/// page, and a time zone without a period has no effect.
fn changed_query(path: &str, name: &str, value: &str) -> String {
    let uri = path.parse().unwrap_or_default();
    let given: Vec<(String, String)> =
        Query::try_from_uri(&uri).map_or_else(|_| Vec::new(), |it| it.0);
    let has_period =
        given.iter().any(|(key, it)| ["from", "to"].contains(&&**key) && !it.trim().is_empty());
    let stays = |key: &str| match key {
        "after" | "before" => false,
        "zone" => has_period,
        key => key != name,
    };
    let kept =
        given.iter().filter(|(key, _)| stays(key)).map(|(key, it)| (key.as_str(), it.as_str()));
    format::query_string(&kept.chain([(name, value)]).collect::<Vec<_>>())
}

/// Renders a template as an HTML response.
pub(crate) fn render(template: &impl Template) -> HandlerResult {
    Ok(Html(template.render()?).into_response())
}

#[cfg(test)]
mod tests {
    use super::changed_query;

    #[test]
    fn another_page_keeps_the_filter_and_another_filter_begins_with_the_first_page() {
        let path = "/audit?subject=queue%20a%26b&since=2h&zone=Europe/Berlin&before=9";
        let kept = "subject=queue%20a%26b&since=2h";
        assert_eq!(changed_query(path, "before", "7"), format!("{kept}&before=7"));
        assert_eq!(changed_query(path, "before", ""), kept);
        let other = "subject=queue%20a%26b&since=1d";
        assert_eq!(changed_query(path, "since", "1d"), other);
        let period = format!("{path}&from=2026-12-01");
        let query = "since=2h&zone=Europe%2FBerlin&from=2026-12-01&subject=x";
        assert_eq!(changed_query(&period, "subject", "x"), query);
        assert_eq!(changed_query("/runs", "state", ""), "");
    }
}
