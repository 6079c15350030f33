//! The frame around every screen.

use std::fmt;

use askama::Template;
use askama::filters::HtmlSafe;
use axum::response::{Html, IntoResponse, Response};
use queue::insight::viewer::Viewer;

use crate::screens::{SCREENS, Screen};
use crate::trouble::Trouble;

/// HTML that was put together here, every foreign text in it escaped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Markup(pub(crate) String);

impl fmt::Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Markup {}

/// The text with what means something in HTML, also inside of quotes, written out.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// What the frame shows.
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) base: String,
    /// Path and query of this page, without the base path.
    pub(crate) here: String,
    pub(crate) read_only: bool,
    pub(crate) csrf: String,
    pub(crate) name: Option<String>,
    pub(crate) signed_in: bool,
    pub(crate) viewer: Viewer,
}

impl Page {
    /// Screens of the navigation.
    pub(crate) fn screens(&self) -> &'static [Screen] {
        SCREENS
    }

    /// Whether this page belongs to the screen.
    pub(crate) fn within(&self, screen: &&Screen) -> bool {
        let path = self.here.split('?').next().unwrap_or_default();
        if screen.path == "/" { path == "/" } else { path.starts_with(screen.path) }
    }
}

/// A template as an answer.
pub(crate) fn show(template: &impl Template) -> Result<Response, Trouble> {
    Ok(Html(template.render()?).into_response())
}
