//! Lists of tasks by a filter, newest first, page by page.
//!
//! Live tasks are paged by id, finished tasks by the time at which they finished. A search for a text
//! in live tasks searches a number of tasks at a time, until the page is full, all tasks are
//! searched, or its time is used up. History has no index on time, only a summary per block range.
//! So a page of finished tasks searches a span of time, then longer spans, until it is full, has
//! reached the start of history, or has used up its time. The page reports how far it searched.

use std::time::{Duration, Instant};

use conninfo::GenericClient;
use jiff::{SignedDuration, Timestamp};
use pgmill_client::{Outcome, Priority, State, StoredOptions, TaskId};
use serde::Serialize;
use tokio_postgres::error::SqlState;

use crate::error::QueueError;
use crate::read::insight::condition::Conditions;
use crate::read::insight::statistics::CAUSE;
use crate::read::task_queries::like_pattern;
use crate::read::workers::worker_label;
use crate::row::{column, first, from_row, one, stored_options};

/// Lengths in seconds of the spans that a page searches, in order. A span is read as a whole, so the
/// first one is short enough for thousands of tasks per second. The last one covers all that history
/// can hold.
const SPANS_SECONDS: [i64; 7] = [5, 120, 900, 7200, 86_400, 604_800, 34_560_000];

/// Time after which a page stops searching and shows the tasks that it has found.
const SEARCH_BUDGET: Duration = Duration::from_millis(700);

/// Number of live tasks that a search for a text reads at a time.
const LIVE_WINDOW: i64 = 30_000;

/// Maximum of a count of tasks by state.
pub const COUNT_LIMIT: i64 = 10_000;

const WINDOW_NEWEST: &str = "SELECT /* queue.insight_live_window */ t.id FROM mill.tasks t WHERE t.id < $1 ORDER BY t.id DESC OFFSET $2 LIMIT 1";

const WINDOW_OLDEST: &str = "SELECT /* queue.insight_live_window_oldest */ t.id FROM mill.tasks t WHERE t.id > $1 ORDER BY t.id OFFSET $2 LIMIT 1";

/// Each count stops at its limit plus one. The order of an index makes the planner read that index,
/// where it would otherwise scan the table if most tasks have the state.
const COUNTS: &str = "SELECT /* queue.insight_task_counts */ (SELECT count(*) FROM (SELECT FROM mill.tasks t WHERE t.state = 'running' LIMIT $1) AS r) AS running,
    (SELECT count(*) FROM (SELECT FROM mill.tasks t WHERE t.state = 'pending'
        ORDER BY t.queue, t.priority, t.run_as, t.id LIMIT $1) AS p) AS pending,
    (SELECT count(*) FROM (SELECT FROM mill.tasks t WHERE t.state = 'blocked'
        ORDER BY t.blocking_limit_id, t.priority, t.id LIMIT $1) AS b) AS blocked,
    (SELECT count(*) FROM (SELECT FROM mill.tasks t WHERE t.state = 'scheduled'
        ORDER BY t.due_at, t.id LIMIT $1) AS s) AS scheduled,
    (SELECT count(*) FROM (SELECT FROM mill.attempts a
        WHERE a.final AND a.outcome IN ('failed', 'timed_out', 'lost', 'unknown')
            AND a.finished_at > now() - interval '24 hours' LIMIT $1) AS f) AS failed";

/// Order of a list of live tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskOrder {
    /// Highest id first.
    #[default]
    Newest,
    /// Lowest id first.
    Oldest,
    /// Longest duration of the current attempt first. The list has running tasks only, whose number
    /// is that of the readers, and has no further pages.
    Longest,
}

/// Numbers of tasks by state, each up to [`COUNT_LIMIT`] plus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// Running tasks.
    pub running: i64,
    /// Pending tasks.
    pub pending: i64,
    /// Blocked tasks.
    pub blocked: i64,
    /// Scheduled tasks.
    pub scheduled: i64,
    /// Tasks that ended without success within 24 hours and were not cancelled.
    pub failed: i64,
}

from_row! { TaskCounts { running, pending, blocked, scheduled, failed } }

