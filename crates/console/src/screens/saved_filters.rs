//! Saved filters of a list, shared by all users: links, and forms to save and to remove one.

use axum::Router;
use axum::response::Response;
use axum::routing::post;
use queue::saved_filter::{self, SavedFilter};

use crate::http::app::App;
use crate::http::error::HttpError;
use crate::http::request::FormRequest;
use crate::page::format;

/// Maximum length of a name, in characters.
pub const MAX_FILTER_NAME_CHARS: usize = 60;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/filters/save", post(save)).route("/filters/remove", post(remove))
}

/// The saved filters of a list.
pub(crate) struct SavedFilters {
    /// Path of the screen without its slash.
    pub(crate) screen: &'static str,
    pub(crate) all: Vec<SavedFilter>,
    /// Query string of the page, without its cursor; empty: there is nothing to save.
    pub(crate) query: String,
}

impl SavedFilters {
    /// Builds the query string of a page from its parameters, without the empty ones.
    pub(crate) fn query_of(pairs: &[(&str, &str)]) -> String {
        let given = pairs.iter().filter(|(_, value)| !value.trim().is_empty());
        let query: Vec<String> = given
            .map(|(name, value)| format!("{name}={}", format::url_encode(value.trim())))
            .collect();
        query.join("&")
    }

    pub(crate) fn is_current(&self, filter: &SavedFilter) -> bool {
        filter.query == self.query
    }
}

async fn save(form: FormRequest) -> Result<Response, HttpError> {
    let (screen, name, query) = (form.field("screen"), form.field("name"), form.field("query"));
    if name.is_empty() || name.chars().count() > MAX_FILTER_NAME_CHARS {
        return Err(HttpError::bad_request(format!(
            "the name of a filter needs 1 to {MAX_FILTER_NAME_CHARS} characters"
        )));
    }
    // The redirection names the query.
    if !query.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(HttpError::bad_request("the query of a filter must be percent-encoded"));
    }
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    saved_filter::save(&*tx, screen, name, query).await?;
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/{screen}?{query}")))
}

async fn remove(form: FormRequest) -> Result<Response, HttpError> {
    let (screen, name) = (form.field("screen"), form.field("name"));
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if !saved_filter::remove(&*tx, screen, name).await? {
        return Err(HttpError::not_found(format!("there is no saved filter \"{name}\"")));
    }
    tx.commit().await?;
    Ok(form.redirect_back(&format!("/{screen}")))
}
