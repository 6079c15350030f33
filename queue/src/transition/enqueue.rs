//! → scheduled | blocked | pending, when a task is enqueued.
//!
//! Calls `mill.submit` and `mill.enqueue_many`, so that a producer needs no privilege on any table.
//! The caller provides the transaction, and calls [`notify`] after its commit, or uses
//! [`enqueue_and_notify`]. A NOTIFY inside a transaction that writes would hold a cluster-wide lock
//! until its WAL is on disk.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use crate::error::QueueError;
use crate::id::TaskId;
use crate::labels::StoredOptions;
use crate::row::{FromRow, from_row, scalar};
use crate::scan;
use crate::task::{Backoff, Mode, Priority};

const SUBMIT: &str = "/* queue.submit */ SELECT s.id, s.created FROM mill.submit";

const ENQUEUE_MANY: &str = "/* queue.enqueue_many */ SELECT s FROM mill.enqueue_many";

/// The server merges notifications that are pending at the same time. If one is lost, the tasks
/// start up to one poll interval later.
const NOTIFY: &str = "/* queue.notify */ SELECT pg_notify('mill', 'work')";

const LIMIT: &str =
    "/* queue.statement_limit */ SELECT s.statement_limit_bytes FROM mill.settings s";

const NOW: &str = "/* queue.now */ SELECT clock_timestamp()";

/// Due time of a new task.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// At this instant; an instant in the past means at once.
    At(Timestamp),
    /// This long after the enqueue, by the database clock.
    In(Duration),
}

/// Options of a task. For an option that is `None`, the schema applies its default, which
/// [`crate::task_defaults`] repeats.
#[derive(Clone, Debug, Default)]
pub struct TaskOptions {
    /// Queue name.
    pub queue: Option<String>,
    /// Priority; by default that of the group.
    pub priority: Option<Priority>,
    /// Due time.
    pub due: Due,
    /// Maximum number of failed attempts; the first attempt counts too.
    pub max_attempts: Option<i32>,
    /// Wait before a retry.
    pub retry_interval: Option<Duration>,
    /// Growth of the wait before a retry.
    pub backoff: Option<Backoff>,
    /// Whether the wait before a retry is drawn at random between zero and the full wait.
    pub jitter: Option<bool>,
    /// Maximum run time of an attempt; unlimited by default.
    pub timeout: Option<Duration>,
    /// Execution mode.
    pub mode: Option<Mode>,
    /// Whether the statement is never started twice. Requires autocommit mode.
    pub at_most_once: bool,
    /// Whether the statement has effects outside the cluster.
    pub external: bool,
    /// The task's group.
    pub group: Option<String>,
    /// Tasks with the same key run one at a time, or up to `concurrency` at a time.
    pub concurrency_key: Option<String>,
    /// Maximum number of concurrent tasks with this key. Applies if the key has no limit yet.
    pub concurrency: Option<i32>,
    /// Profile whose login the task runs as; defaults to the common task login.
    pub run_as: Option<String>,
    /// Target in whose database the task runs; not together with `run_as`.
    pub target: Option<String>,
    /// Whether to run the statement under EXPLAIN (ANALYZE) and to keep the plan instead of the
    /// rows.
    pub explain: bool,
    /// Tags, metadata and other options that the schema stores as a whole.
    pub stored: StoredOptions,
}

/// One statement to run.
#[derive(Clone, Debug, Default)]
pub struct NewTask {
    /// The SQL.
    pub statement: String,
    /// Values of $1, $2, …
    pub params: Option<Vec<Value>>,
    /// Free-text name.
    pub name: Option<String>,
}

/// Result of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Enqueued {
    /// The task.
    pub id: TaskId,
    /// Whether the task is new. If a live task with this key exists already, this is `false`, and
    /// `id` is the id of that task.
    pub created: bool,
}

from_row! { Enqueued { id, created } }