/// A filter on tasks. The default matches all live tasks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskQuery {
    /// Whether to list finished tasks instead of live ones.
    pub finished: bool,
    /// State of a live task.
    pub state: Option<State>,
    /// Outcomes of finished tasks; empty for any outcome.
    pub outcomes: Vec<Outcome>,
    /// Queue name.
    pub queue: Option<String>,
    /// Name patterns, all of which the name has to match: `*` matches any characters, `?` exactly one.
    pub names: Vec<String>,
    /// Priority.
    pub priority: Option<Priority>,
    /// Group name.
    pub group: Option<String>,
    /// Concurrency key.
    pub key: Option<String>,
    /// Run id.
    pub run: Option<i64>,
    /// SQLSTATE pattern of a finished task.
    pub sqlstate: Option<String>,
    /// Cause of the error of a finished task, as in [`crate::read::insight::FailureGroup`].
    pub cause: Option<String>,
    /// Maximum time since a live task was enqueued, or since a finished task finished.
    pub since: Option<Duration>,
    /// Task ids.
    pub ids: Option<Vec<i64>>,
    /// Tag.
    pub tag: Option<String>,
    /// A part of the SQL, in upper or lower case.
    pub sql: Option<String>,
    /// A part of the error's message of a finished task, in upper or lower case.
    pub error: Option<String>,
    /// A part of the parameters as JSON, in upper or lower case.
    pub params: Option<String>,
    /// Selects live tasks that were enqueued, or finished tasks that finished, at this time or later.
    pub from: Option<Timestamp>,
    /// Selects live tasks that were enqueued, or finished tasks that finished, at this time or
    /// earlier.
    pub to: Option<Timestamp>,
    /// Order of live tasks. Finished tasks are sorted newest first.
    pub order: TaskOrder,
}

impl TaskQuery {
    /// Returns whether tasks are compared with a text for which there is no index.
    #[must_use]
    pub fn searches_text(&self) -> bool {
        let texts = [&self.sql, &self.params, &self.tag, &self.error];
        !self.names.is_empty() || texts.iter().any(|it| it.is_some())
    }
}

/// Position at which the next page of finished tasks begins: after this task, which finished at
/// this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCursor {
    /// End of the task.
    pub at: Timestamp,
    /// The task's id.
    pub id: TaskId,
}

/// A task in a list.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct TaskSummary {
    /// The task's id.
    pub id: TaskId,
    /// The task's queue.
    pub queue: String,
    /// Free-text name.
    pub name: Option<String>,
    /// State; `None` if the task has finished.
    pub state: Option<State>,
    /// Outcome of the task.
    pub outcome: Option<Outcome>,
    /// Priority within the queue.
    pub priority: Priority,
    /// Number of the current or last attempt; 0 if there was none.
    pub attempt: i32,
    /// Number of attempts that count as failed, of at most `max_attempts`; `None` if the task has
    /// finished.
    pub failures: Option<i32>,
    /// Maximum number of failed attempts.
    pub max_attempts: i32,
    /// For a live task, the time when it was submitted. For a finished task, the time when it
    /// finished.
    pub at: Timestamp,
    /// Due time. The task is not claimed earlier.
    pub due_at: Timestamp,
    /// Duration of the current or last attempt, in seconds.
    pub duration_seconds: Option<f64>,
    /// SQLSTATE of the task's error.
    pub sqlstate: Option<String>,
    /// The first 200 characters of the error's message.
    pub message: Option<String>,
    /// `host:pid` of the worker of the current or last attempt.
    pub worker: Option<String>,
    /// The first 200 characters of the SQL; `None` if the role may view tasks but not their
    /// statements.
    pub statement_head: Option<String>,
    /// Whether the task has been retried since it finished. It is then live, or has finished again.
    pub retried: bool,
    /// Tags, metadata and other options.
    #[serde(flatten)]
    pub options: StoredOptions,
}

from_row! {
    row => TaskSummary {
        id, queue, name, state, outcome, priority, attempt, failures, max_attempts, at, due_at,
        duration_seconds, sqlstate, message,
        worker: worker_label(column(row, "host")?, column(row, "pid")?, column(row, "worker_id")?),
        statement_head, retried, options: stored_options(row)?,
    }
}

