//! `pgmill task list`.

use jiff::Timestamp;
use queue::history::{AttemptSummary, HistoryFilter};
use queue::task_queries::{LiveTask, TaskFilter};
use queue::workers::worker_label;
use queue::{State, exit, history, task_queries};
use terminal::{HIDDEN, print_stderr};
use tokio_postgres::Client;

use crate::args::TaskList;
use crate::failure::Failure;
use crate::history::attempts::{ATTEMPT_HEADINGS, DEFAULT_SINCE, attempt_row};
use crate::output::format::{counted, one_line, relative_time, state_tone};
use crate::output::{Field, Output};

/// Maximum characters of a statement in a list.
pub(crate) const HEAD_CHARS: usize = 60;

/// Lists live or finished tasks.
pub(crate) async fn list(client: &Client, out: &Output, args: &TaskList) -> Result<u8, Failure> {
    if args.finished || args.outcome.is_some() {
        let filter = HistoryFilter {
            task: None,
            outcome: args.outcome,
            queue: args.queue.clone(),
            name: args.name.clone(),
            since: Some(args.since.unwrap_or(DEFAULT_SINCE)),
            ..HistoryFilter::default()
        };
        // One more row than shown, to detect further rows.
        let tasks = history::finished_tasks(client, &filter, args.limit + 1).await?;
        return finished(client, out, tasks, args).await;
    }
    let filter = TaskFilter {
        state: args.state,
        queue: args.queue.clone(),
        name: args.name.clone(),
        since: args.since,
    };
    let tasks = task_queries::live_tasks(client, &filter, args.limit + 1).await?;
    live(client, out, tasks, args.limit).await
}

async fn live(
    client: &Client,
    out: &Output,
    mut tasks: Vec<LiveTask>,
    limit: i64,
) -> Result<u8, Failure> {
    let more = cut(&mut tasks, limit);
    if out.json {
        out.document(&tasks)?;
    } else if !tasks.is_empty() {
        let now = task_queries::now(client).await?;
        let rows = tasks.iter().map(|task| live_row(task, now)).collect();
        out.text(&out.table(
            &["id", "state", "queue", "priority", "attempt", "when", "worker", "task"],
            rows,
        ))?;
    }
    close(out, tasks.len(), more, "no matching live task")
}

async fn finished(
    client: &Client,
    out: &Output,
    mut tasks: Vec<AttemptSummary>,
    args: &TaskList,
) -> Result<u8, Failure> {
    let more = cut(&mut tasks, args.limit);
    if out.json {
        out.document(&tasks)?;
    } else if !tasks.is_empty() {
        let now = task_queries::now(client).await?;
        let rows = tasks.iter().map(|task| attempt_row(task, now)).collect();
        out.text(&out.table(&ATTEMPT_HEADINGS, rows))?;
    }
    let nothing = match args.since {
        Some(_) => "no matching task ended in this period".to_owned(),
        None => nothing_since("no matching task ended"),
    };
    close(out, tasks.len(), more, &nothing)
}

/// Message of an empty list that goes back [`DEFAULT_SINCE`].
pub(crate) fn nothing_since(what: &str) -> String {
    let hours = DEFAULT_SINCE.as_secs() / 3600;
    format!("{what} in the last {hours}h; use --since for a longer period")
}

/// Truncates a list to `limit` items, and returns whether there were more.
pub(crate) fn cut<T>(items: &mut Vec<T>, limit: i64) -> bool {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = items.len() > limit;
    items.truncate(limit);
    more
}

/// Prints a note after a list that is empty or truncated. An empty list is not an error.
pub(crate) fn close(out: &Output, shown: usize, more: bool, nothing: &str) -> Result<u8, Failure> {
    if shown == 0 {
        // The empty document is already printed.
        if !out.json {
            print_stderr(nothing);
        }
        return Ok(exit::OK);
    }
    if more {
        print_stderr(format_args!(
            "{} shown, more exist; use --limit",
            counted(shown as u64, "row")
        ));
    }
    Ok(exit::OK)
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
        Field::new(format!("{}/{}", task.attempt, task.max_attempts)),
        Field::new(when),
        Field::or_blank(worker),
        Field::new(label(task.name.as_deref(), task.statement_head.as_deref())),
    ]
}

/// Formats a task's name and the beginning of its statement.
pub(crate) fn label(name: Option<&str>, statement: Option<&str>) -> String {
    let statement = statement.unwrap_or(HIDDEN);
    match name {
        Some(name) => one_line(&format!("{name}: {statement}"), HEAD_CHARS),
        None => one_line(statement, HEAD_CHARS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_is_detected() {
        let mut items = vec![1, 2, 3];
        assert!(!cut(&mut items, 3));
        assert!(cut(&mut items, 2));
        assert_eq!(items, [1, 2]);
    }
}
