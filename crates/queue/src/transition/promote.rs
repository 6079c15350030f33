//! scheduled → pending | blocked, when the task is due: blocked if a limit applies, else pending.
//!
//! Relies on the index `tasks_scheduled (due_at, id) WHERE state = 'scheduled'`. Because of SKIP
//! LOCKED, any number of workers promote concurrently without waiting.

use std::time::Duration;

use conninfo::GenericClient;

use crate::error::QueueError;
use crate::row::{column, duration, from_row, one};

const PROMOTE: &str = "WITH /* queue.promote */ due AS MATERIALIZED (
    SELECT t.id FROM mill.tasks t
    WHERE t.state = 'scheduled' AND t.due_at <= now()
    ORDER BY t.due_at, t.id LIMIT 1000
    FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
    UPDATE mill.tasks t SET state = mill.initial_state(NULL, t.limits), blocking_limit_id = t.limits[1]
    FROM due WHERE t.id = due.id RETURNING 1
)
SELECT (SELECT count(*) FROM promoted) AS tasks,
    (SELECT extract(epoch FROM t.due_at - now())::float8 FROM mill.tasks t
     WHERE t.state = 'scheduled' AND t.due_at > now() ORDER BY t.due_at LIMIT 1) AS next_due_in";

/// Result of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promoted {
    /// Number of promoted tasks. If it is 1000, there may be more due tasks.
    pub tasks: u64,
    /// Time until the next task is due; `None` if no task is scheduled.
    pub next_due_in: Option<Duration>,
}

from_row! {
    row => Promoted {
        tasks: column::<i64>(row, "tasks")?.cast_unsigned(),
        next_due_in: column::<Option<_>>(row, "next_due_in")?.map(duration),
    }
}

/// Promotes up to 1000 due tasks.
pub async fn promote(client: &impl GenericClient) -> Result<Promoted, QueueError> {
    one(client, PROMOTE, &[]).await
}