/// A page of tasks.
#[derive(Clone, Debug)]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<TaskSummary>,
    /// Whether there are more tasks.
    pub more: bool,
    /// For finished tasks, the time back to which the page searched; there may be older tasks.
    /// `None` if the search was complete.
    pub searched_back_to: Option<Timestamp>,
    /// For live tasks, where the search stopped; `None` if the search was complete.
    pub searched: Option<LiveSearch>,
}

/// The part of the live tasks that a search has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveSearch {
    /// Number of tasks.
    pub tasks: i64,
    /// The last of them.
    pub last: TaskId,
}

/// Returns the numbers of tasks by state.
///
/// # Errors
/// Same as [`live`].
pub async fn counts(client: &impl GenericClient) -> Result<TaskCounts, QueueError> {
    let limit = COUNT_LIMIT + 1;
    one(client, COUNTS, &[&limit]).await
}

/// Returns live tasks in the order of the query, after the task `after`.
///
/// # Errors
/// Fails if the search takes longer than the session's statement timeout.
pub async fn live(
    client: &impl GenericClient,
    query: &TaskQuery,
    after: Option<TaskId>,
    limit: usize,
) -> Result<TaskPage, QueueError> {
    if !query.searches_text() || query.order == TaskOrder::Longest {
        return Ok(page(live_rows(client, query, (after, None), limit + 1).await?, limit, None));
    }
    let begun = Instant::now();
    let (mut from, mut searched, mut tasks) = (after, 0, Vec::new());
    loop {
        let last = window_end(client, query.order, from).await?;
        tasks.extend(live_rows(client, query, (from, last), limit + 1 - tasks.len()).await?);
        searched += LIVE_WINDOW;
        let done = tasks.len() > limit || begun.elapsed() >= SEARCH_BUDGET;
        match last {
            Some(last) if done => {
                let search = LiveSearch { tasks: searched, last };
                let searched = (tasks.len() <= limit).then_some(search);
                return Ok(TaskPage { searched, ..page(tasks, limit, None) });
            }
            None => return Ok(page(tasks, limit, None)),
            _ => from = last,
        }
    }
}

/// Returns the last of the next [`LIVE_WINDOW`] live tasks; `None` if there are fewer.
async fn window_end(
    client: &impl GenericClient,
    order: TaskOrder,
    after: Option<TaskId>,
) -> Result<Option<TaskId>, QueueError> {
    let (sql, start) = match order {
        TaskOrder::Oldest => (WINDOW_OLDEST, i64::MIN),
        _ => (WINDOW_NEWEST, i64::MAX),
    };
    let (after, offset) = (after.map_or(start, |id| id.0), LIVE_WINDOW - 1);
    first(client, sql, &[&after, &offset]).await
}

/// Returns live tasks after the first of these ids, up to and including the second.
async fn live_rows(
    client: &impl GenericClient,
    query: &TaskQuery,
    (after, last): (Option<TaskId>, Option<TaskId>),
    limit: usize,
) -> Result<Vec<TaskSummary>, QueueError> {
    let (order, conditions_of_order) = match query.order {
        TaskOrder::Newest => ("t.id DESC", Some(["t.id < ?", "t.id >= ?"])),
        TaskOrder::Oldest => ("t.id", Some(["t.id > ?", "t.id <= ?"])),
        TaskOrder::Longest => ("t.claimed_at, t.id", None),
    };
    let mut conditions = live_conditions(query);
    if let Some([from, to]) = conditions_of_order {
        conditions.bind(from, after.map(|id| id.0));
        conditions.bind(to, last.map(|id| id.0));
    }
    let statement = format!(
        "SELECT /* queue.insight_live */ t.id, t.queue, t.name, t.state::text, NULL AS outcome, t.priority::text, t.attempt,
    t.failures, t.max_attempts, t.enqueued_at AS at, t.due_at,
    extract(epoch FROM now() - t.claimed_at)::float8 AS duration_seconds, t.claimed_by AS worker_id,
    s.host, s.pid, left(t.statement, 200) AS statement_head, NULL AS sqlstate, NULL AS message,
    false AS retried, to_jsonb(t.options) AS options
FROM (SELECT * FROM mill.visible_tasks t WHERE {} ORDER BY {order} LIMIT {limit}) AS t
    LEFT JOIN mill.worker_starts s ON s.id = t.claimed_by
ORDER BY {order}",
        conditions.text()
    );
    conditions.rows(client, &statement).await
}

