//! `pgmill task list`: live or finished tasks, by filter or by a search for texts.

use std::collections::HashMap;

use cli::{Exit, Failure};
use conninfo::Client;
use jiff::Timestamp;
use queue::history::{FinishedTask, HistoryFilter};
use queue::task_queries::{LiveTask, TaskFilter, TaskOrder};
use queue::workers::worker_label;
use queue::{State, history, task_queries};

use crate::args::{TaskList, TaskListOrder, TaskMatch};
use crate::history::attempts::{attempt_row, matching, search};
use crate::output::format::{activity, relative_time, state_tone, task_label};
use crate::output::list::{cut, default_since, note_default_period, nothing_since};
use crate::output::{Output, Row};

/// Lists live or finished tasks.
pub(crate) async fn list(client: &mut Client, out: &Output, args: &TaskList) -> Exit {
    if args.error.is_some() && args.live_state().is_some() {
        return Err(Failure::usage("a live task has no error message")
            .hint("leave out --state, or give an outcome such as --state failed"));
    }
    if args.shows_finished() {
        finished(client, out, args).await
    } else {
        live(client, out, args).await
    }
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
    let (tasks, oldest) = task_queries::search_live_tasks(&transaction, filter, sql, limit).await?;
    if let Some(id) = oldest {
        out.note(format_args!(
            "searched only the newest tasks, down to id {id}; narrow the search with --queue, \
             --state, --name, --tag, --run or --since"
        ));
    }
    Ok(tasks)
}

async fn live(client: &mut Client, out: &Output, args: &TaskList) -> Exit {
    let TaskMatch { queue, name, tag } = args.tasks.clone();
    let (state, since, run) = (args.live_state(), args.since, args.run);
    let filter = TaskFilter { state, queue, name, since, tag, run };
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
    let now = task_queries::now(client).await?;
    // Only lists of running tasks show activities.
    let activities: Option<HashMap<_, _>> = match state {
        Some(State::Running) if !out.json => {
            let running = task_queries::running(client, None).await?;
            Some(running.iter().map(|it| (it.id, activity(it))).collect())
        }
        _ => None,
    };
    out.page((tasks, args.limit), "no matching live task", |task| {
        let mut row = live_row(task, now);
        if let Some(activities) = &activities {
            // The task may have ended since the list was read.
            let (text, tone) = activities.get(&task.id).cloned().unwrap_or_default();
            row = row.text("activity", text).tone(tone);
        }
        let worker = worker_label(task.host.as_deref(), task.worker_pid, task.worker_id);
        let (name, statement) = (task.name.as_deref(), task.statement_head.as_deref());
        row.maybe("worker", worker).text("task", task_label(name, statement, &task.options.labels))
    })
}

async fn finished(client: &mut Client, out: &Output, args: &TaskList) -> Exit {
    let since = match args.since {
        None => default_since(client, args.run).await?,
        given => given,
    };
    let filter = HistoryFilter {
        outcome: args.final_outcome(),
        since,
        run: args.run,
        sql: args.sql.clone(),
        error: args.error.clone(),
        ..matching(&args.tasks)
    };
    let (mut tasks, complete) = if filter.searches_text() {
        search(client, out, &filter, true, args.limit + 1).await?
    } else {
        (history::finished_tasks(client, &filter, args.limit + 1).await?, true)
    };
    let is_default = args.since.is_none() && args.run.is_none();
    let nothing = match (is_default, args.since) {
        (true, _) => nothing_since("no matching task ended"),
        (false, Some(_)) => "no matching task ended in this period".to_owned(),
        (false, None) => "no matching task of this run ended".to_owned(),
    };
    let (now, items) = (task_queries::now(client).await?, tasks.len());
    let code = if out.json {
        let more = cut(&mut tasks, args.limit);
        out.document(&tasks.iter().map(FinishedTask::new).collect::<Vec<_>>())?;
        out.note_if_more(tasks.len(), more)
    } else {
        out.page((tasks, args.limit), &nothing, |task| attempt_row(task, now))?
    };
    if is_default && complete {
        note_default_period(out, items, args.limit);
    }
    Ok(code)
}

/// The columns of a live task before those of its worker.
fn live_row(task: &LiveTask, now: Timestamp) -> Row {
    let ago = |time| relative_time(time, now).replace(" ago", "");
    let when = match task.state {
        State::Scheduled => format!("due {}", relative_time(task.due_at, now)),
        State::Running => format!("since {}", ago(task.claimed_at.unwrap_or(now))),
        State::Pending | State::Blocked => format!("waiting {}", ago(task.due_at)),
    };
    Row::of("id", task.id)
        .text("state", task.state)
        .tone(state_tone(task.state))
        .text("queue", &task.queue)
        .text("priority", task.priority)
        .count("attempt", task.attempt)
        .text("failures", format!("{}/{}", task.failures, task.max_attempts))
        .text("when", when)
}
