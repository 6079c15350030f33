//! Runs screen: list of runs, filtered by state, job and schedule.

use queue::insight::eta::{MAX_TASKS_OF_LIST, etas};
use queue::insight::runs::{self, COUNT_LIMIT, RunPage as Listing, RunQuery};
use queue::run::RunState;

use crate::screens::prelude::*;

/// Runs per page.
const PAGE_SIZE: i64 = 50;

/// Maximum number of runs whose expected end the list contains.
const MAX_ETAS: usize = 20;

/// Runs that a download reads at a time.
const DOWNLOAD_PAGE_SIZE: i64 = 500;

const STATES: [(&str, &str); 5] = [
    ("all", ""),
    ("running", "running"),
    ("failed", "failed"),
    ("succeeded", "succeeded"),
    ("cancelled", "cancelled"),
];

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/runs", get(show)).route("/runs/download", get(download::<RunsParams>))
}

/// Query parameters of the screen; empty parameters are ignored.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub(crate) struct RunsParams {
    /// state of the runs
    #[param(value_type = RunState, inline)]
    state: String,
    /// runs that include this job
    job: String,
    /// runs fired by this schedule
    schedule: String,
    /// runs that started at this time or later, such as 2026-12-01T14:00
    #[param(value_type = String, example = "2026-12-01T14:00")]
    from: String,
    /// runs that started at this time or earlier
    #[param(value_type = String, example = "2026-12-02T14:00")]
    to: String,
    /// time zone of `from` and `to`, such as Europe/Berlin; UTC if it is missing
    #[param(value_type = String, example = "UTC")]
    zone: String,
    /// `next` of the previous page
    #[param(value_type = i64)]
    after: String,
}

impl RunsParams {
    fn query(&self) -> Result<RunQuery, HttpError> {
        let state = filter::given(&self.state).map(|word| word.parse()).transpose();
        let after = filter::given(&self.after).map(|id| id.parse()).transpose();
        Ok(RunQuery {
            state: state.map_err(|message: String| {
                let states = RunState::ALL.iter().map(|it| it.as_str()).collect::<Vec<_>>();
                filter::invalid(message, format!("one of {}", states.join(", ")))
            })?,
            job: filter::given(&self.job),
            schedule: filter::given(&self.schedule),
            from: filter::time_in_zone(&self.from, &self.zone)?,
            to: filter::time_in_zone(&self.to, &self.zone)?,
            after: after
                .map_err(|_| filter::invalid("invalid page cursor", "start at the first page"))?,
        })
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

/// Reads a page of runs.
pub(crate) async fn data(tx: &Transaction<'_>, params: &RunsParams) -> Result<Listing, HttpError> {
    let mut page = runs::page(tx, &params.query()?, PAGE_SIZE).await?;
    let in_progress = page.runs.iter().filter(|run| run.state == RunState::Running);
    let ids: Vec<RunId> = in_progress.take(MAX_ETAS).map(|run| run.id).collect();
    let etas = etas(tx, &ids, MAX_TASKS_OF_LIST).await?;
    for run in &mut page.runs {
        run.eta_at = etas.get(&run.id).and_then(|eta| eta.clone().ok());
    }
    Ok(page)
}

async fn show(mut request: ReadRequest, Query(params): Query<RunsParams>) -> HandlerResult {
    let read = request.begin().await?;
    let (listing, timed_out) = HttpError::unless_timed_out(data(&read.tx, &params).await)?;
    render(&RunsPage { page: read.layout("Runs"), params, listing, timed_out })
}

impl FileList for RunsParams {
    const NAME: &'static str = "runs";
    const COLUMNS: &'static str = "id state jobs schedule started_at started_by finished_at \
        duration_seconds restarts tasks finished failed";

    async fn rows(&self, tx: &mut Transaction<'_>, after: &str) -> Result<FileRows, HttpError> {
        let query = self.query()?;
        let query = RunQuery { after: after.parse().ok().or(query.after), ..query };
        let page = runs::page(&*tx, &query, DOWNLOAD_PAGE_SIZE).await?;
        Ok(FileRows::new(&page.runs, page.next.map(|id| id.to_string())))
    }
}
