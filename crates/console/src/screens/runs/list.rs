//! Runs screen: list of runs, filtered by state, job and schedule.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::RunId;
use queue::insight::eta::{MAX_TASKS_OF_LIST, etas};
use queue::insight::runs::{self, COUNT_LIMIT, RunPage as Listing, RunQuery, RunSummary};
use queue::run::RunState;
use serde::Deserialize;

use crate::escape::Markup;
use crate::filter::{self, FilterError};
use crate::http::app::App;
use crate::http::download::{DownloadFormat, DownloadPage, download, json_rows};
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::RequestContext;
use crate::page::format;
use crate::page::layout::{Layout, render};

/// Runs per page.
const PAGE_SIZE: i64 = 50;

/// Maximum number of runs whose expected end the list contains.
const MAX_ETAS: usize = 20;

/// Runs that a download reads at a time.
const DOWNLOAD_PAGE_SIZE: i64 = 500;

/// Columns of a CSV file.
const COLUMNS: [&str; 12] = [
    "id",
    "state",
    "jobs",
    "schedule",
    "started_at",
    "started_by",
    "finished_at",
    "duration_seconds",
    "restarts",
    "tasks",
    "finished",
    "failed",
];

const STATES: [(&str, &str); 5] = [
    ("all", ""),
    ("running", "running"),
    ("failed", "failed"),
    ("succeeded", "succeeded"),
    ("cancelled", "cancelled"),
];

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/runs", get(show)).route("/runs/download", get(save_as))
}

/// Query parameters of the screen; empty parameters are ignored.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
pub(crate) struct RunsParams {
    /// state of the runs
    #[serde(default)]
    #[param(value_type = RunState, inline)]
    state: String,
    /// runs that include this job
    #[serde(default)]
    job: String,
    /// runs fired by this schedule
    #[serde(default)]
    schedule: String,
    /// runs that started at this time or later, such as 2026-12-01T14:00
    #[serde(default)]
    #[param(value_type = String, example = "2026-12-01T14:00")]
    from: String,
    /// runs that started at this time or earlier
    #[serde(default)]
    #[param(value_type = String, example = "2026-12-02T14:00")]
    to: String,
    /// time zone of `from` and `to`, such as Europe/Berlin; UTC if it is missing
    #[serde(default)]
    #[param(value_type = String, example = "UTC")]
    zone: String,
    /// `next` of the previous page
    #[serde(default)]
    #[param(value_type = i64)]
    after: String,
}

impl RunsParams {
    fn query(&self) -> Result<RunQuery, FilterError> {
        let given = |text: &str| (!text.trim().is_empty()).then(|| text.trim().to_owned());
        let state = given(&self.state).map(|word| word.parse()).transpose();
        let after = given(&self.after).map(|id| id.parse()).transpose();
        Ok(RunQuery {
            state: state.map_err(|message: String| {
                let states = RunState::ALL.iter().map(|it| it.as_str()).collect::<Vec<_>>();
                filter::invalid(message, format!("one of {}", states.join(", ")))
            })?,
            job: given(&self.job),
            schedule: given(&self.schedule),
            from: filter::time_in_zone(&self.from, &self.zone)?,
            to: filter::time_in_zone(&self.to, &self.zone)?,
            after: after
                .map_err(|_| filter::invalid("invalid page cursor", "start at the first page"))?,
        })
    }

    /// Returns the query string with another state and cursor.
    fn query_string(&self, state: &str, after: &str) -> String {
        let period = !(self.from.trim().is_empty() && self.to.trim().is_empty());
        format::query_string(&[
            ("state", state),
            ("job", &self.job),
            ("schedule", &self.schedule),
            ("from", &self.from),
            ("to", &self.to),
            ("zone", if period { &self.zone } else { "" }),
            ("after", after),
        ])
    }

    /// Returns the URL of the list with another state or cursor.
    fn path(&self, base: &str, state: &str, after: &str) -> String {
        let query = self.query_string(state, after);
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{base}/runs{mark}{query}")
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

    fn download_path(&self, format: &str) -> String {
        let query = self.params.query_string(&self.params.state, "");
        let separator = if query.is_empty() { "" } else { "&" };
        format!("{}/runs/download?{query}{separator}format={format}", self.page.base)
    }

    /// Returns the time zone of the period, which is that of the browser unless the URL has one.
    fn zone(&self) -> &str {
        if self.params.zone.is_empty() { self.page.zone_name() } else { &self.params.zone }
    }

    fn eta(&self, run: &RunSummary) -> Option<Markup> {
        run.eta_at.map(|at| format::ago(at, self.page.viewer.now))
    }

    fn failed(&self, run: &RunSummary) -> String {
        format::count(run.failed, run.finished_at.is_none() && run.failed >= COUNT_LIMIT)
    }
}

/// Reads a page of runs.
pub(crate) async fn data(tx: &Transaction<'_>, params: &RunsParams) -> Result<Listing, HttpError> {
    let mut page = runs::page(&**tx, &params.query()?, PAGE_SIZE).await?;
    let in_progress = page.runs.iter().filter(|run| run.state == RunState::Running);
    let ids: Vec<RunId> = in_progress.take(MAX_ETAS).map(|run| run.id).collect();
    let etas = etas(&**tx, &ids, MAX_TASKS_OF_LIST).await?;
    for run in &mut page.runs {
        run.eta_at = etas.get(&run.id).and_then(|eta| eta.clone().ok());
    }
    Ok(page)
}

async fn show(context: RequestContext, Query(params): Query<RunsParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let (listing, timed_out) = match data(&tx, &params).await {
        Err(error) if error.timed_out() => (Listing::default(), true),
        listing => (listing?, false),
    };
    let page = Layout::new(&context, "Runs", viewer);
    render(&RunsPage { page, params, listing, timed_out })
}

async fn save_as(
    context: RequestContext,
    Query(params): Query<RunsParams>,
    Query(pairs): Query<HashMap<String, String>>,
) -> HandlerResult {
    let format = DownloadFormat::parse(pairs.get("format").map_or("", String::as_str))?;
    let shared = Arc::new((context, params.query()?));
    let read = move |after: String| {
        let shared = Arc::clone(&shared);
        async move {
            let (context, query) = &*shared;
            let query = RunQuery { after: after.parse().ok().or(query.after), ..query.clone() };
            let mut session = context.session().await?;
            let tx = session.begin_read().await?;
            let page = runs::page(&*tx, &query, DOWNLOAD_PAGE_SIZE).await?;
            let next = page.next.map(|id| id.to_string());
            Ok(DownloadPage { rows: json_rows(&page.runs), next })
        }
    };
    download(("runs", format), &COLUMNS, read).await
}
