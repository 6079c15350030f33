//! → scheduled | pending.
//!
//! Through `mill.submit` and `mill.enqueue_many`, so that a producer needs no right on any table.
//! The caller brings the transaction, and rings after its commit: a NOTIFY inside a transaction
//! that writes holds a cluster-wide lock until its WAL is on disk.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use crate::error::QueueError;
use crate::task::{Backoff, Mode, Priority, TaskId};

const SUBMIT: &str = "/* queue.submit */
SELECT s.id, s.created FROM mill.submit(statement => $1, params => $2, name => $3, queue => $4,
    priority => $5::text::mill.priority, due_at => coalesce($6, now() + make_interval(secs => $7)),
    max_attempts => $8, retry_interval => make_interval(secs => $9),
    backoff => $10::text::mill.backoff, jitter => $11, timeout => make_interval(secs => $12),
    mode => $13::text::mill.mode, at_most_once => $14, external => $15, key => $16) AS s";

const ENQUEUE_MANY: &str = "/* queue.enqueue_many */
SELECT id FROM mill.enqueue_many(statements => $1, params => $2, names => $3, queue => $4,
    priority => $5::text::mill.priority, due_at => coalesce($6, now() + make_interval(secs => $7)),
    max_attempts => $8, retry_interval => make_interval(secs => $9),
    backoff => $10::text::mill.backoff, jitter => $11, timeout => make_interval(secs => $12),
    mode => $13::text::mill.mode, at_most_once => $14, external => $15) AS id";

/// Folded by the server when several are pending; a lost bell costs one poll interval.
const RING: &str = "/* queue.ring */ SELECT pg_notify('mill', 'work')";

const LIMIT: &str = "/* queue.limit */ SELECT s.statement_limit_bytes FROM mill.settings s";

const NOW: &str = "/* queue.now */ SELECT clock_timestamp()";

/// When a task is due.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// At this instant; in the past means at once.
    At(Timestamp),
    /// This long after the enqueue, by the database's clock.
    In(Duration),
}

/// How tasks are run. `None` and the defaults are the schema's.
#[derive(Clone, Debug, Default)]
pub struct TaskOptions {
    /// `default` if none.
    pub queue: Option<String>,
    /// Normal if none.
    pub priority: Option<Priority>,
    /// When.
    pub due: Due,
    /// Attempts that may fail, in all: 3 if none.
    pub max_attempts: Option<i32>,
    /// Wait before a retry: 10 s if none.
    pub retry_interval: Option<Duration>,
    /// Exponential if none.
    pub backoff: Option<Backoff>,
    /// On if none.
    pub jitter: Option<bool>,
    /// The longest an attempt may run: any time if none.
    pub timeout: Option<Duration>,
    /// Transaction if none.
    pub mode: Option<Mode>,
    /// Autocommit only: never start it twice.
    pub at_most_once: bool,
    /// Has effects outside the cluster.
    pub external: bool,
}

/// One statement to run.
#[derive(Clone, Debug, Default)]
pub struct NewTask {
    /// The SQL.
    pub statement: String,
    /// Values of $1, $2, …
    pub params: Option<Vec<Value>>,
    /// What people call it.
    pub name: Option<String>,
}

/// The answer to an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The task.
    pub id: TaskId,
    /// `false`: a live task with this key was there already, and this is its id.
    pub created: bool,
}

/// Submits one task, under a deduplication key if one is given.
///
/// # Errors
/// A value the schema refuses (see [`QueueError::refused`]); database trouble.
pub async fn enqueue(
    client: &impl GenericClient,
    task: &NewTask,
    options: &TaskOptions,
    key: Option<&str>,
) -> Result<Enqueued, QueueError> {
    let params = task.params.clone().map(Value::Array);
    let columns = Columns::of(options);
    let mut values: Vec<(&(dyn ToSql + Sync), Type)> =
        vec![(&task.statement, Type::TEXT), (&params, Type::JSONB), (&task.name, Type::TEXT)];
    values.extend(columns.bound());
    values.push((&key, Type::TEXT));
    let row = &client.query_typed(SUBMIT, &values).await?[0];
    Ok(Enqueued { id: TaskId(row.try_get(0)?), created: row.try_get(1)? })
}

