//! Reads, awaits and steers a task.

use std::time::Duration;

use tokio_postgres::GenericClient;

use crate::error::Error;
use crate::id::TaskId;
use crate::result::{Attempt, Task, read};
use crate::statement;
use crate::vocabulary::Outcome;

const TASK: &str = "SELECT /* pgmill.task */ \
pg_catalog.jsonb_build_object('id', t.id, 'state', t.state, 'outcome', NULL, 'queue', t.queue, \
'name', t.name, 'priority', t.priority, 'mode', t.mode, 'attempt', t.attempt, \
'max_attempts', t.max_attempts, 'enqueued_at', t.enqueued_at, 'due_at', t.due_at, \
'run_id', t.run_id, 'tags', coalesce(t.tags, '{}'), 'metadata', coalesce(t.metadata, '{}'))::text \
FROM mill.visible_tasks t WHERE t.id = $1::text::bigint \
UNION ALL (\
SELECT pg_catalog.jsonb_build_object('id', a.task_id, 'state', NULL, 'outcome', a.outcome, 'queue', a.queue, \
'name', a.name, 'priority', a.priority, 'mode', a.mode, 'attempt', a.attempt, \
'max_attempts', a.max_attempts, 'enqueued_at', a.enqueued_at, 'due_at', a.due_at, \
'run_id', a.run_id, 'tags', coalesce(a.tags, '{}'), 'metadata', coalesce(a.metadata, '{}'))::text \
FROM mill.visible_attempts a WHERE a.task_id = $1::text::bigint AND a.final \
AND NOT EXISTS (SELECT FROM mill.visible_tasks t WHERE t.id = $1::text::bigint) \
ORDER BY a.finished_at DESC LIMIT 1)";

const HISTORY: &str = "SELECT /* pgmill.history */ \
pg_catalog.jsonb_build_object('task_id', h.task_id, 'attempt', h.attempt, 'final', h.final, \
'outcome', h.outcome, 'queue', h.queue, 'name', h.name, 'priority', h.priority, 'mode', h.mode, \
'enqueued_at', h.enqueued_at, 'due_at', h.due_at, 'started_at', h.started_at, \
'finished_at', h.finished_at, 'duration_seconds', extract(epoch FROM h.duration), 'rows', h.rows, \
'sqlstate', h.sqlstate, 'message', h.message, 'detail', h.detail, 'hint', h.hint, \
'notices', h.notices, 'result', h.result, 'statement', h.statement, 'params', h.params, \
'run_id', h.run_id, 'tags', coalesce(h.tags, '{}'), 'metadata', coalesce(h.metadata, '{}'))::text \
FROM mill.history h WHERE h.task_id = $1::text::bigint ORDER BY h.finished_at, h.attempt";

const WHY: &str = "SELECT /* pgmill.why */ mill.why($1::text::bigint)";

const WAIT: &str = "CALL /* pgmill.wait */ mill.wait($1::text::bigint, $2::text::interval)";

const CANCEL: &str = "SELECT /* pgmill.cancel */ mill.cancel($1::text::bigint, $2::text::boolean)";

const RETRY: &str = "SELECT /* pgmill.retry */ mill.retry($1::text::bigint)";

/// Returns the task: live with its state, or finished with its outcome; `None` if there is none.
///
/// # Errors
/// Fails if the role lacks the privilege, or the connection is lost.
pub async fn task(client: &impl GenericClient, id: TaskId) -> Result<Option<Task>, Error> {
    let rows = statement::query(client, TASK, &[&id.to_string()]).await?;
    rows.iter().flatten().next().map(|document| read(document)).transpose()
}

/// Returns the finished attempts of the task, oldest first.
///
/// # Errors
/// As [`task`].
pub async fn history(client: &impl GenericClient, id: TaskId) -> Result<Vec<Attempt>, Error> {
    let rows = statement::query(client, HISTORY, &[&id.to_string()]).await?;
    rows.iter().flatten().map(|document| read(document)).collect()
}

/// Returns one sentence that says why the task is not running now, or what it does. Returns `None`
/// if the task does not exist.
///
/// # Errors
/// As [`task`].
pub async fn why(client: &impl GenericClient, id: TaskId) -> Result<Option<String>, Error> {
    Ok(statement::query(client, WHY, &[&id.to_string()]).await?.into_iter().flatten().next())
}

/// Waits until the task has ended, and returns its outcome. The server polls up to twice a second,
/// without an open snapshot.
///
/// # Errors
/// Fails with [`Error::WaitTimeout`] after the timeout, with [`Error::TransactionOpen`] inside a
/// transaction, and with [`Error::Refused`] if there is no such task.
pub async fn wait(
    client: &impl GenericClient,
    id: TaskId,
    timeout: Option<Duration>,
) -> Result<Outcome, Error> {
    statement::wait(client, WAIT, id.0, timeout).await
}

/// Cancels a task; a running one only if `running` is set. Returns `cancelled`, `requested` (its
/// worker stops it), `running`, `finished` or `not found`.
///
/// # Errors
/// As [`task`].
pub async fn cancel(
    client: &impl GenericClient,
    id: TaskId,
    running: bool,
) -> Result<String, Error> {
    statement::text(client, CANCEL, &[&id.to_string(), &running.to_string()]).await
}

/// Runs a task again: a finished task under the same id (`retried`), a scheduled task now
/// (`brought forward`). If the task is in another state, changes nothing and returns that state; if
/// there is no such task, returns `not found`.
///
/// # Errors
/// Fails if another live task has the same deduplication key, and as [`task`].
pub async fn retry(client: &impl GenericClient, id: TaskId) -> Result<String, Error> {
    statement::text(client, RETRY, &[&id.to_string()]).await
}
