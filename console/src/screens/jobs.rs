//! Jobs: named sets of tasks, each with its newest run.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::QueueError;
use queue::insight::jobs::{self, Page as Listing};
use serde::Deserialize;

use super::Shown;
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::visit::Visit;
use crate::words;

/// Jobs of a page.
const LIMIT: i64 = 100;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/jobs", get(show)).merge(super::job::routes())
}

#[derive(Debug, Default, Deserialize)]
struct Ask {
    #[serde(default)]
    behind: String,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct Screen {
    page: Page,
    listing: Listing,
}

impl Screen {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }
}

/// Reads a page.
pub(crate) async fn data(look: &Transaction<'_>, behind: &str) -> Result<Listing, QueueError> {
    jobs::page(&**look, behind, LIMIT).await
}

async fn show(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let listing = data(&look, &ask.behind).await?;
    answer(&Screen { page: visit.page("Jobs", viewer), listing })
}