/// Submits one task, under a deduplication key if one is given.
///
/// # Errors
/// Fails if the schema refuses a value (see [`QueueError::refused`]).
pub async fn enqueue(
    client: &impl GenericClient,
    task: &NewTask,
    options: &TaskOptions,
    key: Option<&str>,
) -> Result<Enqueued, QueueError> {
    check_explain(task, options)?;
    let mut call = FunctionCall::default();
    call.arg("statement", "$", &task.statement, Type::TEXT);
    call.optional_arg("params", "$", task.params.clone().map(Value::Array), Type::JSONB);
    call.optional_arg("name", "$", task.name.as_deref(), Type::TEXT);
    call.option_args(options);
    call.optional_arg("key", "$", key, Type::TEXT);
    Enqueued::from_row(&call.query(client, SUBMIT).await?[0])
}

/// Submits one task in a transaction of its own, and notifies the fleet after its commit. Both
/// statements are sent at once, so that the notification follows the commit without another round
/// trip. The client must not be in a transaction.
///
/// # Errors
/// As [`enqueue`]. A lost notification is no error: the task then starts up to one poll interval
/// later.
pub async fn enqueue_and_notify(
    client: &impl GenericClient,
    task: &NewTask,
    options: &TaskOptions,
    key: Option<&str>,
) -> Result<Enqueued, QueueError> {
    tokio::join!(biased; enqueue(client, task, options, key), notify(client)).0
}

/// Submits many tasks in one statement, and returns their ids in order.
///
/// # Errors
/// As [`enqueue`]. After an error, none of the tasks is submitted.
pub async fn enqueue_many(
    client: &impl GenericClient,
    tasks: &[NewTask],
    options: &TaskOptions,
) -> Result<Vec<TaskId>, QueueError> {
    tasks.iter().try_for_each(|task| check_explain(task, options))?;
    let statements: Vec<&str> = tasks.iter().map(|task| task.statement.as_str()).collect();
    let params: Option<Vec<Option<Value>>> = tasks
        .iter()
        .any(|task| task.params.is_some())
        .then(|| tasks.iter().map(|task| task.params.clone().map(Value::Array)).collect());
    let names: Option<Vec<Option<&str>>> = tasks
        .iter()
        .any(|task| task.name.is_some())
        .then(|| tasks.iter().map(|task| task.name.as_deref()).collect());
    let mut call = FunctionCall::default();
    call.arg("statements", "$", statements, Type::TEXT_ARRAY);
    call.optional_arg("params", "$", params, Type::JSONB_ARRAY);
    call.optional_arg("names", "$", names, Type::TEXT_ARRAY);
    call.option_args(options);
    call.query(client, ENQUEUE_MANY).await?.iter().map(scalar).collect()
}

/// Checks that EXPLAIN supports the whole statement, because the schema checks only its first
/// keyword.
fn check_explain(task: &NewTask, options: &TaskOptions) -> Result<(), QueueError> {
    if !options.explain || scan::explainable(&task.statement) {
        return Ok(());
    }
    Err(QueueError::Refused {
        message: "EXPLAIN does not support this statement".to_owned(),
        hint: Some(scan::EXPLAINABLE.to_owned()),
    })
}

/// Notifies the fleet that there is work. Call it after the enqueue has committed.
///
/// # Errors
/// The tasks remain enqueued if the notification fails.
pub async fn notify(client: &impl GenericClient) -> Result<(), QueueError> {
    client.query_typed(NOTIFY, &[]).await?;
    Ok(())
}

/// Returns the maximum size of a statement, in bytes.
///
/// # Errors
/// Fails if the role may not read the settings.
pub async fn statement_limit(client: &impl GenericClient) -> Result<u64, QueueError> {
    let limit: i32 = scalar(&client.query_typed(LIMIT, &[]).await?[0])?;
    Ok(u64::from(limit.cast_unsigned()))
}

