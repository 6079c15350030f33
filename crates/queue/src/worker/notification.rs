//! Claims messages of notifications, records their results, and delivers those within the database.
//!
//! A claim and the record of its result are separate transactions, between which the worker sends
//! the message. A claim that is not followed by a result expires after a minute, by the database
//! clock; another worker then sends the message again.

use std::time::Duration;

use conninfo::GenericClient;
use serde_json::Value;
use uuid::Uuid;

use crate::error::QueueError;
use crate::row::{Param, column, execute, from_row, one, rows};

const CLAIM: &str = "SELECT /* queue.claim_messages */ m.subscription_id, m.subscription, m.destination, m.message_id, m.ids, m.document
FROM mill.claim_messages($1, $2, $3, $4) AS m";

const SENT: &str = "SELECT /* queue.message_sent */ mill.message_sent($1, $2, $3)";

const FAILED: &str = "SELECT /* queue.message_failed */ mill.message_failed($1, $2, $3, $4, $5, make_interval(secs => $6))";

const RELEASED: &str = "SELECT /* queue.message_released */ mill.message_released($1, $2)";

const DELIVER: &str = "SELECT /* queue.deliver_in_database */ d.subscription, d.kind, d.messages, d.error FROM mill.deliver_in_database() AS d";

const CHECK_BACKLOGS: &str = "SELECT /* queue.check_backlogs */ mill.check_backlogs()";

/// A claimed message to a destination.
#[derive(Clone, Debug)]
pub struct ClaimedMessage {
    /// Id of the subscription.
    pub subscription_id: i64,
    /// Name of the subscription.
    pub subscription: String,
    /// Name of the destination.
    pub destination: String,
    message_id: Uuid,
    ids: Vec<i64>,
    /// The document to send.
    pub document: Value,
}

from_row! { ClaimedMessage { subscription_id, subscription, destination, message_id, ids, document } }

/// Messages that were delivered to a channel or as tasks.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// Name of the subscription.
    pub subscription: String,
    /// `channel` or `task`.
    pub kind: String,
    /// Number of messages.
    pub messages: u64,
    /// Why there are none.
    pub error: Option<String>,
}

from_row! {
    row => Delivered {
        subscription, kind, messages: u64::from(column::<i32>(row, "messages")?.cast_unsigned()), error,
    }
}

/// Claims messages to these destinations, up to four per subscription. A recovery is a message of its own
/// to those that also are in `incidents`. Leaves out the subscriptions in `busy`.
pub async fn claim(
    client: &impl GenericClient,
    destinations: &[String],
    incidents: &[String],
    busy: &[i64],
    max_subscriptions: i32,
) -> Result<Vec<ClaimedMessage>, QueueError> {
    rows(client, CLAIM, &[&destinations, &busy, &max_subscriptions, &incidents]).await
}

/// Records that the message was delivered. Returns `false` if the claim had expired, so that the
/// message is sent again.
pub async fn sent(
    client: &impl GenericClient,
    message: &ClaimedMessage,
) -> Result<bool, QueueError> {
    one(client, SENT, &[&message.subscription_id, &message.message_id, &message.ids]).await
}

/// Records that the message was not delivered. `rejected`: the receiver refuses this message, so
/// that other messages of the subscription need not wait.
pub async fn failed(
    client: &impl GenericClient,
    message: &ClaimedMessage,
    error: &str,
    rejected: bool,
    retry_after: Option<Duration>,
) -> Result<(), QueueError> {
    let retry_after = retry_after.map(|wait| wait.as_secs_f64().min(1e9));
    let params: [&dyn Param; 6] = [
        &message.subscription_id,
        &message.message_id,
        &message.ids,
        &error,
        &rejected,
        &retry_after,
    ];
    execute(client, FAILED, &params).await
}

/// Returns a message that was not attempted.
pub async fn released(
    client: &impl GenericClient,
    message: &ClaimedMessage,
) -> Result<(), QueueError> {
    execute(client, RELEASED, &[&message.message_id, &message.ids]).await
}

/// Delivers due notifications to channels and as tasks.
pub async fn deliver_in_database(
    client: &impl GenericClient,
) -> Result<Vec<Delivered>, QueueError> {
    rows(client, DELIVER, &[]).await
}

/// Inserts notifications of backlogs that began or ended. Returns their number.
pub async fn check_backlogs(client: &impl GenericClient) -> Result<u64, QueueError> {
    let inserted: i32 = one(client, CHECK_BACKLOGS, &[]).await?;
    Ok(u64::from(inserted.cast_unsigned()))
}