/// Returns the ids of up to `limit` live tasks, oldest first. Leaves out ids above `newest`.
///
/// # Errors
/// Same as [`live`].
pub async fn live_ids(
    client: &impl GenericClient,
    query: &TaskQuery,
    newest: Option<TaskId>,
    limit: usize,
) -> Result<Vec<TaskId>, QueueError> {
    let mut conditions = live_conditions(query);
    conditions.bind("t.id <= ?", newest.map(|id| id.0));
    let statement = format!(
        "SELECT /* queue.insight_live_ids */ t.id FROM mill.visible_tasks t WHERE {} ORDER BY t.id LIMIT {limit}",
        conditions.text()
    );
    conditions.rows(client, &statement).await
}

/// Returns finished tasks, newest first. If the statement timeout ends the search of a span, the result
/// has what the spans before it contain, and the transaction of the client continues.
///
/// # Errors
/// Same as [`live`].
pub async fn finished(
    client: &mut impl GenericClient,
    query: &TaskQuery,
    after: Option<PageCursor>,
    limit: usize,
) -> Result<TaskPage, QueueError> {
    let begun = Instant::now();
    let now = crate::read::task_queries::now(client).await?;
    let since = query.since.and_then(|since| now.checked_sub(since).ok());
    // A span excludes its beginning.
    let from = query.from.and_then(|from| from.checked_sub(SignedDuration::from_micros(1)).ok());
    let oldest = since.max(from);
    let newest = query.to.map_or(now, |to| to.min(now));
    if query.ids.is_some() {
        let tasks = finished_rows(&*client, query, (oldest, newest, after), limit + 1).await?;
        return Ok(page(tasks, limit, None));
    }
    let horizon = oldest.map_or_else(|| first_day(now), |oldest| oldest.max(first_day(now)));
    let mut to = after.map_or(newest, |after| after.at.min(newest));
    let mut tasks = Vec::new();
    let mut spans = SPANS_SECONDS.iter();
    let mut span = SPANS_SECONDS[0];
    let search = client.transaction().await?;
    while to > horizon && tasks.len() <= limit && begun.elapsed() < SEARCH_BUDGET {
        span = spans.next().copied().unwrap_or(span);
        let from = (to - SignedDuration::from_secs(span)).max(horizon);
        // All rows of one instant belong to one span, because the first span includes its end.
        let wanted = limit + 1 - tasks.len();
        match finished_rows(&search, query, (Some(from), to, after), wanted).await {
            Ok(found) => tasks.extend(found),
            // The rows found before are more useful than an error.
            Err(error) if error.sqlstate() == Some(&SqlState::QUERY_CANCELED) && to < newest => {
                break;
            }
            Err(error) => return Err(error),
        }
        to = from;
    }
    search.rollback().await?;
    let stopped = to > horizon && tasks.len() <= limit;
    Ok(page(tasks, limit, stopped.then_some(to)))
}

/// Returns the start of history. Earlier days have no partition, even with a retention that is much
/// longer than the default.
fn first_day(now: Timestamp) -> Timestamp {
    now - SignedDuration::from_hours(24 * 400)
}

