//! Workers screen: all workers with their running tasks.

use queue::task_queries::{self as tasks, Running};
use queue::workers::{self, Worker};
use queue::{WorkerId, operate};

use super::queue_stats::{FleetSnapshot, QueueStats};
use crate::screens::prelude::*;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/workers", get(show)).route("/workers/{id}/drain", post(drain_worker))
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

/// Reads all workers.
pub(crate) async fn data(tx: &Transaction<'_>) -> Result<Vec<WorkerStatus>, QueueError> {
    let workers = workers::workers(tx).await?;
    let running = tasks::running(tx, None).await?;
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

async fn show(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    let statuses = data(&read.tx).await?;
    let fleet = FleetSnapshot::of(&read).await?;
    let mut unserved = fleet.queues();
    unserved.retain(|queue| queue.unserved(&fleet.workers));
    render(&WorkersPage { page: read.layout("Workers"), statuses, unserved })
}

async fn drain_worker(Path(id): Path<String>, form: FormRequest) -> HandlerResult {
    let not_found =
        || HttpError::not_found("worker not found").hint("the worker may have stopped meanwhile");
    let worker = WorkerId(id.parse().map_err(|_| not_found())?);
    let draining = form.parsed("draining")?;
    form.change("/workers", async |tx| {
        HttpError::unless(operate::drain(tx, worker, draining).await?, not_found)
    })
    .await
}
