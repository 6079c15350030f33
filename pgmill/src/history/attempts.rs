//! `pgmill history`: finished attempts as table rows.

use cli::{Exit, Failure};
use conninfo::Client;
use jiff::Timestamp;
use queue::history::{self, AttemptSummary, HistoryFilter};
use queue::task_queries;
use queue::workers::worker_label;

use crate::args::{HistoryArgs, TaskMatch};
use crate::output::format::{local_time, one_line, outcome_tone, relative_time, span, task_label};
use crate::output::list::{default_since, note_default_period, nothing_since};
use crate::output::{Output, Row};

/// Maximum characters of a message in a list.
const MESSAGE_CHARS: usize = 80;

/// Lists finished attempts.
///
/// # Errors
/// Fails if there is no such task.
pub(crate) async fn run(client: &mut Client, out: &Output, args: &HistoryArgs) -> Exit {
    let is_default = args.since.is_none() && args.task.is_none() && args.run.is_none();
    let since = match args.since {
        None if args.task.is_none() => default_since(client, args.run).await?,
        given => given,
    };
    let filter = HistoryFilter {
        task: args.task,
        outcome: args.outcome,
        since,
        run: args.run,
        sql: args.sql.clone(),
        error: args.error.clone(),
        ..matching(&args.tasks)
    };
    let (attempts, complete) = if filter.searches_text() {
        search(client, out, &filter, false, args.limit + 1).await?
    } else {
        (history::attempts(client, &filter, args.limit + 1).await?, true)
    };
    if let Some(id) = args.task
        && attempts.is_empty()
        && task_queries::task(client, id).await?.is_none()
    {
        return Err(Failure::not_found(format!("no task {id}, live or in the history")));
    }
    let nothing = match is_default {
        true => nothing_since("no matching attempt ended"),
        false => "no matching attempt".to_owned(),
    };
    let (now, items) = (task_queries::now(client).await?, attempts.len());
    let code = out.page((attempts, args.limit), &nothing, |attempt| attempt_row(attempt, now))?;
    if is_default && complete {
        note_default_period(out, items, args.limit);
    }
    Ok(code)
}

/// Returns the filter for the history of these tasks.
pub(crate) fn matching(tasks: &TaskMatch) -> HistoryFilter {
    let TaskMatch { queue, name, tag } = tasks.clone();
    HistoryFilter { queue, name, tag, ..HistoryFilter::default() }
}

/// Searches history for texts, and says on standard error if the search ended early. Returns the
/// attempts, and whether the whole period was read.
///
/// # Errors
/// Fails if the role may not read the texts, or if the search finds nothing in its time.
pub(crate) async fn search(
    client: &mut Client,
    out: &Output,
    filter: &HistoryFilter,
    finished: bool,
    limit: i64,
) -> Result<(Vec<AttemptSummary>, bool), Failure> {
    let transaction = history::begin_search(client).await?;
    let found = history::search(&transaction, filter, finished, limit).await?;
    if let Some(at) = found.searched_back_to {
        out.note(format_args!(
            "searched only back to {}; narrow the search with --queue, --name, --tag or --run",
            local_time(at)
        ));
    }
    Ok((found.attempts, found.searched_back_to.is_none()))
}

/// Formats one attempt as a row. Its error is on a second line of the last field.
pub(crate) fn attempt_row(attempt: &AttemptSummary, now: Timestamp) -> Row {
    let (name, statement) = (attempt.name.as_deref(), attempt.statement_head.as_deref());
    let mut what = task_label(name, statement, &attempt.options.labels);
    if let Some(message) = &attempt.message {
        let code = attempt.sqlstate.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
        what.push_str(&format!("\n{}{code}", one_line(message, MESSAGE_CHARS)));
    }
    let number = match (attempt.attempt, attempt.r#final) {
        (0, _) => String::new(),
        (number, true) => number.to_string(),
        (number, false) => format!("{number}, retried"),
    };
    let worker = worker_label(attempt.host.as_deref(), attempt.worker_pid, attempt.worker_id);
    Row::of("id", attempt.task_id)
        .maybe("run", attempt.run_id)
        .text("outcome", attempt.outcome)
        .tone(outcome_tone(attempt.outcome))
        .text("queue", &attempt.queue)
        .text("attempt", number)
        .text("finished", relative_time(attempt.finished_at, now))
        .maybe("waited", attempt.wait_seconds.map(span))
        .maybe("duration", attempt.duration_seconds.map(span))
        .maybe("worker", worker)
        .text("task", what)
}