async fn finished_rows(
    client: &impl GenericClient,
    query: &TaskQuery,
    (from, to, after): (Option<Timestamp>, Timestamp, Option<PageCursor>),
    limit: usize,
) -> Result<Vec<TaskSummary>, QueueError> {
    let mut conditions = Conditions::new();
    conditions.literal("a.final");
    if !query.outcomes.is_empty() {
        // Literals, so that the planner can use the partial index of unsuccessful outcomes.
        let outcomes: Vec<String> = query.outcomes.iter().map(|it| format!("'{it}'")).collect();
        conditions.literal(&format!("a.outcome IN ({})", outcomes.join(", ")));
    }
    common(&mut conditions, query, "a");
    conditions.bind("a.task_id = ANY (?)", query.ids.clone());
    conditions.bind("a.sqlstate LIKE ?", query.sqlstate.as_deref().map(like_pattern));
    let error = query.error.clone();
    conditions.bind("strpos(lower(a.message), lower(?)) > 0", error);
    conditions.bind(&format!("{CAUSE} = ?"), query.cause.clone());
    // Tasks that finished at the last instant of the previous page were on that page, except for
    // those that follow its last task.
    conditions.bind("a.finished_at > ?", from);
    conditions.bind("a.finished_at <= ?", Some(to));
    if let Some(after) = after {
        let at = conditions.placeholder(after.at);
        let id = conditions.placeholder(after.id.0);
        conditions.literal(&format!("(a.finished_at, a.task_id) < ({at}, {id})"));
    }
    let statement = format!(
        "SELECT /* queue.insight_finished */ a.task_id AS id, a.queue, a.name, NULL AS state, a.outcome::text, a.priority::text, a.attempt,
    NULL::int4 AS failures, a.max_attempts, a.finished_at AS at, a.due_at,
    extract(epoch FROM a.finished_at - a.started_at)::float8 AS duration_seconds, a.worker_id,
    s.host, s.pid, left(a.statement, 200) AS statement_head, a.sqlstate, left(a.message, 200) AS message,
    EXISTS (SELECT FROM mill.tasks t WHERE t.id = a.task_id)
        OR EXISTS (SELECT FROM mill.attempts l WHERE l.task_id = a.task_id AND l.final
            AND l.finished_at > a.finished_at) AS retried, to_jsonb(a.options) AS options
FROM (SELECT * FROM mill.visible_attempts a WHERE {}
        ORDER BY a.finished_at DESC, a.task_id DESC LIMIT {limit}) AS a
    LEFT JOIN mill.worker_starts s ON s.id = a.worker_id
ORDER BY a.finished_at DESC, a.task_id DESC",
        conditions.text()
    );
    conditions.rows(client, &statement).await
}

fn live_conditions(query: &TaskQuery) -> Conditions {
    let mut conditions = Conditions::new();
    if let Some(state) = query.state {
        // The state is a literal, so that the planner can use the partial index of that state.
        conditions.literal(&format!("t.state = '{state}'"));
    }
    common(&mut conditions, query, "t");
    conditions.bind("t.id = ANY (?)", query.ids.clone());
    let since = query.since.map(|since| since.as_secs_f64());
    conditions.bind("t.enqueued_at > now() - make_interval(secs => ?)", since);
    conditions.bind("t.enqueued_at >= ?", query.from);
    conditions.bind("t.enqueued_at <= ?", query.to);
    if query.order == TaskOrder::Longest {
        conditions.literal("t.state = 'running'");
    }
    conditions
}

/// Adds conditions on columns that both live and finished tasks have.
fn common(conditions: &mut Conditions, query: &TaskQuery, table: &str) {
    if let Some(priority) = query.priority {
        conditions.literal(&format!("{table}.priority = '{priority}'"));
    }
    conditions.bind(&format!("{table}.queue = ?"), query.queue.clone());
    for name in &query.names {
        conditions.bind(&format!("{table}.name LIKE ?"), Some(like_pattern(name)));
    }
    conditions.bind(&format!("{table}.group_name = ?"), query.group.clone());
    conditions.bind(&format!("{table}.concurrency_key = ?"), query.key.clone());
    conditions.bind(&format!("{table}.run_id = ?"), query.run);
    conditions.bind(&format!("? = ANY ({table}.tags)"), query.tag.clone());
    let sql = format!("strpos(lower({table}.statement), lower(?)) > 0");
    conditions.bind(&sql, query.sql.clone());
    let params = format!("strpos(lower({table}.params::text), lower(?)) > 0");
    conditions.bind(&params, query.params.clone());
}

fn page(
    mut tasks: Vec<TaskSummary>,
    limit: usize,
    searched_back_to: Option<Timestamp>,
) -> TaskPage {
    let more = tasks.len() > limit;
    tasks.truncate(limit);
    TaskPage { tasks, more, searched_back_to, searched: None }
}
