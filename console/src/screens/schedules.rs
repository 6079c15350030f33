//! Schedules: what fires when, and how the last fires ended.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::QueueError;
use schedule::Timing;
use schedule::page::{self, From, Listed};
use schedule::show::{self, CommentMistake};
use serde::{Deserialize, Serialize};

use super::Shown;
use crate::app::App;
use crate::page::{Markup, Page, escaped, show as answer};
use crate::visit::Visit;
use crate::words;

/// Schedules of a page.
const LIMIT: i64 = 100;

/// A fleet ticks within seconds.
const PATIENCE_SECONDS: f64 = 60.0;

/// Marks of a strip.
pub(crate) const RECENT: i64 = 12;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/schedules", get(list)).merge(super::schedule::routes())
}

#[derive(Debug, Default, Deserialize)]
struct Ask {
    #[serde(default)]
    behind: String,
}

/// A page of them, and what is wrong in comments.
#[derive(Serialize)]
pub(crate) struct Listing {
    pub(crate) schedules: Vec<Listed>,
    pub(crate) mistakes: Vec<CommentMistake>,
    pub(crate) next: Option<String>,
}

#[derive(Template)]
#[template(path = "schedules.html")]
struct Screen {
    page: Page,
    listing: Listing,
}

impl Screen {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn strip(&self, it: &Listed) -> Markup {
        strip(&self.page.base, it)
    }

    fn overdue(&self, it: &Listed) -> Option<String> {
        overdue(it)
    }

    fn next(&self, it: &Listed) -> Option<String> {
        it.status.next_fire_at.map(|at| there(&it.status.timing, at))
    }
}

/// Reads a page.
pub(crate) async fn data(look: &Transaction<'_>, behind: &str) -> Result<Listing, QueueError> {
    let page = page::page(&**look, From::Behind(behind, LIMIT), RECENT).await?;
    let mistakes = show::mistakes(&**look).await?;
    Ok(Listing { schedules: page.schedules, mistakes, next: page.next })
}

async fn list(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let listing = data(&look, &ask.behind).await?;
    answer(&Screen { page: visit.page("Schedules", viewer), listing })
}

/// An instant on the wall clock of the schedule, with its zone.
pub(crate) fn there(timing: &str, at: Timestamp) -> String {
    let timing = Timing::parse(timing).ok();
    let zone = timing.as_ref().and_then(Timing::cadence).map(|it| it.zone().clone());
    let there = at.to_zoned(zone.unwrap_or(jiff::tz::TimeZone::UTC));
    there.strftime("%a %F %H:%M:%S %Z").to_string()
}

/// How long nobody has ticked, if a healthy fleet would have.
pub(crate) fn overdue(it: &Listed) -> Option<String> {
    it.overdue_seconds.filter(|seconds| *seconds > PATIENCE_SECONDS).map(words::span)
}

/// A mark for each of the last runs, the newest last; its word is its title and its label.
pub(crate) fn strip(base: &str, it: &Listed) -> Markup {
    let mark = |recent: &page::Recent| {
        let told = format!(
            "run {}, {}: {}",
            recent.run,
            recent.fire_at.strftime("%F %H:%M UTC"),
            recent.state
        );
        format!(
            "<a class=\"mark {0}\" href=\"{1}/runs/{2}\" title=\"{3}\"><span class=\"hidden\">{3}</span></a>",
            words::class(recent.state.as_str()),
            escaped(base),
            recent.run,
            escaped(&told),
        )
    };
    Markup(format!(
        "<span class=\"strip\">{}</span>",
        it.recent.iter().map(mark).collect::<String>()
    ))
}
