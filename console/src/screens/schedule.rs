//! One schedule: what it says, when it fires next and why not now, what it started, what happened.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::QueueError;
use queue::insight::viewer::Viewer;
use schedule::Timing;
use schedule::kinds::FireMode;
use schedule::page::{self, From, Listed};
use schedule::show::{self, Fired, Logged, Test, Wanted};
use serde::{Deserialize, Serialize};

use super::schedules::{RECENT, overdue, strip, there};
use super::{Shown, schedule_acts};
use crate::app::App;
use crate::page::{Markup, Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::Visit;
use crate::words;

/// Fires that are foretold.
const FIRES: usize = 5;

/// Rows of history and of the log.
const LATEST: i64 = 20;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/schedules/one", get(one)).merge(schedule_acts::routes())
}

#[derive(Debug, Default, Deserialize)]
struct Ask {
    #[serde(default)]
    name: String,
    /// Runs and events before these.
    #[serde(default)]
    run: String,
    #[serde(default)]
    event: String,
}

/// All that is known of it.
#[derive(Serialize)]
pub(crate) struct Known {
    pub(crate) schedule: Listed,
    pub(crate) fires: Vec<Fire>,
    pub(crate) history: Vec<Fired>,
    pub(crate) log: Vec<Logged>,
}

/// An instant at which it will fire.
#[derive(Serialize)]
pub(crate) struct Fire {
    pub(crate) at: Timestamp,
    /// On the wall clock of the schedule, with its zone.
    pub(crate) there: String,
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct Screen {
    page: Page,
    name: String,
    known: Known,
    test: Option<Test>,
    tested: bool,
}

impl Screen {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }

    fn strip(&self) -> Markup {
        strip(&self.page.base, &self.known.schedule)
    }

    fn overdue(&self, it: &Listed) -> Option<String> {
        overdue(it)
    }

    fn triggered(&self) -> bool {
        self.known.schedule.status.mode == FireMode::Triggered
    }

    fn in_force(&self) -> bool {
        self.known.schedule.status.removed_at.is_none()
    }

    fn declared(&self) -> String {
        let it = &self.known.schedule.status;
        match (&it.declared_as, it.declared_in.as_str()) {
            (Some(procedure), _) => format!("in the comment of {procedure}"),
            (None, "file") => "in a file".to_owned(),
            (None, _) => "by a call".to_owned(),
        }
    }

    fn params(&self) -> Option<String> {
        let params = &self.known.schedule.status.params;
        params.as_object().filter(|it| !it.is_empty()).map(|_| params.to_string())
    }

    fn event_class(&self, it: &Logged) -> &'static str {
        match (it.event.as_str(), it.outcome.as_deref()) {
            ("error", _) | (_, Some("failed")) => "failed",
            ("skipped" | "missed" | "reclaimed", _) | (_, Some("cancelled")) => "cancelled",
            (_, Some("succeeded")) => "succeeded",
            _ => "waiting",
        }
    }

    /// A page begins behind the last run, or the last event, of this one.
    fn more_runs(&self) -> Option<i64> {
        let full = i64::try_from(self.known.history.len()).is_ok_and(|it| it >= LATEST);
        self.known.history.last().filter(|_| full).map(|it| it.run)
    }

    fn more_events(&self) -> Option<i64> {
        let full = i64::try_from(self.known.log.len()).is_ok_and(|it| it >= LATEST);
        self.known.log.last().filter(|_| full).map(|it| it.id)
    }
}

/// Reads it.
pub(crate) async fn data(look: &Transaction<'_>, name: &str) -> Result<Known, Trouble> {
    read(look, name, (None, None)).await
}

async fn read(
    look: &Transaction<'_>,
    name: &str,
    (run, event): (Option<i64>, Option<i64>),
) -> Result<Known, Trouble> {
    let page = page::page(&**look, From::Name(name), RECENT).await?;
    let schedule = page.schedules.into_iter().next().ok_or_else(|| missing(name))?;
    let timing = Timing::parse(&schedule.status.timing).ok();
    let now = queue::show::now(&**look).await?;
    let cadence = timing.as_ref().and_then(Timing::cadence);
    let at = cadence.iter().flat_map(|it| it.fires(now).take(FIRES)).collect::<Vec<_>>();
    let fire = |at| Fire { at, there: there(&schedule.status.timing, at) };
    let fires = at.into_iter().map(fire).collect();
    let wanted =
        Wanted { schedule: Some(name.to_owned()), before: run, limit: LATEST, ..Wanted::default() };
    let history = show::history(&**look, &wanted).await?;
    let log = show::log(&**look, Some(name), None, event, LATEST).await?.unwrap_or_default();
    Ok(Known { schedule, fires, history, log })
}

/// There is none.
pub(crate) fn missing(name: &str) -> Trouble {
    Trouble::not_found(format!("there is no schedule \"{name}\""))
}

async fn one(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let place = |text: &str| -> Result<Option<i64>, Trouble> {
        let given = Some(text).filter(|text| !text.is_empty()).map(str::parse);
        given.transpose().map_err(|_| Trouble::bad("the history has no such page"))
    };
    let place = (place(&ask.run)?, place(&ask.event)?);
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let known = read(&look, &ask.name, place).await?;
    // A clock costs nothing to look at. What a trigger asks is somebody's SQL: only on request.
    let clock = known.schedule.status.mode != FireMode::Triggered;
    let test = if clock { show::test(&*look, &ask.name).await? } else { None };
    screen(&visit, viewer, known, (test, false))
}

/// The page of a schedule; what a tick would do, and whether somebody asked for it.
pub(crate) fn screen(
    visit: &Visit,
    viewer: Viewer,
    known: Known,
    (test, tested): (Option<Test>, bool),
) -> Shown {
    let name = known.schedule.status.name.clone();
    answer(&Screen { page: visit.page(name.clone(), viewer), name, known, test, tested })
}

/// What a tick would do about it now.
pub(crate) async fn tested(look: &Transaction<'_>, name: &str) -> Result<Option<Test>, QueueError> {
    show::test(&**look, name).await
}
