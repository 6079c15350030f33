//! Lists of attempts and finished tasks.
//!
//! History has one partition per day and no index on time. Therefore every list here has a start
//! time and reads only the days since then. The exception is the list of one task, which has an
//! index.

use std::time::{Duration, Instant};

use conninfo::GenericClient;
use jiff::{SignedDuration, Timestamp};
use pgmill_client::{Outcome, RunId, StoredOptions, TaskId};
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;

use crate::error::QueueError;
use crate::id::WorkerId;
use crate::read::task_queries::{self, like_pattern};
use crate::row::{FromRow, Param, column, from_row, only, rows, stored_options};

/// The condition of [`HistoryFilter`] on an attempt `a`.
macro_rules! filter {
    () => {
        "($1 IS NULL OR a.task_id = $1) AND ($2 IS NULL OR a.outcome::text = $2)
    AND ($3 IS NULL OR a.queue = $3) AND ($4 IS NULL OR a.name LIKE $4)
    AND ($5 IS NULL OR a.finished_at > now() - make_interval(secs => $5))
    AND ($7 IS NULL OR a.sqlstate = $7)
    AND ($8 IS NULL OR mill.message_pattern(a.message) = $8)
    AND ($9 IS NULL OR $9 = ANY (a.tags)) AND ($10 IS NULL OR a.run_id = $10)
    AND ($11 IS NULL OR strpos(lower(a.statement), lower($11)) > 0)
    AND ($12 IS NULL OR strpos(lower(a.message), lower($12)) > 0)
    AND ($13 IS NULL OR a.finished_at <= $13)"
    };
}

/// The condition that an attempt `a` is the last final one of a task that is not live. A retry makes a finished task
/// live again. Each comparison with NULL is a lookup in an index for one row. The planner would join NOT EXISTS, and
/// compare every attempt with every task if the statistics say that there are none. The last condition lets it prune
/// partitions.
macro_rules! is_last {
    () => {
        "(SELECT t.id FROM mill.tasks t WHERE t.id = a.task_id) IS NULL
    AND (SELECT later.task_id FROM mill.attempts later
        WHERE later.task_id = a.task_id AND later.final AND later.finished_at > a.finished_at
            AND ($5 IS NULL OR later.finished_at > now() - make_interval(secs => $5)) LIMIT 1) IS NULL"
    };
}

/// The columns of [`AttemptSummary`]; `$rest` begins with the table of the attempts `a`.
macro_rules! attempt_summaries {
    ($name:literal, $($rest:expr),+) => {
        concat!(
            "SELECT /* ",
            $name,
            " */ a.task_id, a.attempt, a.final, a.outcome::text, a.queue, a.name, a.started_at,
    a.finished_at, extract(epoch FROM greatest('0', a.started_at - a.due_at))::float8 AS wait_seconds,
    extract(epoch FROM a.finished_at - a.started_at)::float8 AS duration_seconds, a.rows, a.sqlstate,
    a.message, a.worker_id, s.host, s.pid AS worker_pid, left(a.statement, 200) AS statement_head,
    a.run_id, to_jsonb(a.options) AS options
FROM ",
            $($rest),+
        )
    };
}

const ATTEMPTS: &str = attempt_summaries!(
    "queue.history",
    "mill.visible_attempts a LEFT JOIN mill.worker_starts s ON s.id = a.worker_id
WHERE ",
    filter!(),
    "
ORDER BY a.finished_at DESC, a.task_id DESC LIMIT $6"
);

/// Sorts before it looks at other tables, so that it looks only for the newest attempts.
const FINISHED: &str = attempt_summaries!(
    "queue.finished_tasks",
    "(SELECT a.task_id, a.finished_at FROM (SELECT a.task_id, a.finished_at FROM mill.visible_attempts a
            WHERE a.final AND ",
    filter!(),
    " ORDER BY a.finished_at DESC, a.task_id DESC) AS a
        WHERE ",
    is_last!(),
    " LIMIT $6) AS n
    CROSS JOIN LATERAL (SELECT a.* FROM mill.visible_attempts a
        WHERE a.task_id = n.task_id AND a.finished_at = n.finished_at AND a.final LIMIT 1) AS a
    LEFT JOIN mill.worker_starts s ON s.id = a.worker_id
ORDER BY a.finished_at DESC, a.task_id DESC"
);

