//! API handlers that act on queues, workers and subscriptions.

use queue::{TaskId, WorkerId, operate, purge, subscription};

use super::{Done, done, no_such};
use crate::api::prelude::*;
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

changes! {
    /// Pauses or resumes a queue
    Operate "/api/v1/queues/pause" pause_queue(tx, body => PauseRequest) -> Done {
        set_paused(tx, &body.queue, body.paused).await?;
        Ok(done(if body.paused { "paused" } else { "resumed" }))
    }

    /// Makes a worker stop claiming, or resume
    Operate "/api/v1/workers/{id}/drain"
    drain_worker(tx, body => DrainRequest, id = worker_id[uuid::Uuid, Path]) -> Done {
        HttpError::unless(operate::drain(tx, id.0, body.draining).await?, || no_such("worker", id.1))?;
        Ok(done(if body.draining { "draining" } else { "resumed" }))
    }

    /// Cancels the tasks that wait in a queue, up to 10,000
    ///
    /// Tasks that are enqueued later stay, and running tasks continue.
    Operate "/api/v1/queues/purge" purge_queue(tx, body => PurgeRequest) -> Purged {
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
    }

    /// Creates or changes a subscription
    ///
    /// The result is `changed` or `unchanged`.
    Operate "/api/v1/subscriptions" set_subscription(tx, body => SubscriptionRequest) -> Done {
        let options = Value::Object(body.options);
        let changed = subscription::set_subscription(tx, &body.name, &options).await?;
        Ok(done(if changed { "changed" } else { "unchanged" }))
    }

    /// Removes a subscription and its undelivered notifications
    Operate "/api/v1/subscriptions/remove" remove_subscription(tx, body => RemoveSubscriptionRequest) -> Done {
        let known = subscription::remove_subscription(tx, &body.name).await?;
        HttpError::unless(known, || no_such("subscription", &body.name))?;
        Ok(done("removed"))
    }
}

/// Returns the identifier with its text.
fn worker_id(text: &str) -> Result<(WorkerId, &str), HttpError> {
    Ok((WorkerId(text.parse().map_err(|_| no_such("worker", text))?), text))
}
