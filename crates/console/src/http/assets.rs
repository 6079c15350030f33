//! Embedded scripts and styles. Pages load nothing from other hosts.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::error::HttpError;

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Name, content type and content of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("console.css", STYLE, include_str!("../../static/console.css")),
    ("console.js", SCRIPT, include_str!("../../static/console.js")),
    ("plot.js", SCRIPT, include_str!("../../static/plot.js")),
    ("graph.js", SCRIPT, include_str!("../../static/graph.js")),
    ("gantt.js", SCRIPT, include_str!("../../static/gantt.js")),
    ("icon.svg", "image/svg+xml", include_str!("../../static/icon.svg")),
    ("htmx.js", SCRIPT, include_str!("../../static/vendor/htmx.min.js")),
    ("dagre.js", SCRIPT, include_str!("../../static/vendor/dagre.min.js")),
    ("uplot.js", SCRIPT, include_str!("../../static/vendor/uPlot.iife.min.js")),
    ("uplot.css", STYLE, include_str!("../../static/vendor/uPlot.min.css")),
];

pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/static/{name}", get(file))
}

/// Serves a file with an `ETag`: the browser revalidates each time, and the content is sent again
/// only if it has changed.
async fn file(Path(name): Path<String>, asked: HeaderMap) -> Result<Response, HttpError> {
    let (_, kind, content) = FILES
        .iter()
        .find(|(known, ..)| *known == name)
        .ok_or_else(|| HttpError::not_found("file not found"))?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    let tag = format!("\"{:x}\"", hasher.finish());
    if asked.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return Ok(StatusCode::NOT_MODIFIED.into_response());
    }
    let headers = [
        (header::CONTENT_TYPE, (*kind).to_owned()),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
        (header::ETAG, tag),
    ];
    Ok((headers, *content).into_response())
}