const FINISHED_IDS: &str = concat!(
    "SELECT /* queue.finished_ids */ a.task_id FROM mill.visible_attempts a WHERE a.final AND ",
    filter!(),
    " AND ",
    is_last!(),
    "
ORDER BY a.finished_at, a.task_id LIMIT $6"
);

/// The last final attempt of each task counts, unless the task is live again. As above, each task is looked up.
const OUTCOMES: &str = "SELECT /* queue.outcomes */ a.outcome::text, count(*) AS tasks, min(a.finished_at) AS first_at, max(a.finished_at) AS last_at,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM a.finished_at - a.started_at))
        AS duration_p95_seconds
FROM (SELECT DISTINCT ON (f.task_id) f.task_id, f.outcome, f.started_at, f.finished_at FROM mill.attempts f
    WHERE f.final AND f.finished_at > now() - make_interval(secs => $1)
    ORDER BY f.task_id, f.finished_at DESC) AS a
WHERE (SELECT t.id FROM mill.tasks t WHERE t.id = a.task_id) IS NULL
GROUP BY a.outcome ORDER BY a.outcome";

/// A filter on attempts. The default matches all of history, which can take long to read.
#[derive(Clone, Debug, Default)]
pub struct HistoryFilter {
    /// Task id.
    pub task: Option<TaskId>,
    /// Outcome.
    pub outcome: Option<Outcome>,
    /// Queue name.
    pub queue: Option<String>,
    /// Name pattern: `*` matches any characters, `?` exactly one.
    pub name: Option<String>,
    /// Maximum time since the end of the attempt.
    pub since: Option<Duration>,
    /// SQLSTATE.
    pub sqlstate: Option<String>,
    /// Message pattern, as returned by [`crate::read::insight::failures`].
    pub message: Option<String>,
    /// Tag.
    pub tag: Option<String>,
    /// Run.
    pub run: Option<RunId>,
    /// A part of the SQL, in upper or lower case.
    pub sql: Option<String>,
    /// A part of the error's message, in upper or lower case.
    pub error: Option<String>,
}

impl HistoryFilter {
    /// Returns whether the filter compares texts of every attempt, which can take long.
    #[must_use]
    pub fn searches_text(&self) -> bool {
        self.sql.is_some() || self.error.is_some()
    }
}

/// An ended attempt in a list. [`crate::read::attempt::Attempt`] has all fields.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptSummary {
    /// The task's id.
    pub task_id: TaskId,
    /// The run, if the task belongs to one.
    pub run_id: Option<RunId>,
    /// Attempt number; 0 if the task ended without being claimed.
    pub attempt: i32,
    /// Whether the task ended with this attempt.
    pub r#final: bool,
    /// Outcome of the attempt.
    pub outcome: Outcome,
    /// The task's queue.
    pub queue: String,
    /// The task's name.
    pub name: Option<String>,
    /// Time of the claim.
    pub started_at: Option<Timestamp>,
    /// End of the attempt.
    pub finished_at: Timestamp,
    /// Seconds from the due time to the claim.
    pub wait_seconds: Option<f64>,
    /// Seconds from the claim to the end.
    pub duration_seconds: Option<f64>,
    /// Rows returned or affected.
    pub rows: Option<i64>,
    /// The error's SQLSTATE.
    pub sqlstate: Option<String>,
    /// The error's message.
    pub message: Option<String>,
    /// The worker that ran the attempt.
    pub worker_id: Option<WorkerId>,
    /// Host name of the worker.
    #[serde(rename = "worker_host")]
    pub host: Option<String>,
    /// Process id of the worker.
    pub worker_pid: Option<i32>,
    /// The first 200 characters of the SQL; `None` if the role may view tasks but not their
    /// statements.
    pub statement_head: Option<String>,
    /// Tags, metadata and other options.
    #[serde(flatten)]
    pub options: StoredOptions,
}

