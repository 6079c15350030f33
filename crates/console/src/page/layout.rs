//! Page layout shared by all screens: title, navigation, user.

use askama::Template;
use axum::response::{Html, IntoResponse};
use jiff::tz::TimeZone;
use queue::insight::viewer::Viewer;

use crate::http::app::NavItem;
use crate::http::error::HandlerResult;
use crate::http::request::RequestContext;
use crate::options::environment::Environment;

/// Data of the page layout.
pub(crate) struct Layout {
    pub(crate) title: String,
    pub(crate) base: String,
    /// Base path of the console, which is different if it serves several databases.
    pub(crate) root: String,
    /// Name of the database among several.
    pub(crate) context: Option<String>,
    /// Path and query of this page, without the base path.
    pub(crate) current_path: String,
    pub(crate) read_only: bool,
    pub(crate) csrf: String,
    pub(crate) name: Option<String>,
    pub(crate) signed_in: bool,
    pub(crate) viewer: Viewer,
    pub(crate) environment: Option<Environment>,
    /// Time zone of the browser; UTC if it is not known.
    pub(crate) zone: TimeZone,
    nav_items: &'static [NavItem],
}

impl Layout {
    /// Returns the layout of a page that answers a request.
    pub(crate) fn new(context: &RequestContext, title: impl Into<String>, viewer: Viewer) -> Self {
        Self {
            title: title.into(),
            base: context.app.frame.base.clone(),
            root: context.app.frame.root.clone(),
            context: context.app.frame.context.clone(),
            current_path: context.current_path.clone(),
            read_only: context.app.read_only,
            csrf: context.identity.csrf.clone(),
            name: context.identity.name.clone(),
            signed_in: context.identity.signed_in,
            viewer,
            environment: context.app.frame.environment.clone(),
            zone: context.zone.clone(),
            nav_items: context.app.frame.nav_items,
        }
    }

    /// Returns the name of the time zone.
    pub(crate) fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Returns the entries of the navigation.
    pub(crate) fn nav_items(&self) -> &'static [NavItem] {
        self.nav_items
    }

    /// Returns whether this page belongs to the screen.
    pub(crate) fn is_current(&self, screen: &&NavItem) -> bool {
        let path = self.current_path.split('?').next().unwrap_or_default();
        if screen.path == "/" { path == "/" } else { path.starts_with(screen.path) }
    }
}

/// Renders a template as an HTML response.
pub(crate) fn render(template: &impl Template) -> HandlerResult {
    Ok(Html(template.render()?).into_response())
}
