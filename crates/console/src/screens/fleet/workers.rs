//! Workers screen: all workers with their running tasks.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::task_queries::{self as tasks, Running};
use queue::workers::{self, Worker};
use queue::{QueueError, WorkerId, operate};
use serde::Serialize;

use super::queue_stats::{FleetSnapshot, QueueStats};
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::{FormRequest, RequestContext};
use crate::page::format;
use crate::page::layout::{Layout, render};

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/workers", get(show)).route("/workers/{id}/drain", post(drain))
}

/// A worker and its tasks.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct WorkerStatus {
    #[serde(flatten)]
    pub(crate) worker: Worker,
    /// `alive`, `draining`, `disconnected`, `silent` or `dead`.
    pub(crate) state: &'static str,
    pub(crate) tasks: Vec<Running>,
}

#[derive(Template)]
#[template(path = "workers.html")]
struct WorkersPage {
    page: Layout,
    statuses: Vec<WorkerStatus>,
    /// Queues with pending tasks that are not paused and that no worker claims from.
    unserved: Vec<QueueStats>,
}

impl WorkersPage {
    fn now(&self) -> Timestamp {
        self.page.viewer.now
    }
}

/// Reads all workers.
pub(crate) async fn data(tx: &Transaction<'_>) -> Result<Vec<WorkerStatus>, QueueError> {
    let workers = workers::workers(&**tx).await?;
    let running = tasks::running(&**tx, None).await?;
    let status = |worker: Worker| WorkerStatus {
        state: state(&worker),
        tasks: running.iter().filter(|task| task.worker_id == worker.id).cloned().collect(),
        worker,
    };
    Ok(workers.into_iter().map(status).collect())
}

/// Returns the state of a worker. `disconnected`: the control session is gone but the heartbeat is
/// recent, so the worker may be reconnecting.
fn state(worker: &Worker) -> &'static str {
    match (worker.alive, worker.session_alive, worker.draining) {
        (false, false, _) => "dead",
        (false, true, _) => "silent",
        (true, false, _) => "disconnected",
        (true, true, true) => "draining",
        (true, true, false) => "alive",
    }
}

async fn show(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let statuses = data(&tx).await?;
    let fleet = FleetSnapshot::read(&tx, &context.app.throughput, viewer.now).await?;
    let mut unserved = fleet.queues();
    unserved.retain(|queue| queue.unserved(&fleet.workers));
    render(&WorkersPage { page: Layout::new(&context, "Workers", viewer), statuses, unserved })
}

async fn drain(Path(id): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let gone =
        || HttpError::not_found("worker not found").hint("the worker may have stopped meanwhile");
    let worker = WorkerId(id.parse().map_err(|_| gone())?);
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let found = operate::drain(&*tx, worker, form.parsed("draining")?).await?;
    tx.commit().await?;
    if found { Ok(form.redirect_back("/workers")) } else { Err(gone()) }
}
