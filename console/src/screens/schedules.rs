//! Schedules: what fires when, and how the last fires ended.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::QueueError;
use schedule::Timing;
use schedule::page::{self, PageFrom, ScheduleSummary};
use schedule::queries::{self, AnnotationError};
use serde::{Deserialize, Serialize};

use super::HandlerResult;
use crate::app::App;
use crate::format;
use crate::layout::{Layout, Markup, escaped, render};
use crate::request::RequestContext;

/// Schedules of a page.
const PAGE_SIZE: i64 = 100;

/// A fleet ticks within seconds.
const OVERDUE_AFTER_SECONDS: f64 = 60.0;

/// Marks of a strip.
pub(crate) const RECENT: i64 = 12;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/schedules", get(list)).merge(super::schedule::routes())
}

#[derive(Debug, Default, Deserialize)]
struct SchedulesParams {
    #[serde(default)]
    after: String,
}

/// A page of them, and what is wrong in comments.
#[derive(Serialize)]
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

    fn next(&self, it: &ScheduleSummary) -> Option<String> {
        it.status.next_fire_at.map(|at| local_time(&it.status.timing, at))
    }
}

/// Reads a page.
pub(crate) async fn data(tx: &Transaction<'_>, after: &str) -> Result<Listing, QueueError> {
    let page = page::page(&**tx, PageFrom::After(after, PAGE_SIZE), RECENT).await?;
    let declaration_errors = queries::annotation_errors(&**tx).await?;
    Ok(Listing { schedules: page.schedules, declaration_errors, next: page.next })
}

async fn list(context: RequestContext, Query(params): Query<SchedulesParams>) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let listing = data(&tx, &params.after).await?;
    render(&SchedulesPage { page: context.layout("Schedules", viewer), listing })
}

/// An instant on the wall clock of the schedule, with its zone.
pub(crate) fn local_time(timing: &str, at: Timestamp) -> String {
    let timing = Timing::parse(timing).ok();
    let zone = timing.as_ref().and_then(Timing::cadence).map(|it| it.zone().clone());
    let there = at.to_zoned(zone.unwrap_or(jiff::tz::TimeZone::UTC));
    there.strftime("%a %F %H:%M:%S %Z").to_string()
}

/// How long nobody has ticked, if a healthy fleet would have.
pub(crate) fn overdue(it: &ScheduleSummary) -> Option<String> {
    it.overdue_seconds.filter(|seconds| *seconds > OVERDUE_AFTER_SECONDS).map(format::span)
}

/// A mark for each of the last runs, the newest last; its word is its title and its label.
pub(crate) fn strip(base: &str, it: &ScheduleSummary) -> Markup {
    let mark = |recent: &page::RecentRun| {
        let tooltip = format!(
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
            escaped(&tooltip),
        )
    };
    Markup(format!(
        "<span class=\"strip\">{}</span>",
        it.recent.iter().map(mark).collect::<String>()
    ))
}
