//! Subscriptions to events, and the notifications of events.

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::error::QueueError;
use crate::pg_enum;
use crate::row::{first, from_row, one, rows};

/// Without a name, all subscriptions.
const SUBSCRIPTIONS: &str = "SELECT /* queue.subscriptions */ s.name, s.events::text[], s.queue::text, s.job::text, s.schedule, s.tag, s.task::text, s.kind,
    s.destination::text, s.channel, s.statement::text, s.task_queue::text, s.run_as::text, s.min_pending,
    extract(epoch FROM s.min_age)::float8 AS min_age_seconds, s.rate_messages,
    extract(epoch FROM s.rate_period)::float8 AS rate_seconds, s.enabled, s.description, s.created_by,
    s.created_at, s.changed_at, s.messages_sent, s.last_sent_at, s.failures, s.last_error, s.last_error_at,
    s.retry_at, s.pending, s.oldest_pending_at, s.dead, s.workers
FROM mill.subscription_status s
WHERE $1 IS NULL OR s.name = $1 ORDER BY s.name";

const SET: &str = "SELECT /* queue.set_subscription */ mill.set_subscription($1, $2)";

const REMOVE: &str = "SELECT /* queue.remove_subscription */ mill.remove_subscription($1)";

const ENABLE: &str = "SELECT /* queue.enable_subscription */ mill.enable_subscription($1, $2)";

const TEST: &str = "SELECT /* queue.test_subscription */ mill.test_subscription($1)";

const RETRY: &str = "SELECT /* queue.retry_notifications */ mill.retry_notifications($1, $2)";

const NOTIFICATIONS: &str = "SELECT /* queue.notifications */ n.id, n.subscription, n.event::text, n.state, n.document, n.created_at, n.next_attempt_at, n.attempts,
    n.last_error, n.sent_at, n.dead_at
FROM mill.visible_notifications n
WHERE ($1 IS NULL OR n.subscription = $1) AND ($2 IS NULL OR n.state = $2) AND ($3 IS NULL OR n.id < $3)
ORDER BY n.id DESC LIMIT $4";

pg_enum! {
    /// Event that a subscription can report.
    NotifyEvent {
        /// An attempt of a task failed.
        AttemptFailed = "attempt_failed",
        /// A task ended as failed, timed out, lost or unknown.
        TaskFailed = "task_failed",
        /// A run failed.
        RunFailed = "run_failed",
        /// A run succeeded.
        RunSucceeded = "run_succeeded",
        /// A run succeeded after the one before it failed.
        RunRecovered = "run_recovered",
        /// Fires of a schedule were missed.
        ScheduleMissed = "schedule_missed",
        /// A run has not ended by its deadline.
        Late = "late",
        /// A queue passed a threshold, or is below it again.
        QueueBacklog = "queue_backlog",
        /// A worker died.
        WorkerLost = "worker_lost",
        /// A task of a run waits for approval.
        ApprovalNeeded = "approval_needed",
        /// An operator requested a message.
        Test = "test",
    }
}

/// A subscription and the state of its delivery.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Subscription {
    /// Name of the subscription.
    pub name: String,
    /// Events that are reported.
    pub events: Vec<NotifyEvent>,
    /// Reports only events of this queue.
    pub queue: Option<String>,
    /// Reports only events of this job.
    pub job: Option<String>,
    /// Reports only events of this schedule.
    pub schedule: Option<String>,
    /// Reports only events with this tag.
    pub tag: Option<String>,
    /// Reports only events of tasks with this name.
    pub task: Option<String>,
    /// `destination`, `channel` or `task`.
    pub kind: String,
    /// Destination in the configuration of workers.
    pub destination: Option<String>,
    /// Channel of NOTIFY.
    pub channel: Option<String>,
    /// Statement of the task that receives the message; `None` also if the login may not see it.
    pub statement: Option<String>,
    /// Queue of this task.
    pub task_queue: Option<String>,
    /// Profile of this task.
    pub run_as: Option<String>,
    /// Number of pending tasks from which a queue has a backlog.
    pub min_pending: Option<i32>,
    /// Wait in seconds from which a queue has a backlog.
    pub min_age_seconds: Option<f64>,
    /// Maximum number of messages per `rate_seconds`; `None` means no limit.
    pub rate_messages: Option<i32>,
    /// Period of the rate.
    pub rate_seconds: Option<f64>,
    /// Whether events are reported.
    pub enabled: bool,
    /// Free-text description.
    pub description: Option<String>,
    /// Login that created the subscription.
    pub created_by: String,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time of its last change.
    pub changed_at: Timestamp,
    /// Number of delivered messages.
    pub messages_sent: i64,
    /// Time of the last delivered message.
    pub last_sent_at: Option<Timestamp>,
    /// Number of failed messages since the last one that was delivered.
    pub failures: i32,
    /// Error of the last failed message.
    pub last_error: Option<String>,
    /// Time of that error.
    pub last_error_at: Option<Timestamp>,
    /// Time before which no message is attempted.
    pub retry_at: Option<Timestamp>,
    /// Number of notifications to deliver, at most 10,000.
    pub pending: i64,
    /// Time of the oldest of these.
    pub oldest_pending_at: Option<Timestamp>,
    /// Number of undeliverable notifications, at most 10,000.
    pub dead: i64,
    /// Number of live workers that have the destination; `None` for channels and tasks.
    pub workers: Option<i64>,
}

