//! Queues screen: task counts, limits, shared commits, pause, resume and purge.

use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use queue::limit::{self, Rate};
use queue::maintenance::{self, MaintenanceWindow};
use queue::queue_status::QueueConditions;
use queue::{LimitKind, operate};

use super::queue_stats::{FleetSnapshot, QueueStats};
use crate::database::WriteTransaction;
use crate::http::app::App;
use crate::http::error::{HandlerResult, HttpError};
use crate::http::request::{FormRequest, RequestContext};
use crate::page::format;
use crate::page::layout::{Layout, render};

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/queues", get(show))
        .route("/queues/{queue}/pause", post(pause))
        .route("/queues/{queue}/purge", post(super::purge::purge))
        .route("/queues/{queue}/limit", post(set))
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

async fn show(context: RequestContext) -> HandlerResult {
    let mut session = context.session().await?;
    let tx = session.begin_read().await?;
    let viewer = context.viewer(&tx).await?;
    let fleet = FleetSnapshot::read(&tx, &context.app.throughput, viewer.now).await?;
    let mut planned = maintenance::windows(&*tx).await?;
    planned.retain(|window| !window.is_active);
    let page = Layout::new(&context, "Queues", viewer);
    render(&QueuesPage { page, queues: fleet.queues(), planned })
}

async fn pause(Path(queue): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let paused: bool = form.parsed("paused")?;
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    if paused {
        operate::pause(&*tx, &queue).await?;
    } else {
        operate::resume(&*tx, &queue).await?;
    }
    tx.commit().await?;
    Ok(form.redirect_back("/queues"))
}

/// Reads a rate from the fields of a form; `None` if both are empty.
pub(super) fn rate(form: &FormRequest) -> Result<Option<Rate>, HttpError> {
    let starts: Option<i32> = form.optional("rate_starts")?;
    let seconds: Option<u64> = form.optional("rate_seconds")?;
    match (starts, seconds) {
        (None, None) => Ok(None),
        (Some(starts), Some(seconds)) => {
            Ok(Some(Rate { starts, period: Duration::from_secs(seconds) }))
        }
        _ => Err(HttpError::bad_request("a rate needs a number of starts and a number of seconds")),
    }
}

/// Sets both limits of a queue or a concurrency key; `None` removes a limit.
pub(super) async fn set_limits(
    tx: &WriteTransaction<'_>,
    kind: LimitKind,
    name: &str,
    max_running: Option<i32>,
    rate: Option<Rate>,
) -> Result<(), HttpError> {
    limit::set_max_running(&**tx, kind, name, max_running).await?;
    limit::set_rate(&**tx, kind, name, rate).await?;
    Ok(())
}

/// Sets both limits; an empty field removes its limit.
async fn set(Path(queue): Path<String>, form: FormRequest) -> Result<Response, HttpError> {
    let (max_running, rate) = (form.optional("max_running")?, rate(&form)?);
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    set_limits(&tx, LimitKind::Queue, &queue, max_running, rate).await?;
    tx.commit().await?;
    Ok(form.redirect_back("/queues"))
}

/// Sets the time budget of shared commits; with an empty field, each task commits alone.
async fn set_shared_commit(
    Path(queue): Path<String>,
    form: FormRequest,
) -> Result<Response, HttpError> {
    let budget: Option<u64> = form.optional("milliseconds")?;
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    operate::set_shared_commit(&*tx, &queue, budget.map(Duration::from_millis)).await?;
    tx.commit().await?;
    Ok(form.redirect_back("/queues"))
}

/// Sets the conditions under which workers claim; an empty field removes its condition.
async fn set_conditions(
    Path(queue): Path<String>,
    form: FormRequest,
) -> Result<Response, HttpError> {
    let conditions = QueueConditions {
        max_replication_lag_seconds: form.optional("max_replication_lag")?,
        max_snapshot_age_seconds: form.optional("max_snapshot_age")?,
        max_active_sessions: form.optional("max_active_sessions")?,
    };
    let mut session = form.context.session().await?;
    let tx = form.begin(&mut session).await?;
    operate::set_queue_conditions(&*tx, &queue, conditions).await?;
    tx.commit().await?;
    Ok(form.redirect_back("/queues"))
}
