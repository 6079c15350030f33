//! Schedule screen: definition, next fires, dry run, runs and log of a schedule.

use schedule::Timing;
use schedule::backfill::{self, Backfill, BackfillPreview};
use schedule::enums::{BackfillState, FireMode};
use schedule::jobs::{self, ScheduledJob};
use schedule::page::{self, PageFrom, ScheduleSummary};
use schedule::queries::{self, FiredRun, LogEntry, LogFilter, RunHistoryFilter, TestResult};

use super::list::{RECENT, local_time, new_timing_error, overdue, zone};
use crate::screens::prelude::*;

/// Number of next fires shown.
const NEXT_FIRES: usize = 5;

/// Maximum number of backfills shown.
const BACKFILLS: i64 = 5;

/// Rows per page of the run history and of the log.
const PAGE_SIZE: i64 = 20;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/schedules/detail", get(show))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ScheduleParams {
    name: String,
    /// Cursor: runs before this run.
    run: String,
    /// Cursor: events before this event.
    event: String,
}

/// Data of the screen.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct ScheduleDetail {
    pub(crate) schedule: ScheduleSummary,
    pub(crate) jobs: Vec<ScheduledJob>,
    /// Names of the parameters that its jobs take, except for those of the fire.
    pub(crate) params: Vec<String>,
    pub(crate) fires: Vec<Fire>,
    /// The newest backfills.
    pub(crate) backfills: Vec<Backfill>,
    pub(crate) history: Vec<FiredRun>,
    pub(crate) log: Vec<LogEntry>,
}

/// A future fire.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Fire {
    pub(crate) at: Timestamp,
    /// Local time in the time zone of the schedule.
    pub(crate) local_time: String,
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct SchedulePage {
    page: Layout,
    name: String,
    known: ScheduleDetail,
    shown: Shown,
}

/// What the page shows in addition to the schedule.
#[derive(Default)]
pub(crate) struct Shown {
    /// What a tick would do now.
    pub(crate) test: Option<TestResult>,
    /// Whether the user has requested this test as a dry run.
    pub(crate) tested: bool,
    /// The instants of a backfill that the user has requested as a dry run.
    pub(crate) preview: Option<BackfillPreview>,
}

impl SchedulePage {
    fn zone_name(&self) -> String {
        zone(&self.known.schedule.status.timing).iana_name().unwrap_or("UTC").to_owned()
    }

    fn local(&self, at: &Timestamp) -> String {
        local_time(&self.known.schedule.status.timing, *at)
    }

    /// Returns the error of a backfill, or else its runs by state.
    fn backfill_result(&self, it: &Backfill) -> String {
        if let Some(error) = &it.error {
            return format::one_line(error, 200);
        }
        let counts = [
            (it.running, "running"),
            (it.failed, "failed"),
            (it.cancelled, "cancelled"),
            (i64::from(it.skipped), "skipped"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        counts.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
    }

    fn backfill_actions(&self, it: &Backfill) -> [&'static str; 2] {
        match it.state {
            BackfillState::Paused => ["resume", "cancel"],
            _ => ["pause", "cancel"],
        }
    }

    fn declared(&self) -> String {
        let it = &self.known.schedule.status;
        match (&it.declared_as, it.declared_in.as_str()) {
            (Some(procedure), _) => format!("in the comment of {procedure}"),
            (None, "file") => "in a file".to_owned(),
            (None, _) => "by function call".to_owned(),
        }
    }

    fn own_params(&self) -> Option<String> {
        let params = &self.known.schedule.status.params;
        params.as_object().filter(|it| !it.is_empty()).map(|_| params.to_string())
    }

    fn event_class(&self, it: &LogEntry) -> &'static str {
        match (it.event.as_str(), it.outcome.as_deref()) {
            ("error", _) | (_, Some("failed")) => "failed",
            ("skipped" | "missed" | "reclaimed", _) | (_, Some("cancelled")) => "cancelled",
            (_, Some("succeeded")) => "succeeded",
            _ => "waiting",
        }
    }

    /// Returns the cursor of the next page of runs: the last run of this page.
    fn more_runs(&self) -> Option<i64> {
        last_of_full_page(&self.known.history).map(|it| it.run_id)
    }

    fn more_events(&self) -> Option<i64> {
        last_of_full_page(&self.known.log).map(|it| it.id)
    }
}

fn last_of_full_page<T>(rows: &[T]) -> Option<&T> {
    rows.last().filter(|_| rows.len().value() >= PAGE_SIZE)
}

/// Reads the first page of a schedule.
pub(crate) async fn data(tx: &Transaction<'_>, name: &str) -> Result<ScheduleDetail, HttpError> {
    read_page(tx, name, (None, None)).await
}

async fn read_page(
    tx: &Transaction<'_>,
    name: &str,
    (run, event): (Option<i64>, Option<i64>),
) -> Result<ScheduleDetail, HttpError> {
    let page = page::page(tx, PageFrom::Name(name), RECENT).await?;
    let schedule = page.schedules.into_iter().next().ok_or_else(|| no_such_schedule(name))?;
    let timing = Timing::parse(&schedule.status.timing).ok();
    let now = queue::task_queries::now(tx).await?;
    let cadence = timing.as_ref().and_then(Timing::cadence);
    let at = cadence.iter().flat_map(|it| it.fires(now).take(NEXT_FIRES)).collect::<Vec<_>>();
    let fire = |at| Fire { at, local_time: local_time(&schedule.status.timing, at) };
    let fires = at.into_iter().map(fire).collect();
    let wanted = RunHistoryFilter {
        schedule: Some(name.to_owned()),
        before: run,
        limit: PAGE_SIZE,
        ..RunHistoryFilter::default()
    };
    let history = queries::history(tx, &wanted).await?;
    let wanted = LogFilter {
        schedule: Some(name.to_owned()),
        before: event,
        limit: PAGE_SIZE,
        ..LogFilter::default()
    };
    let log = queries::log(tx, &wanted).await?.unwrap_or_default();
    let params = jobs::param_names(tx, name).await?;
    let jobs = jobs::jobs(tx, name).await?;
    let backfills = backfill::backfills(tx, Some(name), None, BACKFILLS).await?;
    Ok(ScheduleDetail { schedule, jobs, params, fires, backfills, history, log })
}

/// Returns the error for a missing schedule.
pub(crate) fn no_such_schedule(name: &str) -> HttpError {
    HttpError::not_found(format!("there is no schedule \"{name}\""))
}

async fn show(mut request: ReadRequest, Query(params): Query<ScheduleParams>) -> HandlerResult {
    let place = |text: &str| -> Result<Option<i64>, HttpError> {
        let given = Some(text).filter(|text| !text.is_empty()).map(str::parse);
        given.transpose().map_err(|_| HttpError::bad_request("invalid page cursor"))
    };
    let place = (place(&params.run)?, place(&params.event)?);
    let read = request.begin().await?;
    let known = read_page(&read.tx, &params.name, place).await?;
    // Evaluating a clock costs nothing. A trigger is SQL of the schedule's owner, and runs only on
    // request.
    let clock = known.schedule.status.mode != FireMode::Triggered;
    let test = if clock { queries::test(&*read.tx, &params.name).await? } else { None };
    let page = read.layout(known.schedule.status.name.clone());
    render_page(page, known, Shown { test, ..Shown::default() })
}

/// Renders the page.
pub(crate) fn render_page(page: Layout, known: ScheduleDetail, shown: Shown) -> HandlerResult {
    let name = known.schedule.status.name.clone();
    render(&SchedulePage { page, name, known, shown })
}