/// Returns the time of the database clock, which is the only clock.
pub async fn database_now(client: &impl GenericClient) -> Result<Timestamp, QueueError> {
    scalar(&client.query_typed(NOW, &[]).await?[0])
}

/// A function call that passes only the arguments that are given. The defaults of the function
/// apply to the others. The server spends a fifth less on such a call than on a call with every
/// argument.
#[derive(Default)]
struct FunctionCall<'a> {
    arguments: Vec<String>,
    values: Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>,
}

impl<'a> FunctionCall<'a> {
    /// Adds an argument. `expression` contains `$` in place of the value.
    fn arg(
        &mut self,
        name: &'static str,
        expression: &'static str,
        value: impl ToSql + Sync + Send + 'a,
        value_type: Type,
    ) {
        self.values.push((Box::new(value), value_type));
        let placeholder = format!("${}", self.values.len());
        self.arguments.push(format!("{name} => {}", expression.replace('$', &placeholder)));
    }

    fn optional_arg(
        &mut self,
        name: &'static str,
        expression: &'static str,
        value: Option<impl ToSql + Sync + Send + 'a>,
        value_type: Type,
    ) {
        if let Some(value) = value {
            self.arg(name, expression, value, value_type);
        }
    }

    fn option_args(&mut self, options: &'a TaskOptions) {
        const SECONDS: &str = "make_interval(secs => $)";
        let seconds = |wait: Duration| wait.as_secs_f64();
        self.optional_arg("queue", "$", options.queue.as_deref(), Type::TEXT);
        let priority = options.priority.map(Priority::as_str);
        self.optional_arg("priority", "$::text::mill.priority", priority, Type::TEXT);
        match options.due {
            Due::Now => {}
            Due::At(instant) => self.arg("due_at", "$", instant, Type::TIMESTAMPTZ),
            Due::In(wait) => {
                self.arg("due_at", "now() + make_interval(secs => $)", seconds(wait), Type::FLOAT8);
            }
        }
        self.optional_arg("max_attempts", "$", options.max_attempts, Type::INT4);
        let retry_interval = options.retry_interval.map(seconds);
        self.optional_arg("retry_interval", SECONDS, retry_interval, Type::FLOAT8);
        let backoff = options.backoff.map(Backoff::as_str);
        self.optional_arg("backoff", "$::text::mill.backoff", backoff, Type::TEXT);
        self.optional_arg("jitter", "$", options.jitter, Type::BOOL);
        self.optional_arg("timeout", SECONDS, options.timeout.map(seconds), Type::FLOAT8);
        let mode = options.mode.map(Mode::as_str);
        self.optional_arg("mode", "$::text::mill.mode", mode, Type::TEXT);
        self.optional_arg("at_most_once", "$", options.at_most_once.then_some(true), Type::BOOL);
        self.optional_arg("external", "$", options.external.then_some(true), Type::BOOL);
        self.optional_arg("explain", "$", options.explain.then_some(true), Type::BOOL);
        self.optional_arg("group_name", "$", options.group.as_deref(), Type::TEXT);
        self.optional_arg("concurrency_key", "$", options.concurrency_key.as_deref(), Type::TEXT);
        self.optional_arg("concurrency", "$", options.concurrency, Type::INT4);
        self.optional_arg("profile", "mill.profile($)", options.run_as.as_deref(), Type::TEXT);
        self.optional_arg("profile", "mill.target($)", options.target.as_deref(), Type::TEXT);
        self.optional_arg("options", "$", options.stored.document(), Type::JSONB);
    }

    /// Runs `select`, which must end with the function's name.
    async fn query(
        &self,
        client: &impl GenericClient,
        select: &str,
    ) -> Result<Vec<Row>, QueueError> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> =
            self.values.iter().map(|(value, ty)| (&**value as _, ty.clone())).collect();
        let sql = format!("{select}({}) AS s", self.arguments.join(", "));
        Ok(client.query_typed(&sql, &values).await?)
    }
}
