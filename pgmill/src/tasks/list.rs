//! `pgmill task list`: live or finished tasks, by filter or by a search for texts.

use std::collections::HashMap;

use cli::Failure;
use conninfo::Client;
use jiff::Timestamp;
use queue::history::{AttemptSummary, FinishedTask, HistoryFilter};
use queue::task_queries::{LiveTask, TaskFilter, TaskOrder};
use queue::workers::worker_label;
use queue::{State, history, task_queries};

use crate::args::{TaskList, TaskListOrder};
use crate::history::attempts::{ATTEMPT_HEADINGS, attempt_row, search, too_long};
use crate::output::format::{activity, relative_time, state_tone, task_label};
use crate::output::list::{close, cut, default_since, note_default_period, nothing_since};
use crate::output::{Field, Output};

const LIVE_HEADINGS: [&str; 9] =
    ["id", "state", "queue", "priority", "attempt", "failures", "when", "worker", "task"];

/// Place of the column of activities, which only lists of running tasks have: before the worker.
const ACTIVITY_COLUMN: usize = 7;

/// Lists live or finished tasks.
pub(crate) async fn list(
    client: &mut Client,
    out: &Output,
    args: &TaskList,
) -> Result<u8, Failure> {
    if args.error.is_some() && args.live_state().is_some() {
        return Err(Failure::usage("a live task has no error message")
            .hint("leave out --state, or give an outcome such as --state failed"));
    }
    if args.shows_finished() {
        let since = match args.since {
            None => default_since(client, args.run).await?,
            given => given,
        };
        let filter = HistoryFilter {
            task: None,
            outcome: args.final_outcome(),
            queue: args.queue.clone(),
            name: args.name.clone(),
            since,
            tag: args.tag.clone(),
            run: args.run,
            sql: args.sql.clone(),
            error: args.error.clone(),
            ..HistoryFilter::default()
        };
        // Query one row more than is shown, to learn whether there are more.
        let tasks = if filter.searches_text() {
            search(client, out, &filter, true, args.limit + 1).await?
        } else {
            (history::finished_tasks(client, &filter, args.limit + 1).await?, true)
        };
        return finished(client, out, tasks, args).await;
    }
    let filter = TaskFilter {
        state: args.live_state(),
        queue: args.queue.clone(),
        name: args.name.clone(),
        since: args.since,
        tag: args.tag.clone(),
        run: args.run,
    };
    let tasks = match &args.sql {
        Some(sql) => search_live(client, out, &filter, sql, args.limit + 1).await?,
        None => {
            let order = match args.order {
                TaskListOrder::Next => TaskOrder::Next,
                TaskListOrder::Newest => TaskOrder::Newest,
            };
            task_queries::live_tasks(client, &filter, order, args.limit + 1).await?
        }
    };
    live(client, out, tasks, args).await
}

/// Searches live tasks, and says on standard error if not all of them were searched.
async fn search_live(
    client: &mut Client,
    out: &Output,
    filter: &TaskFilter,
    sql: &str,
    limit: i64,
) -> Result<Vec<LiveTask>, Failure> {
    let transaction = history::begin_search(client).await?;
    let (tasks, oldest) = task_queries::search_live_tasks(&transaction, filter, sql, limit)
        .await
        .map_err(too_long)?;
    if let Some(id) = oldest {
        out.note(format_args!(
            "searched only the newest tasks, down to id {id}; narrow the search with --queue, \
             --state, --name, --tag, --run or --since"
        ));
    }
    Ok(tasks)
}

async fn live(
    client: &Client,
    out: &Output,
    mut tasks: Vec<LiveTask>,
    args: &TaskList,
) -> Result<u8, Failure> {
    let more = cut(&mut tasks, args.limit);
    if out.json {
        out.document(&tasks)?;
    } else if !tasks.is_empty() {
        let now = task_queries::now(client).await?;
        let mut rows: Vec<Vec<Field>> = tasks.iter().map(|task| live_row(task, now)).collect();
        let mut headings = LIVE_HEADINGS.to_vec();
        if args.live_state() == Some(State::Running) {
            headings.insert(ACTIVITY_COLUMN, "activity");
            let running = task_queries::running(client, None).await?;
            let running: HashMap<_, _> = running.iter().map(|it| (it.id, activity(it))).collect();
            for (row, task) in rows.iter_mut().zip(&tasks) {
                // The task may have ended since the list was read.
                let (text, tone) = running.get(&task.id).cloned().unwrap_or_default();
                row.insert(ACTIVITY_COLUMN, Field::or_blank(Some(text)).tone(tone));
            }
        }
        out.print_table(&headings, rows)?;
    }
    close(out, tasks.len(), more, "no matching live task")
}

async fn finished(
    client: &Client,
    out: &Output,
    (mut tasks, complete): (Vec<AttemptSummary>, bool),
    args: &TaskList,
) -> Result<u8, Failure> {
    let more = cut(&mut tasks, args.limit);
    if out.json {
        out.document(&tasks.iter().map(FinishedTask::new).collect::<Vec<_>>())?;
    } else if !tasks.is_empty() {
        let now = task_queries::now(client).await?;
        let rows = tasks.iter().map(|task| attempt_row(task, now)).collect();
        out.print_table(&ATTEMPT_HEADINGS, rows)?;
    }
    let is_default = args.since.is_none() && args.run.is_none();
    let nothing = match (is_default, args.since) {
        (true, _) => nothing_since("no matching task ended"),
        (false, Some(_)) => "no matching task ended in this period".to_owned(),
        (false, None) => "no matching task of this run ended".to_owned(),
    };
    if is_default && complete && !more && !tasks.is_empty() && !out.json {
        note_default_period(out);
    }
    close(out, tasks.len(), more, &nothing)
}

fn live_row(task: &LiveTask, now: Timestamp) -> Vec<Field> {
    let when = match task.state {
        State::Scheduled => format!("due {}", relative_time(task.due_at, now)),
        State::Running => {
            format!(
                "since {}",
                relative_time(task.claimed_at.unwrap_or(now), now).replace(" ago", "")
            )
        }
        State::Pending | State::Blocked => {
            format!("waiting {}", relative_time(task.due_at, now).replace(" ago", ""))
        }
    };
    let worker = worker_label(task.host.as_deref(), task.worker_pid, task.worker_id);
    vec![
        Field::new(task.id),
        Field::new(task.state).tone(state_tone(task.state)),
        Field::new(&task.queue),
        Field::new(task.priority),
        Field::count(task.attempt.into()),
        Field::new(format!("{}/{}", task.failures, task.max_attempts)),
        Field::new(when),
        Field::or_blank(worker),
        Field::new(task_label(
            task.name.as_deref(),
            task.statement_head.as_deref(),
            &task.options.labels,
        )),
    ]
}