from_row! {
    row => AttemptSummary {
        task_id, run_id, attempt, r#final: column(row, "final")?, outcome, queue, name, started_at,
        finished_at, wait_seconds, duration_seconds, rows, sqlstate, message, worker_id, host,
        worker_pid, statement_head, options: stored_options(row)?,
    }
}

/// A finished task in a list: its final attempt, with the id of the task as its own id.
#[derive(Clone, Debug, Serialize)]
pub struct FinishedTask {
    id: TaskId,
    #[serde(flatten)]
    attempt: Value,
}

impl FinishedTask {
    /// Returns the task of its final attempt.
    #[must_use]
    pub fn new(attempt: &AttemptSummary) -> Self {
        let mut fields = serde_json::to_value(attempt).unwrap_or_default();
        if let Some(fields) = fields.as_object_mut() {
            fields.remove("task_id");
        }
        Self { id: attempt.task_id, attempt: fields }
    }
}

/// Number of tasks with one outcome.
#[derive(Clone, Debug, Serialize)]
pub struct OutcomeCount {
    /// The outcome.
    pub outcome: Outcome,
    /// Number of tasks.
    pub tasks: i64,
    /// Time at which the first of these tasks ended.
    pub first_at: Timestamp,
    /// Time at which the last of these tasks ended.
    pub last_at: Timestamp,
    /// 95th percentile of the run times of the tasks' last attempts, in seconds; `None` if no task
    /// was claimed.
    pub duration_p95_seconds: Option<f64>,
}

from_row! { OutcomeCount { outcome, tasks, first_at, last_at, duration_p95_seconds } }

/// Returns ended attempts, newest first.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn attempts(
    client: &impl GenericClient,
    filter: &HistoryFilter,
    limit: i64,
) -> Result<Vec<AttemptSummary>, QueueError> {
    filtered(client, ATTEMPTS, filter, (None, Some(limit))).await
}

/// Returns finished tasks with their last attempts, newest first. A retried task is included again
/// once it has ended again.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn finished_tasks(
    client: &impl GenericClient,
    filter: &HistoryFilter,
    limit: i64,
) -> Result<Vec<AttemptSummary>, QueueError> {
    filtered(client, FINISHED, filter, (None, Some(limit))).await
}

/// Lengths in minutes of the spans that a search reads one after the other, the latest first.
const SPANS_MINUTES: [i64; 5] = [2, 15, 120, 1440, 10_080];

/// Time after which a search reads no further span.
const SEARCH_BUDGET: Duration = Duration::from_secs(5);

/// A search for texts: what it found, and how far it read.
#[derive(Clone, Debug)]
pub struct AttemptSearch {
    /// The attempts, newest first.
    pub attempts: Vec<AttemptSummary>,
    /// The time back to which the search read, if it ended before the start of the period.
    pub searched_back_to: Option<Timestamp>,
}

/// The result of a search for viewers who may not read statements would be empty, which would be
/// misleading.
const SEARCH_SETTINGS: &str = "SELECT /* queue.search_settings */ set_config('transaction_read_only', 'on', true), set_config('statement_timeout', '10s', true), mill.sees_statements() AS sees_statements";

/// Begins the read-only transaction of a search for texts, in which each statement may take at most
/// ten seconds.
///
/// # Errors
/// Refuses the search if statements and messages are hidden from the role.
pub async fn begin_search(client: &mut impl GenericClient) -> Result<Transaction<'_>, QueueError> {
    let transaction = client.transaction().await?;
    if column(&only(&transaction, SEARCH_SETTINGS, &[]).await?, "sees_statements")? {
        return Ok(transaction);
    }
    Err(QueueError::Refused {
        message: "statements and messages are hidden from this login".to_owned(),
        hint: Some(
            "members of mill_operator can search them; mill.settings.hide_statements hides them \
             from others"
                .to_owned(),
        ),
    })
}

