//! Requests: new tasks and their options.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::id::TaskId;
use crate::labels::{Labels, StoredOptions};
use crate::traceparent::Traceparent;
use crate::vocabulary::{Backoff, Mode, Priority};

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

/// Options of a task. For an option that is `None`, the schema applies its default.
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

/// Options of a new run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Tags and metadata of the run.
    pub labels: Labels,
    /// Time after which the run is cancelled, instead of that of the jobs.
    pub run_timeout: Option<Duration>,
    /// Trace context of the caller, for all tasks of the run.
    pub traceparent: Option<Traceparent>,
}

/// Result of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Enqueued {
    /// The task.
    pub id: TaskId,
    /// Whether the task is new. If a live task with this key exists already, this is `false`, and
    /// `id` is the id of that task.
    pub created: bool,
}
