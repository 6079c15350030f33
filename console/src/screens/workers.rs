//! Who works, and on what.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::roster::{self, Worker};
use queue::show::{self as tasks, Running};
use queue::{QueueError, WorkerId, operate};
use serde::Serialize;

use super::Shown;
use super::fill::{Fleet, QueueFill};
use crate::app::App;
use crate::page::{Page, show as answer};
use crate::trouble::Trouble;
use crate::visit::{Act, Visit};
use crate::words;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/workers", get(show)).route("/workers/{id}/drain", post(drain))
}

/// A worker and its tasks.
#[derive(Serialize)]
pub(crate) struct Seat {
    #[serde(flatten)]
    pub(crate) worker: Worker,
    /// `alive`, `draining`, `disconnected`, `silent` or `dead`.
    pub(crate) state: &'static str,
    pub(crate) tasks: Vec<Running>,
}

#[derive(Template)]
#[template(path = "workers.html")]
struct Screen {
    page: Page,
    seats: Vec<Seat>,
    /// Queues with pending tasks that nobody is going to claim, and that are not paused.
    unserved: Vec<QueueFill>,
}

impl Screen {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }
}

/// Reads them.
pub(crate) async fn data(look: &Transaction<'_>) -> Result<Vec<Seat>, QueueError> {
    let workers = roster::workers(&**look).await?;
    let running = tasks::running(&**look, None).await?;
    let seat = |worker: Worker| Seat {
        state: state(&worker),
        tasks: running.iter().filter(|task| task.worker_id == worker.id).cloned().collect(),
        worker,
    };
    Ok(workers.into_iter().map(seat).collect())
}

/// A worker whose control session is gone, but whose beat is young, may be about to connect again.
fn state(worker: &Worker) -> &'static str {
    match (worker.alive, worker.present, worker.draining) {
        (false, false, _) => "dead",
        (false, true, _) => "silent",
        (true, false, _) => "disconnected",
        (true, true, true) => "draining",
        (true, true, false) => "alive",
    }
}

async fn show(visit: Visit) -> Shown {
    let mut session = visit.session().await?;
    let look = session.look().await?;
    let viewer = visit.viewer(&look).await?;
    let seats = data(&look).await?;
    let fleet = Fleet::look(&look, &visit.app.tally, viewer.now).await?;
    let mut unserved = fleet.queues();
    unserved.retain(|queue| queue.unserved(&fleet.workers));
    answer(&Screen { page: visit.page("Workers", viewer), seats, unserved })
}

async fn drain(Path(id): Path<String>, act: Act) -> Result<Response, Trouble> {
    let gone = || Trouble::not_found("there is no such worker").hint("it may have left meanwhile");
    let worker = WorkerId(id.parse().map_err(|_| gone())?);
    let mut session = act.visit.session().await?;
    let transaction = act.begin(&mut session).await?;
    let found = operate::drain(&*transaction, worker, act.parsed("draining")?).await?;
    transaction.commit().await?;
    if found { Ok(act.back("/workers")) } else { Err(gone()) }
}