/// Searches attempts, or only finished tasks, for the texts of the filter. Reads a span of history,
/// then longer and older ones, until `limit` rows are found, the period of the filter is read, or
/// the time is used up. If the statement timeout ends the search of a span, the transaction is
/// aborted, and the result has what the later spans contain.
///
/// # Errors
/// Fails if the role may not read the history, or if not even the first span could be read.
pub async fn search(
    transaction: &impl GenericClient,
    filter: &HistoryFilter,
    finished: bool,
    limit: i64,
) -> Result<AttemptSearch, QueueError> {
    let begun = Instant::now();
    let now = task_queries::now(transaction).await?;
    let days = Duration::from_secs(400 * 86_400);
    let period = filter.since.unwrap_or(days).min(days);
    let start = now.checked_sub(period).unwrap_or(Timestamp::UNIX_EPOCH);
    let statement = if finished { FINISHED } else { ATTEMPTS };
    let (mut to, mut attempts) = (now, Vec::new());
    let mut spans = SPANS_MINUTES.iter().copied();
    let mut span = SPANS_MINUTES[0];
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    while to > start && attempts.len() < wanted && begun.elapsed() < SEARCH_BUDGET {
        span = spans.next().unwrap_or(span);
        let from = (to - SignedDuration::from_mins(span)).max(start);
        let since = Duration::try_from(now.duration_since(from)).unwrap_or(period);
        let part = HistoryFilter { since: Some(since), ..filter.clone() };
        let missing = limit - i64::try_from(attempts.len()).unwrap_or(limit);
        match filtered(transaction, statement, &part, (Some(to), Some(missing))).await {
            Ok(found) => attempts.extend(found),
            Err(error) if error.sqlstate() == Some(&SqlState::QUERY_CANCELED) && to < now => break,
            Err(error) => return Err(error),
        }
        to = from;
    }
    let stopped = to > start && attempts.len() < wanted;
    Ok(AttemptSearch { attempts, searched_back_to: stopped.then_some(to) })
}

/// Returns the ids of [`finished_tasks`], in the order in which the tasks ended, oldest first.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn finished_ids(
    client: &impl GenericClient,
    filter: &HistoryFilter,
    limit: Option<i64>,
) -> Result<Vec<TaskId>, QueueError> {
    filtered(client, FINISHED_IDS, filter, (None, limit)).await
}

/// Counts, by outcome, the tasks that ended within this time and were not retried since.
///
/// # Errors
/// Fails if the role may not read the history.
pub async fn outcomes(
    client: &impl GenericClient,
    since: Duration,
) -> Result<Vec<OutcomeCount>, QueueError> {
    rows(client, OUTCOMES, &[&since.as_secs_f64()]).await
}

async fn filtered<T: FromRow>(
    client: &impl GenericClient,
    statement: &str,
    filter: &HistoryFilter,
    (to, limit): (Option<Timestamp>, Option<i64>),
) -> Result<Vec<T>, QueueError> {
    let task = filter.task.map(|id| id.0);
    let outcome = filter.outcome.map(Outcome::as_str);
    let name = filter.name.as_deref().map(like_pattern);
    let since = filter.since.map(|since| since.as_secs_f64());
    let run = filter.run.map(|run| run.0);
    let params: [&dyn Param; 13] = [
        &task,
        &outcome,
        &filter.queue,
        &name,
        &since,
        &limit,
        &filter.sqlstate,
        &filter.message,
        &filter.tag,
        &run,
        &filter.sql,
        &filter.error,
        &to,
    ];
    rows(client, statement, &params).await
}
