//! Enqueues tasks.
//!
//! `enqueue` calls `mill.submit`, which is `mill.enqueue` for programs: it also returns whether the
//! task is new. Neither function needs a privilege on any table.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::id::TaskId;
use crate::request::{Due, Enqueued, NewTask, TaskOptions};
use crate::vocabulary::{Backoff, Mode, Priority};

const ENQUEUE: &str = "SELECT /* pgmill.enqueue */ s.id, s.created FROM mill.submit";

const ENQUEUE_MANY: &str = "SELECT /* pgmill.enqueue_many */ s FROM mill.enqueue_many";

/// Enqueues one task, under a deduplication key if one is given.
///
/// # Errors
/// Fails if the database refuses a value, or the connection is lost.
pub async fn enqueue(
    client: &impl GenericClient,
    task: &NewTask,
    options: &TaskOptions,
    key: Option<&str>,
) -> Result<Enqueued, Error> {
    let mut call = FunctionCall::default();
    call.arg("statement", "$", &task.statement, Type::TEXT);
    call.optional_arg("params", "$", task.params.clone().map(Value::Array), Type::JSONB);
    call.optional_arg("name", "$", task.name.as_deref(), Type::TEXT);
    call.option_args(options);
    call.optional_arg("key", "$", key, Type::TEXT);
    let rows = call.query(client, ENQUEUE).await?;
    Ok(Enqueued { id: rows[0].try_get("id")?, created: rows[0].try_get("created")? })
}

/// Enqueues many tasks in one statement, and returns their ids in order.
///
/// # Errors
/// As [`enqueue`]. After an error, none of the tasks is enqueued.
pub async fn enqueue_many(
    client: &impl GenericClient,
    tasks: &[NewTask],
    options: &TaskOptions,
) -> Result<Vec<TaskId>, Error> {
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
    let rows = call.query(client, ENQUEUE_MANY).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
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
    async fn query(&self, client: &impl GenericClient, select: &str) -> Result<Vec<Row>, Error> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> =
            self.values.iter().map(|(value, ty)| (&**value as _, ty.clone())).collect();
        let sql = format!("{select}({}) AS s", self.arguments.join(", "));
        Ok(client.query_typed(&sql, &values).await?)
    }
}
