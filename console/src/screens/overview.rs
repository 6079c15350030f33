//! The first screen: what is wrong, then every queue.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use deadpool_postgres::Transaction;
use queue::insight::trouble;
use queue::insight::viewer::Viewer;
use queue::{QueueError, doctor, show as tasks};
use serde::Serialize;

use super::Shown;
use super::fill::{Fleet, Hour, QueueFill};
use super::problems::{Evidence, Problem, problems};
use crate::app::{App, Shared};
use crate::page::{Page, show as answer};
use crate::plots::{Ask, Columns, OFFERED};
use crate::tally::HOUR_MINUTES;
use crate::visit::Visit;
use crate::words;

/// More are not shown; the filter of the queues' screen finds them.
const MOST_QUEUES: usize = 200;

/// Problems that are shown without a click; the others would push the queues out of sight.
const FIRST: usize = 8;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/", get(show))
}

/// The whole of it.
#[derive(Serialize)]
pub(crate) struct Overview {
    pub(crate) problems: Vec<Problem>,
    pub(crate) queues: Vec<QueueFill>,
    pub(crate) hour: Hour,
    pub(crate) readers: i64,
    pub(crate) busy_readers: i64,
    pub(crate) workers_alive: usize,
    /// Of the last hour, so many minutes have been read.
    pub(crate) minutes_read: i64,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Screen {
    page: Page,
    it: Overview,
    hours: i64,
    /// Whose plots; empty: of all queues.
    queue: String,
    columns: Columns,
}

impl Screen {
    fn first(&self) -> &[Problem] {
        &self.it.problems[..self.it.problems.len().min(FIRST)]
    }

    fn rest(&self) -> &[Problem] {
        self.it.problems.get(FIRST..).unwrap_or_default()
    }

    fn offered() -> &'static [i64] {
        &OFFERED
    }

    /// The same page with plots of so many hours of this queue.
    fn plots_path(&self, hours: &i64, queue: &str) -> String {
        let query = plots_query(*hours, queue);
        format!("{}/?{query}#plots", self.page.base)
    }

    /// What plots are drawn from.
    fn source(&self) -> String {
        let query = plots_query(self.hours, &self.queue);
        format!("{}/api/v1/throughput?{query}", self.page.base)
    }

    fn hour_is_whole(&self) -> bool {
        self.it.minutes_read >= HOUR_MINUTES
    }
}

fn plots_query(hours: i64, queue: &str) -> String {
    let queue = words::encoded(queue);
    if queue.is_empty() { format!("hours={hours}") } else { format!("hours={hours}&queue={queue}") }
}

pub(crate) async fn show(visit: Visit, Query(ask): Query<Ask>) -> Shown {
    let hours = ask.hours()?;
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let it = data(&visit.app, &look, &viewer).await?;
    let columns = Columns::of(&visit.app.tally, &ask.queue, hours, viewer.now);
    answer(&Screen { page: visit.page("Overview", viewer), it, hours, queue: ask.queue, columns })
}

/// Reads it.
pub(crate) async fn data(
    app: &Shared,
    look: &Transaction<'_>,
    viewer: &Viewer,
) -> Result<Overview, QueueError> {
    let fleet = Fleet::look(look, &app.tally, viewer.now).await?;
    let mut queues = fleet.queues();
    let running = tasks::running(&**look, None).await?;
    let runs = trouble::failed_runs(&**look).await?;
    let missed = trouble::missed(&**look).await?;
    let horizon = doctor::horizon(&**look).await?;
    let problems = problems(&Evidence {
        fleet: &fleet,
        queues: &queues,
        running: &running,
        runs: &runs,
        missed: &missed,
        horizon: &horizon,
    });
    queues.truncate(MOST_QUEUES);
    let (busy_readers, readers) = fleet.readers();
    Ok(Overview {
        problems,
        queues,
        hour: Hour::of(fleet.minutes.iter(), viewer.now),
        readers,
        busy_readers,
        workers_alive: fleet.workers.iter().filter(|worker| worker.alive).count(),
        minutes_read: app.tally.read_minutes(viewer.now, HOUR_MINUTES),
    })
}