/// Submits many tasks in one statement; returns their ids in order.
///
/// # Errors
/// As [`enqueue`]; then none of them was submitted.
pub async fn enqueue_many(
    client: &impl GenericClient,
    tasks: &[NewTask],
    options: &TaskOptions,
) -> Result<Vec<TaskId>, QueueError> {
    let statements: Vec<&str> = tasks.iter().map(|task| task.statement.as_str()).collect();
    let params: Option<Vec<Option<Value>>> = tasks
        .iter()
        .any(|task| task.params.is_some())
        .then(|| tasks.iter().map(|task| task.params.clone().map(Value::Array)).collect());
    let names: Option<Vec<Option<&str>>> = tasks
        .iter()
        .any(|task| task.name.is_some())
        .then(|| tasks.iter().map(|task| task.name.as_deref()).collect());
    let columns = Columns::of(options);
    let mut values: Vec<(&(dyn ToSql + Sync), Type)> = vec![
        (&statements, Type::TEXT_ARRAY),
        (&params, Type::JSONB_ARRAY),
        (&names, Type::TEXT_ARRAY),
    ];
    values.extend(columns.bound());
    let rows = client.query_typed(ENQUEUE_MANY, &values).await?;
    rows.iter().map(|row| Ok(TaskId(row.try_get(0)?))).collect()
}

/// Rings the doorbell of the fleet. Call it after the enqueue has committed.
///
/// # Errors
/// Database trouble; the tasks are enqueued all the same.
pub async fn ring(client: &impl GenericClient) -> Result<(), QueueError> {
    client.query_typed(RING, &[]).await?;
    Ok(())
}

/// The longest statement this database accepts, in bytes.
///
/// # Errors
/// Database trouble; no right to read the settings.
pub async fn statement_limit(client: &impl GenericClient) -> Result<u64, QueueError> {
    let limit: i32 = client.query_typed(LIMIT, &[]).await?[0].try_get(0)?;
    Ok(u64::from(limit.cast_unsigned()))
}

/// The only clock there is: the database's.
///
/// # Errors
/// Database trouble.
pub async fn database_now(client: &impl GenericClient) -> Result<Timestamp, QueueError> {
    Ok(client.query_typed(NOW, &[]).await?[0].try_get(0)?)
}

/// [`TaskOptions`] as the statements bind them, $4 to $15.
struct Columns<'a> {
    queue: Option<&'a str>,
    priority: Option<&'static str>,
    due_at: Option<Timestamp>,
    due_in: Option<f64>,
    max_attempts: Option<i32>,
    retry_interval: Option<f64>,
    backoff: Option<&'static str>,
    jitter: Option<bool>,
    timeout: Option<f64>,
    mode: Option<&'static str>,
    at_most_once: bool,
    external: bool,
}

impl<'a> Columns<'a> {
    fn of(options: &'a TaskOptions) -> Self {
        let (due_at, due_in) = match options.due {
            Due::Now => (None, None),
            Due::At(instant) => (Some(instant), None),
            Due::In(wait) => (None, Some(wait.as_secs_f64())),
        };
        Self {
            queue: options.queue.as_deref(),
            priority: options.priority.map(Priority::as_str),
            due_at,
            due_in,
            max_attempts: options.max_attempts,
            retry_interval: options.retry_interval.map(|wait| wait.as_secs_f64()),
            backoff: options.backoff.map(Backoff::as_str),
            jitter: options.jitter,
            timeout: options.timeout.map(|limit| limit.as_secs_f64()),
            mode: options.mode.map(Mode::as_str),
            at_most_once: options.at_most_once,
            external: options.external,
        }
    }

    fn bound(&self) -> [(&(dyn ToSql + Sync), Type); 12] {
        [
            (&self.queue, Type::TEXT),
            (&self.priority, Type::TEXT),
            (&self.due_at, Type::TIMESTAMPTZ),
            (&self.due_in, Type::FLOAT8),
            (&self.max_attempts, Type::INT4),
            (&self.retry_interval, Type::FLOAT8),
            (&self.backoff, Type::TEXT),
            (&self.jitter, Type::BOOL),
            (&self.timeout, Type::FLOAT8),
            (&self.mode, Type::TEXT),
            (&self.at_most_once, Type::BOOL),
            (&self.external, Type::BOOL),
        ]
    }
}
