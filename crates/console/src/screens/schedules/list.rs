//! Schedules screen: all schedules with their next fire and recent runs.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use queue::QueueError;
use schedule::Timing;
use schedule::page::{self, PageFrom, ScheduleSummary};
use schedule::queries::{self, AnnotationError, ScheduleStatus};
use serde::{Deserialize, Serialize};

use crate::escape::{Markup, escaped};
use crate::http::app::App;
use crate::http::error::HandlerResult;
use crate::http::request::RequestContext;
use crate::page::format;
use crate::page::layout::{Layout, render};

/// Schedules per page.
const PAGE_SIZE: i64 = 100;

/// A schedule is overdue after this time; a healthy fleet ticks within seconds.
const OVERDUE_AFTER_SECONDS: f64 = 60.0;

/// Number of recent runs shown as marks.
pub(crate) const RECENT: i64 = 12;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/schedules", get(list))
}

#[derive(Debug, Default, Deserialize)]
struct SchedulesParams {
    #[serde(default)]
    after: String,
    #[serde(default)]
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
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn strip(&self, it: &ScheduleSummary) -> Markup {
        strip(&self.page.base, it)
    }

    fn overdue(&self, it: &ScheduleSummary) -> Option<String> {
        overdue(it)
    }

    fn new_timing_error(&self, it: &ScheduleSummary) -> String {
        new_timing_error(&it.status)
    }

    fn next(&self, it: &ScheduleSummary) -> Option<String> {
        it.status.next_fire_at.map(|at| local_time(&it.status.timing, at))
    }
}

/// Reads a page of schedules.
pub(crate) async fn data(
    tx: &Transaction<'_>,
    after: &str,
    removed: bool,
) -> Result<Listing, QueueError> {
    let from = match removed {
        false => PageFrom::After(after, PAGE_SIZE),
        true => PageFrom::AfterWithRemoved(after, PAGE_SIZE),
    };
    let page = page::page(&**tx, from, RECENT).await?;
    let declaration_errors = queries::annotation_errors(&**tx).await?;
    Ok(Listing { schedules: page.schedules, declaration_errors, next: page.next })
}

async fn list(context: RequestContext, Query(params): Query<SchedulesParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let listing = data(&tx, &params.after, params.removed).await?;
    let page = Layout::new(&context, "Schedules", viewer);
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

/// Draws a mark per recent run, newest last; the title and the label of a mark name the state.
pub(crate) fn strip(base: &str, it: &ScheduleSummary) -> Markup {
    let mark = |recent: &page::RecentRun| {
        let title = format!(
            "run {}, {}: {}",
            recent.run_id,
            recent.fire_at.strftime("%F %H:%M UTC"),
            recent.state
        );
        format!(
            "<a class=\"mark {0}\" href=\"{1}/runs/{2}\" title=\"{3}\"><span class=\"hidden\">{3}</span></a>",
            format::state_class(recent.state.as_str()),
            escaped(base),
            recent.run_id,
            escaped(&title),
        )
    };
    Markup(format!(
        "<span class=\"strip\">{}</span>",
        it.recent.iter().map(mark).collect::<String>()
    ))
}
