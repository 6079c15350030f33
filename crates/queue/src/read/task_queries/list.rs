//! Lists of live tasks by a filter.

use std::time::Duration;

use conninfo::GenericClient;
use jiff::Timestamp;
use pgmill_client::{Mode, Priority, RunId, State, StoredOptions, TaskId};
use serde::Serialize;

use crate::error::QueueError;
use crate::id::WorkerId;
use crate::read::task_queries::like_pattern;
use crate::row::{FromRow, Param, from_row, rows, stored_options};

/// Maximum number of tasks whose statements a search reads.
const SEARCHED_TASKS: i64 = 100_000;

/// The values of the filter are bound, not written into the text; a null disables its condition.
/// This costs nothing, because the planner knows the values of an unnamed statement.
macro_rules! filter {
    () => {
        "($1 IS NULL OR t.state::text = $1) AND ($2 IS NULL OR t.queue = $2)
    AND ($3 IS NULL OR t.name LIKE $3)
    AND ($4 IS NULL OR t.enqueued_at > now() - make_interval(secs => $4))
    AND ($6 IS NULL OR $6 = ANY (t.tags)) AND ($7 IS NULL OR t.run_id = $7)"
    };
}

/// The columns of [`LiveTask`], of the tasks `$tasks`, in the order `$order`.
macro_rules! live_tasks {
    ($name:literal, $tasks:expr, $order:literal) => {
        concat!(
            "SELECT /* ",
            $name,
            " */ t.id, t.queue, t.name, t.state::text, t.priority::text, t.mode::text, t.attempt,
    t.failures, t.max_attempts, t.enqueued_at, t.due_at, t.claimed_at, t.claimed_by AS worker_id, s.host,
    s.pid AS worker_pid, left(t.statement, 200) AS statement_head, t.run_id, to_jsonb(t.options) AS options
FROM (",
            $tasks,
            ") AS t LEFT JOIN mill.worker_starts s ON s.id = t.claimed_by
ORDER BY ",
            $order,
            " LIMIT $5"
        )
    };
}

const NEWEST: &str = live_tasks!(
    "queue.live_tasks",
    concat!(
        "(SELECT * FROM mill.visible_tasks t WHERE ",
        filter!(),
        " ORDER BY t.id DESC LIMIT $5)"
    ),
    "t.id DESC"
);

/// Each state is read with its own index, and only as far as the list needs. The pending tasks of
/// one lane are a range of the index that the claim reads.
const RUNNING_ORDER: &str = live_tasks!(
    "queue.live_tasks_in_running_order",
    concat!(
        "
    (SELECT * FROM mill.visible_tasks t WHERE t.state = 'running' AND ",
        filter!(),
        " ORDER BY t.claimed_at, t.id LIMIT $5)
    UNION ALL
    (WITH RECURSIVE lane AS (
        (SELECT x.queue, x.priority, x.run_as FROM mill.visible_tasks x WHERE x.state = 'pending'
         ORDER BY x.queue, x.priority, x.run_as LIMIT 1)
        UNION ALL
        SELECT next.queue, next.priority, next.run_as
        FROM lane CROSS JOIN LATERAL (
            SELECT x.queue, x.priority, x.run_as FROM mill.visible_tasks x
            WHERE x.state = 'pending'
                AND (x.queue, x.priority, x.run_as) > (lane.queue, lane.priority, lane.run_as)
            ORDER BY x.queue, x.priority, x.run_as LIMIT 1) AS next
    )
    SELECT head.* FROM lane CROSS JOIN LATERAL (
        SELECT * FROM mill.visible_tasks t
        WHERE t.state = 'pending' AND t.queue = lane.queue AND t.priority = lane.priority
            AND t.run_as >= lane.run_as AND t.run_as <= lane.run_as AND ",
        filter!(),
        " ORDER BY t.run_as, t.id LIMIT $5) AS head
    WHERE ($1 IS NULL OR $1 = 'pending') AND ($2 IS NULL OR lane.queue = $2)
    ORDER BY head.priority DESC, head.id LIMIT $5)
    UNION ALL
    (SELECT * FROM mill.visible_tasks t WHERE t.state = 'blocked' AND ",
        filter!(),
        " ORDER BY t.id LIMIT $5)
    UNION ALL
    (SELECT * FROM mill.visible_tasks t WHERE t.state = 'scheduled' AND ",
        filter!(),
        " ORDER BY t.due_at, t.id LIMIT $5)"
    ),
    "t.state DESC, t.claimed_at,
    CASE WHEN t.state = 'pending' THEN t.priority END DESC,
    CASE WHEN t.state = 'scheduled' THEN t.due_at END, t.id"
);

/// Searches the newest tasks, so that the part that is searched can be stated as a range of ids.
const SEARCH: &str = live_tasks!(
    "queue.live_task_search",
    concat!(
        "(SELECT * FROM (SELECT * FROM mill.visible_tasks t WHERE ",
        filter!(),
        " ORDER BY t.id DESC LIMIT $9) AS t WHERE strpos(lower(t.statement), lower($8)) > 0)"
    ),
    "t.id DESC"
);

const SEARCHED: &str = concat!(
    "SELECT /* queue.live_task_search_range */ count(*) AS tasks, min(t.id) AS oldest
FROM (SELECT t.id FROM mill.visible_tasks t WHERE ",
    filter!(),
    " ORDER BY t.id DESC LIMIT $9) AS t"
);

const LIVE_IDS: &str = concat!(
    "SELECT /* queue.live_ids */ t.id FROM mill.visible_tasks t WHERE ",
    filter!(),
    " ORDER BY t.id LIMIT $5"
);

/// A filter on live tasks. The default matches all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskFilter {
    /// State.
    pub state: Option<State>,
    /// Queue name.
    pub queue: Option<String>,
    /// Name pattern: `*` matches any characters, `?` exactly one.
    pub name: Option<String>,
    /// Maximum time since the task was enqueued.
    pub since: Option<Duration>,
    /// Tag.
    pub tag: Option<String>,
    /// Run.
    pub run: Option<RunId>,
}

/// The order of a list of live tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskOrder {
    /// Running tasks, longest-running first; pending tasks by priority and then by id, which is the
    /// order of the claim within a queue and a priority; blocked tasks by id; scheduled tasks by
    /// due time.
    #[default]
    Next,
    /// By id, newest first.
    Newest,
}

/// A live task in a list.
#[derive(Clone, Debug, Serialize)]
pub struct LiveTask {
    /// The task's id.
    pub id: TaskId,
    /// The task's queue.
    pub queue: String,
    /// Free-text name.
    pub name: Option<String>,
    /// State of the task.
    pub state: State,
    /// Priority within the queue.
    pub priority: Priority,
    /// Execution mode.
    pub mode: Mode,
    /// Number of the current or last attempt; 0 if there was none.
    pub attempt: i32,
    /// Number of attempts that count as failed.
    pub failures: i32,
    /// Maximum number of failed attempts.
    pub max_attempts: i32,
    /// Time of submission.
    pub enqueued_at: Timestamp,
    /// Due time. The task is not claimed earlier.
    pub due_at: Timestamp,
    /// Start of the current attempt.
    pub claimed_at: Option<Timestamp>,
    /// The worker that runs the task.
    pub worker_id: Option<WorkerId>,
    /// Host name of the worker.
    #[serde(rename = "worker_host")]
    pub host: Option<String>,
    /// Process id of the worker.
    pub worker_pid: Option<i32>,
    /// The first 200 characters of the SQL; `None` if the role may view tasks but not their
    /// statements.
    pub statement_head: Option<String>,
    /// The run, if the task belongs to one.
    pub run_id: Option<RunId>,
    /// Tags, metadata and other options.
    #[serde(flatten)]
    pub options: StoredOptions,
}

from_row! {
    row => LiveTask {
        id, queue, name, state, priority, mode, attempt, failures, max_attempts, enqueued_at, due_at,
        claimed_at, worker_id, host, worker_pid, statement_head, run_id,
        options: stored_options(row)?,
    }
}

struct SearchedTasks {
    tasks: i64,
    oldest: Option<TaskId>,
}

from_row! { SearchedTasks { tasks, oldest } }

/// Returns live tasks in this order.
///
/// # Errors
/// Fails if the role may not read tasks.
pub async fn live_tasks(
    client: &impl GenericClient,
    filter: &TaskFilter,
    order: TaskOrder,
    limit: i64,
) -> Result<Vec<LiveTask>, QueueError> {
    let statement = match order {
        TaskOrder::Next => RUNNING_ORDER,
        TaskOrder::Newest => NEWEST,
    };
    filtered(client, statement, filter, Some(limit), None).await
}

/// Returns live tasks whose SQL contains this text in upper or lower case, newest first. Searches
/// the newest tasks that match the filter. If there are more than it searches, also returns the
/// oldest id that it has searched.
///
/// # Errors
/// Fails if the role may not read tasks.
pub async fn search_live_tasks(
    client: &impl GenericClient,
    filter: &TaskFilter,
    sql: &str,
    limit: i64,
) -> Result<(Vec<LiveTask>, Option<TaskId>), QueueError> {
    let found = filtered(client, SEARCH, filter, Some(limit), Some(sql)).await?;
    let range: Vec<SearchedTasks> = filtered(client, SEARCHED, filter, None, None).await?;
    let oldest = range.first().and_then(|it| it.oldest.filter(|_| it.tasks >= SEARCHED_TASKS));
    Ok((found, oldest))
}

/// Returns the ids of live tasks, oldest first.
///
/// # Errors
/// Fails if the role may not read tasks.
pub async fn live_ids(
    client: &impl GenericClient,
    filter: &TaskFilter,
    limit: Option<i64>,
) -> Result<Vec<TaskId>, QueueError> {
    filtered(client, LIVE_IDS, filter, limit, None).await
}

async fn filtered<T: FromRow>(
    client: &impl GenericClient,
    statement: &str,
    filter: &TaskFilter,
    limit: Option<i64>,
    sql: Option<&str>,
) -> Result<Vec<T>, QueueError> {
    let state = filter.state.map(State::as_str);
    let name = filter.name.as_deref().map(like_pattern);
    let since = filter.since.map(|since| since.as_secs_f64());
    let run = filter.run.map(|run| run.0);
    let params: [&dyn Param; 9] = [
        &state,
        &filter.queue,
        &name,
        &since,
        &limit,
        &filter.tag,
        &run,
        &sql,
        /* searched tasks */ &SEARCHED_TASKS,
    ];
    rows(client, statement, &params).await
}
