//! API handlers that enqueue, change, cancel and retry tasks.

use jiff::Timestamp;
use queue::change::{self, TaskChanges};
use queue::enqueue::{self, Due, Enqueued, NewTask, TaskOptions};
use queue::{Backoff, Isolation, Labels, Mode, Priority, StoredOptions, Traceparent, cancel};
use serde::Deserializer;

use super::{Done, EmptyRequest, found, seconds};
use crate::api::prelude::*;
use crate::screens::tasks::status::{no_such_task, task_id};

/// Tasks to enqueue, with common options. Durations are in seconds.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EnqueueRequest {
    /// At least one.
    #[schema(min_items = 1)]
    tasks: Vec<TaskRequest>,
    queue: Option<String>,
    priority: Option<Priority>,
    /// Earliest start; by default at once.
    due_at: Option<Timestamp>,
    max_attempts: Option<i32>,
    retry_interval_seconds: Option<f64>,
    backoff: Option<Backoff>,
    jitter: Option<bool>,
    timeout_seconds: Option<f64>,
    mode: Option<Mode>,
    isolation: Option<Isolation>,
    #[serde(default)]
    at_most_once: bool,
    #[serde(default)]
    external: bool,
    #[serde(default)]
    explain: bool,
    group: Option<String>,
    concurrency_key: Option<String>,
    concurrency: Option<i32>,
    run_as: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    store_params: Option<bool>,
    store_output: Option<bool>,
    /// Trace context of the caller.
    traceparent: Option<Traceparent>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TaskRequest {
    /// The SQL.
    statement: String,
    /// Values of $1, $2, …
    #[schema(value_type = Option<Vec<Object>>)]
    params: Option<Vec<Value>>,
    name: Option<String>,
    /// Deduplication key: at most one live task has it. Only in a request with one task.
    key: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct EnqueuedTasks {
    /// The tasks, in the order of the request.
    tasks: Vec<Enqueued>,
}

/// Changes of a task that waits. An option that is missing stays as it is.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct ChangeTaskRequest {
    priority: Option<Priority>,
    queue: Option<String>,
    /// Earliest start; null: now.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<Timestamp>)]
    due_at: Option<Option<Timestamp>>,
    /// Values of $1, $2, …; null: none.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<Vec<Object>>)]
    params: Option<Option<Vec<Value>>>,
    max_attempts: Option<i32>,
    /// Null: no timeout.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<f64>)]
    timeout_seconds: Option<Option<f64>>,
    /// Null: no group.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    group: Option<Option<String>>,
}

/// Reads a field that is present, so that null differs from a missing field.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl EnqueueRequest {
    fn split(self) -> Result<(Vec<TaskRequest>, TaskOptions), HttpError> {
        let labels = Labels { tags: self.tags, metadata: self.metadata };
        let mut stored = StoredOptions { labels, ..StoredOptions::default() };
        stored.isolation = self.isolation;
        stored.store_params = self.store_params;
        stored.store_output = self.store_output;
        stored.traceparent = self.traceparent;
        let options = TaskOptions {
            queue: self.queue,
            priority: self.priority,
            due: self.due_at.map_or(Due::Now, Due::At),
            max_attempts: self.max_attempts,
            retry_interval: seconds("retry_interval_seconds", self.retry_interval_seconds)?,
            backoff: self.backoff,
            jitter: self.jitter,
            timeout: seconds("timeout_seconds", self.timeout_seconds)?,
            mode: self.mode,
            at_most_once: self.at_most_once,
            external: self.external,
            group: self.group,
            concurrency_key: self.concurrency_key,
            concurrency: self.concurrency,
            run_as: self.run_as,
            // `run_as` names targets as well.
            target: None,
            explain: self.explain,
            stored,
        };
        Ok((self.tasks, options))
    }
}

impl ChangeTaskRequest {
    fn changes(self) -> Result<TaskChanges, HttpError> {
        let timeout = self.timeout_seconds.map(|it| seconds("timeout_seconds", it)).transpose()?;
        Ok(TaskChanges {
            priority: self.priority,
            queue: self.queue,
            due_at: self.due_at,
            params: self.params,
            max_attempts: self.max_attempts,
            timeout,
            group: self.group,
        })
    }
}

changes! {
    /// Enqueues tasks, all or none
    ///
    /// Requires the scope `enqueue`, and the privileges of `mill_producer`.
    Enqueue "/api/v1/tasks" enqueue(tx, body => EnqueueRequest) -> EnqueuedTasks {
        let (mut tasks, options) = body.split()?;
        let key = tasks.first_mut().and_then(|task| task.key.take());
        let several = tasks.len() > 1;
        if tasks.is_empty() || several && (key.is_some() || has_key(&tasks)) {
            return Err(HttpError::bad_request("tasks must be one task, or several without a key"));
        }
        let tasks: Vec<NewTask> = tasks.into_iter().map(new_task).collect();
        let tasks = match tasks.as_slice() {
            [task] => vec![enqueue::enqueue(tx, task, &options, key.as_deref()).await?],
            tasks => {
                let ids = enqueue::enqueue_many(tx, tasks, &options).await?;
                ids.into_iter().map(|id| Enqueued { id, created: true }).collect()
            }
        };
        Ok(EnqueuedTasks { tasks })
    }

    /// Cancels a task
    ///
    /// The result is `cancelled`, `requested` for a running task, or `finished`.
    Operate "/api/v1/tasks/{id}/cancel"
    cancel_task(tx, _ => EmptyRequest, id = task_id[i64, Path, minimum = 1]) -> Done {
        found(cancel::cancel(tx, id).await?, || no_such_task(id))
    }

    /// Runs a finished task again, or a scheduled task now
    ///
    /// The result is `retried`, `brought forward`, or the state of a task that cannot be retried.
    Operate "/api/v1/tasks/{id}/retry"
    retry_task(tx, _ => EmptyRequest, id = task_id[i64, Path, minimum = 1]) -> Done {
        found(cancel::retry(tx, id).await?, || no_such_task(id))
    }

    /// Changes a task that waits
    ///
    /// The result is `updated`, `unchanged` or `finished`. A running task is refused.
    Operate "/api/v1/tasks/{id}/set"
    change_task(tx, body => ChangeTaskRequest, id = task_id[i64, Path, minimum = 1]) -> Done {
        let changes = body.changes()?;
        if changes.is_empty() {
            return Err(HttpError::bad_request("the request changes no option"));
        }
        found(change::change(tx, id, &changes).await?, || no_such_task(id))
    }
}

fn has_key(tasks: &[TaskRequest]) -> bool {
    tasks.iter().any(|task| task.key.is_some())
}

fn new_task(task: TaskRequest) -> NewTask {
    NewTask { statement: task.statement, params: task.params, name: task.name }
}
