//! Subscriptions whose notifications are not delivered.

use conninfo::GenericClient;
use jiff::Timestamp;
use serde::Serialize;

use crate::error::QueueError;
use crate::row::{from_row, rows};

/// A single failure is no problem yet: the next attempt follows after some seconds.
const SUBSCRIPTIONS: &str = "SELECT /* queue.insight_subscriptions */ s.name, s.destination::text, s.workers = 0 AS unserved, s.dead, s.last_error,
    coalesce(s.oldest_pending_at, s.last_error_at, s.changed_at) AS at
FROM mill.subscription_status s
WHERE s.enabled AND (s.workers = 0 OR s.dead > 0
    OR s.failures > 1 AND s.oldest_pending_at < now() - interval '1 minute')
ORDER BY 6, 1 LIMIT 20";

/// A subscription whose notifications are not delivered.
#[derive(Clone, Debug, Serialize)]
pub struct FailingSubscription {
    /// Name of the subscription.
    pub name: String,
    /// Its destination; `None` for channels and tasks.
    pub destination: Option<String>,
    /// Whether no live worker has the destination; `None` for channels and tasks.
    pub unserved: Option<bool>,
    /// Number of undeliverable notifications.
    pub dead: i64,
    /// Error of the last message, if it failed.
    pub last_error: Option<String>,
    /// Time of the oldest notification that waits, or else of the last error or change.
    pub at: Timestamp,
}

from_row! { FailingSubscription { name, destination, unserved, dead, last_error, at } }

/// Returns up to 20 enabled subscriptions whose notifications are not delivered, oldest first.
pub async fn failing_subscriptions(
    client: &impl GenericClient,
) -> Result<Vec<FailingSubscription>, QueueError> {
    rows(client, SUBSCRIPTIONS, &[]).await
}
