//! Checks the conditions under which workers claim from a queue, for the whole fleet.

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::row::one;

const CHECK: &str = "SELECT /* queue.check_queue_conditions */ mill.check_queue_conditions()";

/// Stores which queues are held back, and why. Returns the number of queues that are no longer held
/// back. Does nothing while another worker checks.
pub async fn check_queue_conditions(client: &impl GenericClient) -> Result<i32, QueueError> {
    one(client, CHECK, &[]).await
}
