//! Schedules screen: all schedules with their next fire and recent runs.

use schedule::Timing;
use schedule::page::{self, PageFrom, ScheduleSummary};
use schedule::queries::{self, AnnotationError, ScheduleStatus};

use crate::screens::prelude::*;

/// Schedules per page.
const PAGE_SIZE: i64 = 100;

/// A schedule is overdue after this time; a healthy fleet ticks within seconds.
const OVERDUE_AFTER_SECONDS: f64 = 60.0;

/// Number of recent runs shown as marks.
pub(crate) const RECENT: i64 = 12;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/schedules", get(list))
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub(crate) struct SchedulesParams {
    /// `next` of the previous page
    after: String,
    /// Whether the list contains schedules whose declaration was removed
    removed: bool,
}

/// A page of schedules, and errors in comment annotations.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SchedulePage)]
pub(crate) struct Listing {
    pub(crate) schedules: Vec<ScheduleSummary>,
    pub(crate) declaration_errors: Vec<AnnotationError>,
    pub(crate) next: Option<String>,
}

#[derive(Template)]
#[template(path = "schedules.html")]
struct SchedulesPage {
    page: Layout,
    listing: Listing,
    removed: bool,
}

impl SchedulesPage {
    fn next(&self, it: &ScheduleSummary) -> Option<String> {
        it.status.next_fire_at.map(|at| local_time(&it.status.timing, at))
    }
}

/// Reads a page of schedules.
pub(crate) async fn data(
    tx: &Transaction<'_>,
    params: &SchedulesParams,
) -> Result<Listing, QueueError> {
    let from = match params.removed {
        false => PageFrom::After(&params.after, PAGE_SIZE),
        true => PageFrom::AfterWithRemoved(&params.after, PAGE_SIZE),
    };
    let page = page::page(tx, from, RECENT).await?;
    let declaration_errors = queries::annotation_errors(tx).await?;
    Ok(Listing { schedules: page.schedules, declaration_errors, next: page.next })
}

async fn list(mut request: ReadRequest, Query(params): Query<SchedulesParams>) -> HandlerResult {
    let read = request.begin().await?;
    let listing = data(&read.tx, &params).await?;
    let page = read.layout("Schedules");
    render(&SchedulesPage { page, listing, removed: params.removed })
}

/// Formats a time in the time zone of the schedule.
pub(crate) fn local_time(timing: &str, at: Timestamp) -> String {
    at.to_zoned(zone(timing)).strftime("%a %F %H:%M:%S %Z").to_string()
}

/// Returns the time zone of a timing.
pub(crate) fn zone(timing: &str) -> TimeZone {
    let timing = Timing::parse(timing).ok();
    let cadence = timing.as_ref().and_then(Timing::cadence);
    cadence.map_or(TimeZone::UTC, |cadence| cadence.zone().clone())
}

/// Returns by how long the evaluation of the schedule is overdue; `None` if it is no more overdue
/// than in a healthy fleet.
pub(crate) fn overdue(it: &ScheduleSummary) -> Option<String> {
    it.overdue_seconds.filter(|seconds| *seconds > OVERDUE_AFTER_SECONDS).map(format::span)
}

/// Returns why the new timing of a schedule is not in force.
pub(crate) fn new_timing_error(it: &ScheduleStatus) -> String {
    it.new_timing_error.clone().unwrap_or_else(|| "no worker has checked it yet".to_owned())
}
