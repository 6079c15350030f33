//! scheduled | blocked | pending → finished, for all waiting tasks of a queue.
//!
//! A purge is a sequence of chunks, each in a transaction of its own. A task that is enqueued after
//! the start of the purge stays, because its id is above the highest one at the start.

use conninfo::GenericClient;
use pgmill_client::TaskId;

use crate::error::QueueError;
use crate::row::{from_row, one};
use crate::transition::bulk::CHUNK;

const WAITING: &str = "SELECT /* queue.waiting_tasks */ count(*) AS tasks, max(t.id) AS last_id FROM mill.visible_tasks t
WHERE t.queue = $1 AND t.state <> 'running'";

const PURGE: &str = "SELECT /* queue.purge_queue */ p.cancelled, p.last_id FROM mill.purge_queue($1, $2, $3, $4) AS p";

/// The waiting tasks of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingTasks {
    /// Number of tasks.
    pub tasks: i64,
    /// Highest id; `None` if no task waits.
    pub last_id: Option<TaskId>,
}

from_row! { WaitingTasks { tasks, last_id } }

/// Result of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgedChunk {
    /// Number of cancelled tasks.
    pub cancelled: i64,
    /// Id after which the next chunk begins; `None` if the purge is done.
    pub last_id: Option<TaskId>,
}

from_row! { PurgedChunk { cancelled, last_id } }

/// Counts the tasks of a queue that are scheduled, blocked or pending.
///
/// # Errors
/// Fails if the role may not read tasks.
pub async fn waiting_tasks(
    client: &impl GenericClient,
    queue: &str,
) -> Result<WaitingTasks, QueueError> {
    one(client, WAITING, &[&queue]).await
}

/// Cancels the first waiting tasks of a queue whose ids are above `after` and at most `up_to`, in
/// one transaction. Tasks that another transaction has locked are skipped.
///
/// # Errors
/// If the statement fails, none of the tasks is cancelled.
pub async fn purge_chunk(
    client: &impl GenericClient,
    queue: &str,
    after: TaskId,
    up_to: TaskId,
) -> Result<PurgedChunk, QueueError> {
    let size = i32::try_from(CHUNK).unwrap_or(i32::MAX);
    one(client, PURGE, &[&queue, /* max_count */ &size, &after.0, &up_to.0]).await
}
