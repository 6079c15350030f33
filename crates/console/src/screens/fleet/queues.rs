//! Queues screen: task counts, limits, shared commits, pause, resume and purge.

use queue::limit::{self, Rate};
use queue::maintenance::{self, MaintenanceWindow};
use queue::operate::QueueConditions;
use queue::{LimitKind, operate, purge};

use super::queue_stats::{FleetSnapshot, QueueStats};
use crate::screens::prelude::*;

/// The screen to which the forms return.
const PATH: &str = "/queues";

/// Maximum number of transactions of one purge, with 500 tasks each. The screen shows the tasks that
/// are left, and the purge can be repeated.
const MAX_CHUNKS: usize = 100;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/queues", get(show))
        .route("/queues/{queue}/pause", post(pause_queue))
        .route("/queues/{queue}/purge", post(purge_queue))
        .route("/queues/{queue}/limit", post(set_queue_limits))
        .route("/queues/{queue}/shared-commit", post(set_shared_commit))
        .route("/queues/{queue}/conditions", post(set_conditions))
        .merge(super::pause::routes())
}

#[derive(Template)]
#[template(path = "queues.html")]
struct QueuesPage {
    page: Layout,
    queues: Vec<QueueStats>,
    /// Planned pauses of the fleet.
    planned: Vec<MaintenanceWindow>,
}

async fn show(mut request: ReadRequest) -> HandlerResult {
    let read = request.begin().await?;
    let fleet = FleetSnapshot::of(&read).await?;
    let mut planned = maintenance::windows(&*read.tx).await?;
    planned.retain(|window| !window.is_active);
    render(&QueuesPage { page: read.layout("Queues"), queues: fleet.queues(), planned })
}

/// Checks that a queue exists: the functions that change a setting of a queue create the queue, which
/// a mistyped name must not.
pub(crate) async fn require_queue(tx: &Transaction<'_>, queue: &str) -> Result<(), HttpError> {
    HttpError::unless(operate::queue_is_known(tx, queue).await?, || {
        HttpError::not_found(format!("there is no queue {queue}"))
    })
}

/// Changes whether workers claim from a queue.
pub(crate) async fn set_paused(
    tx: &Transaction<'_>,
    queue: &str,
    paused: bool,
) -> Result<(), HttpError> {
    require_queue(tx, queue).await?;
    let set =
        if paused { operate::pause(tx, queue).await } else { operate::resume(tx, queue).await };
    Ok(set?)
}

async fn pause_queue(Path(queue): Path<String>, form: FormRequest) -> HandlerResult {
    let paused = form.parsed("paused")?;
    form.change(PATH, async |tx| set_paused(tx, &queue, paused).await).await
}

/// Cancels the tasks that wait in the queue when the form is submitted. Each chunk is a transaction,
/// as in `pgmill queue purge`.
async fn purge_queue(Path(queue): Path<String>, form: FormRequest) -> HandlerResult {
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    let up_to = purge::waiting_tasks(&*tx, &queue).await?.last_id;
    tx.commit().await?;
    let mut after = TaskId(0);
    for _ in 0..MAX_CHUNKS {
        let Some(up_to) = up_to.filter(|up_to| after < *up_to) else { break };
        let tx = form.begin(&mut session).await?;
        let chunk = purge::purge_chunk(&*tx, &queue, after, up_to).await?;
        tx.commit().await?;
        let Some(last) = chunk.last_id else { break };
        after = last;
    }
    Ok(form.redirect_back(PATH))
}

/// The limits of a queue or a concurrency key; `None` removes a limit.
pub(super) struct Limits {
    max_running: Option<i32>,
    rate: Option<Rate>,
}

impl Limits {
    /// Reads the fields of a form; an empty field removes its limit.
    pub(super) fn read(form: &FormRequest) -> Result<Self, HttpError> {
        let rate = match (form.optional("rate_starts")?, form.optional("rate_seconds")?) {
            (None, None) => None,
            (Some(starts), Some(seconds)) => {
                Some(Rate { starts, period: Duration::from_secs(seconds) })
            }
            _ => {
                let message = "a rate needs a number of starts and a number of seconds";
                return Err(HttpError::bad_request(message));
            }
        };
        Ok(Self { max_running: form.optional("max_running")?, rate })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.max_running.is_none() && self.rate.is_none()
    }

    pub(super) async fn set(
        &self,
        tx: &Transaction<'_>,
        kind: LimitKind,
        name: &str,
    ) -> Result<(), QueueError> {
        limit::set_max_running(tx, kind, name, self.max_running).await?;
        limit::set_rate(tx, kind, name, self.rate).await
    }
}

async fn set_queue_limits(Path(queue): Path<String>, form: FormRequest) -> HandlerResult {
    let limits = Limits::read(&form)?;
    form.change(PATH, async |tx| {
        require_queue(tx, &queue).await?;
        Ok(limits.set(tx, LimitKind::Queue, &queue).await?)
    })
    .await
}

/// Sets the time budget of shared commits; with an empty field, each task commits alone.
async fn set_shared_commit(Path(queue): Path<String>, form: FormRequest) -> HandlerResult {
    let budget = form.optional("milliseconds")?.map(Duration::from_millis);
    form.change(PATH, async |tx| {
        require_queue(tx, &queue).await?;
        Ok(operate::set_shared_commit(tx, &queue, budget).await?)
    })
    .await
}

/// Sets the conditions under which workers claim; an empty field removes its condition.
async fn set_conditions(Path(queue): Path<String>, form: FormRequest) -> HandlerResult {
    let conditions = QueueConditions {
        max_replication_lag_seconds: form.optional("max_replication_lag")?,
        max_snapshot_age_seconds: form.optional("max_snapshot_age")?,
        max_active_sessions: form.optional("max_active_sessions")?,
    };
    form.change(PATH, async |tx| {
        require_queue(tx, &queue).await?;
        Ok(operate::set_queue_conditions(tx, &queue, conditions).await?)
    })
    .await
}
