//! What an operator says about queues and workers.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::error::QueueError;
use crate::task::WorkerId;

const PAUSE: &str = "/* queue.pause */ SELECT mill.pause($1)";
const RESUME: &str = "/* queue.resume */ SELECT mill.resume($1)";
const DRAIN: &str = "/* queue.drain */ SELECT mill.drain($1, $2)";

/// Stops claims from a queue; running tasks go on.
///
/// # Errors
/// Database trouble; a name that is none.
pub async fn pause(client: &impl GenericClient, queue: &str) -> Result<(), QueueError> {
    client.query_typed(PAUSE, &[(&queue, Type::TEXT)]).await?;
    Ok(())
}

/// Lets claims from a paused queue go on.
///
/// # Errors
/// Database trouble.
pub async fn resume(client: &impl GenericClient, queue: &str) -> Result<(), QueueError> {
    client.query_typed(RESUME, &[(&queue, Type::TEXT)]).await?;
    Ok(())
}

/// Makes a worker stop claiming, or go on. `false`: there is no such worker.
///
/// # Errors
/// Database trouble.
pub async fn drain(
    client: &impl GenericClient,
    worker: WorkerId,
    draining: bool,
) -> Result<bool, QueueError> {
    let rows =
        client.query_typed(DRAIN, &[(&worker.0, Type::UUID), (&draining, Type::BOOL)]).await?;
    Ok(rows[0].try_get(0)?)
}
