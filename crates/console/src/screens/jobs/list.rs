//! Jobs screen: all jobs, each with its newest run.

use queue::insight::jobs::{self, JobPage as Listing};

use crate::screens::prelude::*;

/// Jobs per page.
const PAGE_SIZE: i64 = 100;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/jobs", get(show))
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub(crate) struct JobsParams {
    /// `next` of the previous page
    pub(crate) after: String,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    page: Layout,
    listing: Listing,
}

/// Reads a page of jobs.
pub(crate) async fn data(tx: &Transaction<'_>, after: &str) -> Result<Listing, QueueError> {
    jobs::page(tx, after, PAGE_SIZE).await
}

async fn show(mut request: ReadRequest, Query(params): Query<JobsParams>) -> HandlerResult {
    let read = request.begin().await?;
    let listing = data(&read.tx, &params.after).await?;
    render(&JobsPage { page: read.layout("Jobs"), listing })
}
