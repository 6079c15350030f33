//! Jobs screen: all jobs, each with its newest run.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::QueueError;
use queue::insight::jobs::{self, JobPage as Listing};
use serde::Deserialize;

use crate::http::app::App;
use crate::http::error::HandlerResult;
use crate::http::request::RequestContext;
use crate::page::format;
use crate::page::layout::{Layout, render};

/// Jobs per page.
const PAGE_SIZE: i64 = 100;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/jobs", get(show))
}

#[derive(Debug, Default, Deserialize)]
struct JobsParams {
    #[serde(default)]
    after: String,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    page: Layout,
    listing: Listing,
}

impl JobsPage {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }
}

/// Reads a page of jobs.
pub(crate) async fn data(tx: &Transaction<'_>, after: &str) -> Result<Listing, QueueError> {
    jobs::page(&**tx, after, PAGE_SIZE).await
}

async fn show(context: RequestContext, Query(params): Query<JobsParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let listing = data(&tx, &params.after).await?;
    render(&JobsPage { page: Layout::new(&context, "Jobs", viewer), listing })
}
