//! API handlers that act on queues, workers and subscriptions.

use axum::extract::Path;
use queue::purge;
use queue::subscription;
use queue::{TaskId, WorkerId, operate};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Done, done, no_such};
use crate::error::HandlerResult;
use crate::http::api_request::ApiRequest;
use crate::http::app::App;
use crate::options::rights::Scope;
use crate::screens::fleet::queues::{require_queue, set_paused};

/// Maximum number of chunks of a purge, with 500 tasks each. A request is one transaction, which must
/// not lock any number of tasks.
const MAX_CHUNKS: usize = 20;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PauseRequest {
    /// The queue.
    queue: String,
    paused: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DrainRequest {
    draining: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PurgeRequest {
    /// The queue.
    queue: String,
}

/// What a purge has cancelled.
#[derive(Serialize, ToSchema)]
struct Purged {
    /// Number of cancelled tasks.
    cancelled: i64,
    /// Whether more tasks waited at the start. Repeat the request with another idempotency key.
    more: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SubscriptionRequest {
    /// The subscription.
    name: String,
    /// Settings to change, as for `mill.set_subscription`; null removes a setting. A new subscription
    /// needs `events` and a receiver: `destination`, `channel` or `statement`.
    #[schema(value_type = Object, example = json!({ "events": ["task_failed"], "channel": "failures" }))]
    options: Map<String, Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RemoveSubscriptionRequest {
    /// The subscription.
    name: String,
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(pause_queue))
        .routes(routes!(purge_queue))
        .routes(routes!(drain_worker))
        .routes(routes!(set_subscription))
        .routes(routes!(remove_subscription))
}

/// Pauses or resumes a queue
#[utoipa::path(post, path = "/api/v1/queues/pause", request_body = PauseRequest, responses((status = 200, body = Done)))]
async fn pause_queue(call: ApiRequest<PauseRequest>) -> HandlerResult {
    call.execute(Scope::Operate, async |tx, body| {
        set_paused(tx, &body.queue, body.paused).await?;
        Ok(done(if body.paused { "paused" } else { "resumed" }))
    })
    .await
}

/// Makes a worker stop claiming, or resume
#[utoipa::path(post, path = "/api/v1/workers/{id}/drain", params(("id" = uuid::Uuid, Path)), request_body = DrainRequest, responses((status = 200, body = Done)))]
async fn drain_worker(Path(id): Path<String>, call: ApiRequest<DrainRequest>) -> HandlerResult {
    let worker = WorkerId(id.parse().map_err(|_| no_such("worker", &id))?);
    call.execute(Scope::Operate, async |tx, body| {
        if !operate::drain(tx, worker, body.draining).await? {
            return Err(no_such("worker", &id));
        }
        Ok(done(if body.draining { "draining" } else { "resumed" }))
    })
    .await
}

/// Cancels the tasks that wait in a queue, up to 10,000
///
/// Tasks that are enqueued later stay, and running tasks continue.
#[utoipa::path(post, path = "/api/v1/queues/purge", request_body = PurgeRequest, responses((status = 200, body = Purged)))]
async fn purge_queue(call: ApiRequest<PurgeRequest>) -> HandlerResult {
    call.execute(Scope::Operate, async |tx, body| {
        require_queue(tx, &body.queue).await?;
        let up_to = purge::waiting_tasks(tx, &body.queue).await?.last_id;
        let (mut after, mut cancelled) = (TaskId(0), 0);
        let Some(up_to) = up_to else { return Ok(Purged { cancelled, more: false }) };
        for _ in 0..MAX_CHUNKS {
            let chunk = purge::purge_chunk(tx, &body.queue, after, up_to).await?;
            cancelled += chunk.cancelled;
            match chunk.last_id.filter(|last| *last < up_to) {
                Some(last) => after = last,
                None => return Ok(Purged { cancelled, more: false }),
            }
        }
        Ok(Purged { cancelled, more: true })
    })
    .await
}

/// Creates or changes a subscription
///
/// The result is `changed` or `unchanged`.
#[utoipa::path(post, path = "/api/v1/subscriptions", request_body = SubscriptionRequest, responses((status = 200, body = Done)))]
async fn set_subscription(call: ApiRequest<SubscriptionRequest>) -> HandlerResult {
    call.execute(Scope::Operate, async |tx, body| {
        let options = Value::Object(body.options);
        let changed = subscription::set_subscription(tx, &body.name, &options).await?;
        Ok(done(if changed { "changed" } else { "unchanged" }))
    })
    .await
}

/// Removes a subscription and its undelivered notifications
#[utoipa::path(post, path = "/api/v1/subscriptions/remove", request_body = RemoveSubscriptionRequest, responses((status = 200, body = Done)))]
async fn remove_subscription(call: ApiRequest<RemoveSubscriptionRequest>) -> HandlerResult {
    call.execute(Scope::Operate, async |tx, body| {
        if !subscription::remove_subscription(tx, &body.name).await? {
            return Err(no_such("subscription", &body.name));
        }
        Ok(done("removed"))
    })
    .await
}
