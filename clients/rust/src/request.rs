//! Requests: new tasks and their options.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::id::TaskId;
use crate::labels::{Labels, StoredOptions};
use crate::statement::seconds;
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

impl Serialize for Due {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let (due_at, due_in) = match *self {
            Self::Now => (None, None),
            Self::At(instant) => (Some(instant), None),
            Self::In(wait) => (None, Some(seconds(wait))),
        };
        json!({"due_at": due_at, "due_in": due_in}).serialize(out)
    }
}

/// Options of a task. For an option that is `None`, the schema applies its default. A field is
/// serialized as the key of the argument `options` of `mill.submit`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TaskOptions {
    /// Queue name.
    pub queue: Option<String>,
    /// Priority; by default that of the group.
    pub priority: Option<Priority>,
    /// Due time.
    #[serde(flatten)]
    pub due: Due,
    /// Maximum number of failed attempts; the first attempt counts too.
    pub max_attempts: Option<i32>,
    /// Wait before a retry.
    #[serde(serialize_with = "interval")]
    pub retry_interval: Option<Duration>,
    /// Growth of the wait before a retry.
    pub backoff: Option<Backoff>,
    /// Whether the wait before a retry is drawn at random between zero and the full wait.
    pub jitter: Option<bool>,
    /// Maximum run time of an attempt; unlimited by default.
    #[serde(serialize_with = "interval")]
    pub timeout: Option<Duration>,
    /// Execution mode.
    pub mode: Option<Mode>,
    /// Whether the statement is never started twice. Requires autocommit mode.
    #[serde(skip_serializing_if = "not")]
    pub at_most_once: bool,
    /// Whether the statement has effects outside the cluster.
    #[serde(skip_serializing_if = "not")]
    pub external: bool,
    /// The task's group.
    #[serde(rename = "group_name")]
    pub group: Option<String>,
    /// Tasks with the same key run one at a time, or up to `concurrency` at a time.
    pub concurrency_key: Option<String>,
    /// Maximum number of concurrent tasks with this key. Applies if the key has no limit yet.
    pub concurrency: Option<i32>,
    /// Profile whose login the task runs as; defaults to the common task login.
    #[serde(skip)]
    pub run_as: Option<String>,
    /// Target in whose database the task runs; not together with `run_as`.
    #[serde(skip)]
    pub target: Option<String>,
    /// Whether to run the statement under EXPLAIN (ANALYZE) and to keep the plan instead of the
    /// rows.
    #[serde(skip_serializing_if = "not")]
    pub explain: bool,
    /// Tags, metadata and other options that pgmill shows with the task.
    #[serde(flatten)]
    pub stored: StoredOptions,
}

impl TaskOptions {
    /// Returns the argument `options` of `mill.submit`, without the profile.
    pub(crate) fn document(&self) -> Map<String, Value> {
        let Value::Object(mut document) = json!(self) else { return Map::new() };
        let defaults = [json!(null), json!([]), json!({})];
        document.retain(|_, value| !defaults.contains(value));
        document
    }
}

fn not(flag: &bool) -> bool {
    !flag
}

fn interval<S: Serializer>(duration: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
    duration.map(seconds).serialize(out)
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
