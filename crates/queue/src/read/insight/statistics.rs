//! Aggregates over history: durations by task name, and failures by cause.

use std::time::Duration;

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Outcome, TaskId};
use serde::Serialize;

use crate::error::QueueError;
use crate::row::{column, first, from_row, rows};

const DURATIONS: &str = "SELECT /* queue.durations */ d.queue, d.name, d.attempts, d.failures, extract(epoch FROM d.p50)::float8 AS p50_seconds,
    extract(epoch FROM d.p95)::float8 AS p95_seconds, extract(epoch FROM d.mean)::float8 AS mean_seconds,
    extract(epoch FROM d.last)::float8 AS last_seconds, d.last_at, d.trend
FROM mill.durations d WHERE ($1 IS NULL OR d.queue = $1) ORDER BY d.queue, d.name";

const DURATIONS_OF: &str = "SELECT /* queue.durations_of */ $1 AS queue, $2 AS name, d.attempts, d.failures, extract(epoch FROM d.p50)::float8 AS p50_seconds,
    extract(epoch FROM d.p95)::float8 AS p95_seconds, extract(epoch FROM d.mean)::float8 AS mean_seconds,
    extract(epoch FROM d.last)::float8 AS last_seconds, d.last_at, d.trend
FROM mill.durations_of($1, $2) d WHERE d.attempts > 0";

/// SQL for a hash that identifies a cause and is short enough for a URL.
macro_rules! cause {
    ($sqlstate:literal, $pattern:literal) => {
        concat!(
            "left(md5(coalesce(",
            $sqlstate,
            ", '') || ' ' || coalesce(",
            $pattern,
            ", '')), 12)"
        )
    };
}

/// SQL for the cause of an attempt `a`, see [`FailureGroup::cause`].
pub(super) const CAUSE: &str = cause!("a.sqlstate", "mill.message_pattern(a.message)");

const FAILURES: &str = concat!(
    "SELECT /* queue.failures */ f.outcome::text, f.sqlstate, f.message, f.attempts, f.tasks, f.first_at, f.last_at, f.queues,
    f.names, f.examples, ",
    cause!("f.sqlstate", "f.message"),
    " AS cause
FROM mill.failure_groups(make_interval(secs => $1)) f"
);

/// Durations of the tasks with one name, over at most the last 500 attempts within seven days.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Durations {
    /// The queue.
    pub queue: String,
    /// The task name.
    pub name: String,
    /// Number of attempts that were evaluated.
    pub attempts: i64,
    /// Number of these attempts that neither succeeded nor were cancelled.
    pub failures: i64,
    /// Median of the durations of successful attempts, in seconds; `None` if no attempt succeeded.
    pub p50_seconds: Option<f64>,
    /// 95th percentile of the same durations.
    pub p95_seconds: Option<f64>,
    /// Mean of the same durations.
    pub mean_seconds: Option<f64>,
    /// Duration of the last successful attempt, in seconds.
    pub last_seconds: Option<f64>,
    /// End of the last attempt, regardless of its outcome.
    pub last_at: Timestamp,
    /// Median of the last 20 successful attempts divided by the median of the 200 before them;
    /// `None` if there are too few.
    pub trend: Option<f64>,
}

from_row! {
    Durations {
        queue, name, attempts, failures, p50_seconds, p95_seconds, mean_seconds, last_seconds,
        last_at, trend,
    }
}

/// Failures with the same cause.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct FailureGroup {
    /// The outcome.
    pub outcome: Outcome,
    /// The SQLSTATE, if the error came from the server.
    pub sqlstate: Option<String>,
    /// The message with names, values and numbers removed; `None` if there was none or the role may
    /// not see it.
    pub message: Option<String>,
    /// Number of attempts.
    pub attempts: i64,
    /// Number of tasks.
    pub tasks: i64,
    /// End of the first attempt.
    pub first_at: Timestamp,
    /// End of the last attempt.
    pub last_at: Timestamp,
    /// The queues of these attempts.
    pub queues: Vec<String>,
    /// The task names of these attempts, up to ten.
    pub names: Vec<String>,
    /// Ids of the last five tasks.
    pub examples: Vec<TaskId>,
    /// Identifies the SQLSTATE and the message, as a filter for lists of tasks.
    pub cause: String,
}

from_row! {
    row => FailureGroup {
        outcome, sqlstate, message, attempts, tasks, first_at, last_at, queues,
        names: column::<Option<_>>(row, "names")?.unwrap_or_default(), examples, cause,
    }
}

/// Returns durations by queue and name, for the first 1,000 names.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn durations(
    client: &impl GenericClient,
    queue: Option<&str>,
) -> Result<Vec<Durations>, QueueError> {
    rows(client, DURATIONS, &[&queue]).await
}

/// Returns the durations of tasks with this name; `None` if none has run.
///
/// # Errors
/// Same as [`durations`].
pub async fn durations_of(
    client: &impl GenericClient,
    queue: &str,
    name: &str,
) -> Result<Option<Durations>, QueueError> {
    first(client, DURATIONS_OF, &[&queue, &name]).await
}

/// Returns the failures within this time, grouped by cause, most frequent first.
///
/// # Errors
/// Same as [`durations`].
pub async fn failures(
    client: &impl GenericClient,
    since: Duration,
) -> Result<Vec<FailureGroup>, QueueError> {
    rows(client, FAILURES, &[&since.as_secs_f64()]).await
}