from_row! {
    Subscription {
        name, events, queue, job, schedule, tag, task, kind, destination, channel, statement, task_queue,
        run_as, min_pending, min_age_seconds, rate_messages, rate_seconds, enabled, description, created_by,
        created_at, changed_at, messages_sent, last_sent_at, failures, last_error, last_error_at, retry_at,
        pending, oldest_pending_at, dead, workers,
    }
}

/// A notification of an event to one subscription.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Notification {
    /// Id of the notification.
    pub id: i64,
    /// Name of the subscription.
    pub subscription: Option<String>,
    /// The event.
    pub event: NotifyEvent,
    /// `pending`, `sent` or `dead`.
    pub state: String,
    /// What is sent.
    #[schema(value_type = Object)]
    pub document: Value,
    /// Time of the event.
    pub created_at: Timestamp,
    /// Earliest time of the next attempt.
    pub next_attempt_at: Timestamp,
    /// Number of attempts.
    pub attempts: i32,
    /// Error of the last attempt.
    pub last_error: Option<String>,
    /// Time of the delivery.
    pub sent_at: Option<Timestamp>,
    /// Time at which the attempts ended without success.
    pub dead_at: Option<Timestamp>,
}

from_row! {
    Notification {
        id, subscription, event, state, document, created_at, next_attempt_at, attempts, last_error, sent_at,
        dead_at,
    }
}

/// A filter on notifications. The default matches all of them.
#[derive(Clone, Debug, Default)]
pub struct NotificationFilter {
    /// Name of the subscription.
    pub subscription: Option<String>,
    /// `pending`, `sent` or `dead`.
    pub state: Option<String>,
    /// Selects notifications with a lower id.
    pub before: Option<i64>,
}

/// Returns every subscription.
pub async fn subscriptions(client: &impl GenericClient) -> Result<Vec<Subscription>, QueueError> {
    let all = None::<&str>;
    rows(client, SUBSCRIPTIONS, &[&all]).await
}

/// Returns one subscription.
pub async fn subscription(
    client: &impl GenericClient,
    name: &str,
) -> Result<Option<Subscription>, QueueError> {
    first(client, SUBSCRIPTIONS, &[&name]).await
}

/// Creates or changes a subscription, with the options of `mill.set_subscription`. Returns whether
/// anything changed.
///
/// # Errors
/// Fails if an option is unknown or the options contradict each other.
pub async fn set_subscription(
    client: &impl GenericClient,
    name: &str,
    options: &Value,
) -> Result<bool, QueueError> {
    one(client, SET, &[&name, options]).await
}

/// Removes a subscription and its undelivered notifications. Returns `false` if it does not exist.
pub async fn remove_subscription(
    client: &impl GenericClient,
    name: &str,
) -> Result<bool, QueueError> {
    one(client, REMOVE, &[&name]).await
}

/// Enables or disables a subscription. Returns `false` if it does not exist.
pub async fn enable_subscription(
    client: &impl GenericClient,
    name: &str,
    enabled: bool,
) -> Result<bool, QueueError> {
    one(client, ENABLE, &[&name, &enabled]).await
}

/// Sends a test message. Returns the id of the notification; `None` if there is no such
/// subscription.
///
/// # Errors
/// Fails if the subscription is disabled.
pub async fn test_subscription(
    client: &impl GenericClient,
    name: &str,
) -> Result<Option<i64>, QueueError> {
    one(client, TEST, &[&name]).await
}

/// Attempts undeliverable notifications again: those with these ids, of this subscription, or all.
/// Returns their number.
pub async fn retry_notifications(
    client: &impl GenericClient,
    subscription: Option<&str>,
    ids: Option<&[i64]>,
) -> Result<i32, QueueError> {
    one(client, RETRY, &[&subscription, &ids]).await
}

/// Returns notifications, newest first.
pub async fn notifications(
    client: &impl GenericClient,
    filter: &NotificationFilter,
    limit: i64,
) -> Result<Vec<Notification>, QueueError> {
    rows(client, NOTIFICATIONS, &[&filter.subscription, &filter.state, &filter.before, &limit])
        .await
}
