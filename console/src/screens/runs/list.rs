//! Runs screen: list of runs, filtered by state, job and schedule.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::insight::runs::{self, COUNT_LIMIT, RunPage as Listing, RunQuery, RunSummary};
use serde::Deserialize;

use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::RequestContext;
use crate::page::format;
use crate::page::layout::{Layout, render};

/// Runs per page.
const PAGE_SIZE: i64 = 50;

const STATES: [(&str, &str); 5] = [
    ("all", ""),
    ("running", "running"),
    ("failed", "failed"),
    ("succeeded", "succeeded"),
    ("cancelled", "cancelled"),
];

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/runs", get(show))
}

/// Query parameters of the screen; empty parameters are ignored.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
pub(crate) struct RunsParams {
    /// state of the runs
    #[serde(default)]
    #[param(value_type = queue::run::RunState, inline)]
    pub(crate) state: String,
    /// runs that include this job
    #[serde(default)]
    pub(crate) job: String,
    /// runs fired by this schedule
    #[serde(default)]
    pub(crate) schedule: String,
    /// `next` of the previous page
    #[serde(default)]
    #[param(value_type = i64)]
    pub(crate) after: String,
}

impl RunsParams {
    fn query(&self) -> Result<RunQuery, HttpError> {
        let given = |text: &str| (!text.trim().is_empty()).then(|| text.trim().to_owned());
        let state = given(&self.state).map(|word| word.parse()).transpose();
        let after = given(&self.after).map(|id| id.parse()).transpose();
        Ok(RunQuery {
            state: state.map_err(HttpError::bad_request)?,
            job: given(&self.job),
            schedule: given(&self.schedule),
            after: after.map_err(|_| {
                HttpError::bad_request("invalid page cursor").hint("start at the first page")
            })?,
        })
    }

    /// Returns the URL of the list with another state or cursor.
    fn path(&self, base: &str, state: &str, after: &str) -> String {
        let pairs = [
            ("state", state),
            ("job", self.job.trim()),
            ("schedule", self.schedule.trim()),
            ("after", after),
        ];
        let given = pairs.iter().filter(|(_, value)| !value.is_empty());
        let query: Vec<String> =
            given.map(|(name, value)| format!("{name}={}", format::url_encode(value))).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{base}/runs{mark}{}", query.join("&"))
    }
}

#[derive(Template)]
#[template(path = "runs.html")]
struct RunsPage {
    page: Layout,
    params: RunsParams,
    listing: Listing,
    timed_out: bool,
}

impl RunsPage {
    fn states(&self) -> &'static [(&'static str, &'static str)] {
        &STATES
    }

    fn with_state(&self, state: &&str) -> String {
        self.params.path(&self.page.base, state, "")
    }

    fn older_path(&self, id: &i64) -> String {
        self.params.path(&self.page.base, &self.params.state, &id.to_string())
    }

    fn failed(&self, run: &RunSummary) -> String {
        format::count(run.failed, run.finished_at.is_none() && run.failed >= COUNT_LIMIT)
    }
}

/// Reads a page of runs.
pub(crate) async fn data(tx: &Transaction<'_>, params: &RunsParams) -> Result<Listing, HttpError> {
    Ok(runs::page(&**tx, &params.query()?, PAGE_SIZE).await?)
}

async fn show(context: RequestContext, Query(params): Query<RunsParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let mut timed_out = false;
    let listing = match data(&tx, &params).await {
        Err(error) if error.timed_out() => {
            timed_out = true;
            Listing::default()
        }
        listing => listing?,
    };
    render(&RunsPage { page: Layout::new(&context, "Runs", viewer), params, listing, timed_out })
}
