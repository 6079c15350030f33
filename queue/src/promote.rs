//! scheduled → pending, when due; → blocked, if some limit applies.
//!
//! Relies on the index `tasks_scheduled (due_at, id) WHERE state = 'scheduled'`. Because of SKIP
//! LOCKED, any number of workers promote concurrently without waiting.

use std::time::Duration;

use tokio_postgres::GenericClient;

use crate::error::QueueError;

const PROMOTE: &str = "/* queue.promote */
WITH due AS MATERIALIZED (
    SELECT t.id FROM mill.tasks t
    WHERE t.state = 'scheduled' AND t.due_at <= now()
    ORDER BY t.due_at, t.id LIMIT 1000
    FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
    UPDATE mill.tasks t SET state = mill.initial_state(NULL, t.limits), blocking_limit_id = t.limits[1]
    FROM due WHERE t.id = due.id RETURNING 1
)
SELECT (SELECT count(*) FROM promoted),
    (SELECT extract(epoch FROM t.due_at - now())::float8 FROM mill.tasks t
     WHERE t.state = 'scheduled' AND t.due_at > now() ORDER BY t.due_at LIMIT 1)";

/// Result of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promoted {
    /// Number of promoted tasks; 1000 means there may be more.
    pub tasks: u64,
    /// Time until the next task is due, if there is one.
    pub next_due_in: Option<Duration>,
}

/// Promotes up to 1000 due tasks.
pub async fn promote(client: &impl GenericClient) -> Result<Promoted, QueueError> {
    let rows = client.query_typed(PROMOTE, &[]).await?;
    let next_due_in: Option<f64> = rows[0].try_get(1)?;
    Ok(Promoted {
        tasks: rows[0].try_get::<_, i64>(0)?.cast_unsigned(),
        next_due_in: next_due_in.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
    })
}
