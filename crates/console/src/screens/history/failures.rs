//! Failures screen: failed attempts grouped by cause.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::insight::{self, FailureGroup};
use serde::Deserialize;

use crate::filter::{self, FilterError};
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::RequestContext;
use crate::page::format;
use crate::page::layout::{Layout, render};

/// Maximum number of causes shown.
const MAX_GROUPS: usize = 200;

/// Maximum number of example tasks and names per cause.
const MAX_EXAMPLES: usize = 3;

/// Predefined time ranges.
const SPANS: [&str; 4] = ["1h", "6h", "1d", "7d"];

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/failures", get(show))
}

/// Query parameters of the screen.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
pub(crate) struct FailuresParams {
    /// only causes that occur in this queue
    #[serde(default)]
    queue: String,
    /// time range up to now: 90s, 15m, 2h, 3d; default 1h
    #[serde(default)]
    #[param(pattern = "^([0-9]{1,4}[smhd])?$")]
    since: String,
}

#[derive(Template)]
#[template(path = "failures.html")]
struct FailuresPage {
    page: Layout,
    params: FailuresParams,
    groups: Vec<FailureGroup>,
    filter_error: Option<FilterError>,
}

impl FailuresParams {
    fn span(&self) -> &str {
        if self.since.is_empty() { SPANS[0] } else { &self.since }
    }
}

impl FailuresPage {
    fn spans(&self) -> &'static [&'static str] {
        &SPANS
    }

    fn path(&self, since: &str) -> String {
        let queue = format::url_encode(&self.params.queue);
        let queue = if queue.is_empty() { queue } else { format!("&queue={queue}") };
        format!("{}/failures?since={}{queue}", self.page.base, format::url_encode(since))
    }

    /// Returns the message, or a placeholder if it is hidden.
    fn message<'a>(&self, group: &'a FailureGroup) -> &'a str {
        let hidden = if group.sqlstate.is_some() { terminal::HIDDEN } else { "" };
        group.message.as_deref().unwrap_or(hidden)
    }

    /// Returns the filter that selects the tasks with this cause.
    fn filter(&self, group: &FailureGroup) -> String {
        let queue = &self.params.queue;
        let queue = if queue.is_empty() { String::new() } else { format!(" queue:\"{queue}\"") };
        format!("state:{} cause:{}{queue} since:{}", group.outcome, group.cause, self.params.span())
    }

    fn retry_path(&self, group: &FailureGroup) -> String {
        format!("{}/tasks/bulk?q={}", self.page.base, format::url_encode(&self.filter(group)))
    }

    fn names(&self, group: &FailureGroup) -> String {
        let shown = group.names.iter().take(MAX_EXAMPLES).map(String::as_str);
        let more = if group.names.len() > MAX_EXAMPLES { ", …" } else { "" };
        format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
    }
}

/// Reads the causes, most frequent first. With a queue: the causes that occur in that queue, with
/// their attempts in all queues.
async fn read(
    tx: &Transaction<'_>,
    params: &FailuresParams,
) -> Result<Result<Vec<FailureGroup>, FilterError>, HttpError> {
    let since = match filter::since(params.span()) {
        Ok(since) => since,
        Err(error) => return Ok(Err(error)),
    };
    let mut groups = insight::failures(&**tx, since).await?;
    groups.retain(|group| params.queue.is_empty() || group.queues.contains(&params.queue));
    groups.truncate(MAX_GROUPS);
    Ok(Ok(groups))
}

/// Reads the causes for the API, where an invalid parameter is an error.
pub(crate) async fn groups(
    tx: &Transaction<'_>,
    params: &FailuresParams,
) -> Result<Vec<FailureGroup>, HttpError> {
    read(tx, params).await?.map_err(|it| HttpError::bad_request(it.message).hint(it.hint))
}

async fn show(context: RequestContext, Query(params): Query<FailuresParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let (groups, filter_error) = match read(&tx, &params).await? {
        Ok(groups) => (groups, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    render(&FailuresPage {
        page: Layout::new(&context, "Failures", viewer),
        params,
        groups,
        filter_error,
    })
}
