//! `pgmill task cancel`, `pgmill task retry` and `pgmill task set`: act on tasks by id or by filter.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};

use cli::{Exit, Failure, exit};
use conninfo::Client;
use queue::bulk::{self, BulkResult};
use queue::change::TaskChanges;
use queue::history::HistoryFilter;
use queue::task_queries::TaskFilter;
use queue::{Outcome, State, TaskId, history, task_queries};
use serde::{Serialize, Serializer};
use terminal::{bulk_bar, print_stderr, visible};

use crate::args::{
    BulkFlags, CancelArgs, DEFAULT_SINCE, DryRun, RetryArgs, SetArgs, TaskMatch, WAITING,
};
use crate::history::attempts::matching;
use crate::output::Output;
use crate::output::format::counted;
use crate::output::list::nothing_since;
use crate::session::change;

/// The action. The state or outcome, if given, is checked again for each task when the action runs.
#[derive(Clone, Copy, Debug)]
enum Verb<'a> {
    Cancel(Option<State>),
    Retry(Option<Outcome>),
    Change(&'a TaskChanges, Option<State>),
}

impl Verb<'_> {
    fn as_str(self) -> &'static str {
        match self {
            Self::Cancel(_) => "cancel",
            Self::Retry(_) => "retry",
            Self::Change(..) => "change",
        }
    }

    async fn act(
        self,
        client: &mut Client,
        ids: &[TaskId],
        dry_run: DryRun,
    ) -> Result<Vec<BulkResult>, Failure> {
        change(client, dry_run, async |to| {
            Ok(match self {
                Self::Cancel(state) => bulk::cancel_chunk(to, ids, state).await?,
                Self::Retry(outcome) => bulk::retry_chunk(to, ids, outcome).await?,
                Self::Change(changes, state) => bulk::change_chunk(to, ids, changes, state).await?,
            })
        })
        .await
    }
}

/// The results of an action, or of its dry run.
#[derive(Debug, Serialize)]
struct Report {
    dry_run: DryRun,
    /// Whether the command ended before it had acted on every task.
    interrupted: bool,
    #[serde(serialize_with = "words")]
    counts: BTreeMap<String, usize>,
    tasks: Vec<BulkResult>,
}

/// The results are single words in JSON, as in the result of each task.
fn words<S: Serializer>(
    counts: &BTreeMap<String, usize>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts.iter().map(|(result, count)| (bulk::json_word(result), count)))
}

impl Report {
    fn new(dry_run: DryRun, interrupted: bool, tasks: Vec<BulkResult>) -> Self {
        let mut counts = BTreeMap::new();
        for answer in &tasks {
            *counts.entry(answer.result.clone()).or_insert(0) += 1;
        }
        Self { dry_run, interrupted, counts, tasks }
    }
}

/// Cancels tasks by id or filter.
///
/// # Errors
/// Fails if nothing matches, or if confirmation is needed without a terminal.
pub(crate) async fn cancel(client: &mut Client, out: &Output, args: &CancelArgs) -> Exit {
    let verb = Verb::Cancel(args.state);
    if !args.ids.is_empty() {
        return run(client, out, verb, (&args.ids, args.flags.dry_run)).await;
    }
    let TaskMatch { queue, name, tag } = args.tasks.clone();
    let (state, since) = (args.state, args.since);
    let filter = TaskFilter { state, queue, name, since, tag, run: None };
    let ids = task_queries::live_ids(client, &filter, None).await?;
    by_filter(client, out, verb, (&ids, &args.flags)).await
}

/// Retries tasks by id or filter.
///
/// # Errors
/// As [`cancel`].
pub(crate) async fn retry(client: &mut Client, out: &Output, args: &RetryArgs) -> Exit {
    // The outcome is checked again when the action runs: a task that has succeeded in the meantime
    // must not run again.
    let outcome = args.outcome.or(args.sqlstate.as_ref().map(|_| Outcome::Failed));
    let verb = Verb::Retry(outcome);
    if !args.ids.is_empty() {
        return run(client, out, verb, (&args.ids, args.flags.dry_run)).await;
    }
    let filter = HistoryFilter {
        outcome,
        since: Some(args.since.unwrap_or(DEFAULT_SINCE)),
        sqlstate: args.sqlstate.clone(),
        message: args.message.clone(),
        ..matching(&args.tasks)
    };
    let ids = history::finished_ids(client, &filter, None).await?;
    if ids.is_empty() && args.since.is_none() {
        print_stderr(nothing_since("no matching task ended"));
    }
    by_filter(client, out, verb, (&ids, &args.flags)).await
}

/// Changes waiting tasks by id or filter.
///
/// # Errors
/// As [`cancel`]; also if an option is invalid.
pub(crate) async fn set(client: &mut Client, out: &Output, args: &SetArgs) -> Exit {
    let changes = args.changes(task_queries::now(client).await?)?;
    let verb = Verb::Change(&changes, args.state);
    if !args.ids.is_empty() {
        return run(client, out, verb, (&args.ids, args.flags.dry_run)).await;
    }
    let mut filter = TaskFilter {
        queue: args.from_queue.clone(),
        name: args.name.clone(),
        tag: args.tag.clone(),
        ..TaskFilter::default()
    };
    let mut ids = Vec::new();
    for state in args.state.map_or(WAITING.to_vec(), |it| vec![it]) {
        filter.state = Some(state);
        ids.extend(task_queries::live_ids(client, &filter, None).await?);
    }
    by_filter(client, out, verb, (&ids, &args.flags)).await
}

async fn by_filter(
    client: &mut Client,
    out: &Output,
    verb: Verb<'_>,
    (ids, flags): (&[TaskId], &BulkFlags),
) -> Exit {
    if ids.is_empty() {
        return Err(Failure::not_found("no task matches"));
    }
    if !flags.dry_run.is_set() && !flags.yes && !confirm_bulk(verb, ids)? {
        print_stderr("cancelled, nothing was changed");
        return Ok(exit::FAILURE);
    }
    run(client, out, verb, (ids, flags.dry_run)).await
}

fn confirm_bulk(verb: Verb<'_>, ids: &[TaskId]) -> Result<bool, Failure> {
    let range = match ids {
        [first, .., last] => format!(" (ids {first} to {last})"),
        _ => String::new(),
    };
    confirm(&format!("{} {}", verb.as_str(), counted(ids.len(), "task")), &range)
}

/// Asks for confirmation on a terminal; fails without one.
pub(crate) fn confirm(question: &str, range: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(format!(
            "would {question}, but there is no terminal to confirm"
        ))
        .hint("Use --yes to do it without confirmation, or --dry-run to preview the changes."));
    }
    let mut stderr = io::stderr().lock();
    write!(stderr, "{question}{range}? [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Acts on one chunk after the other. SIGINT ends the command after the current chunk, so that the
/// report is complete.
async fn run(
    client: &mut Client,
    out: &Output,
    verb: Verb<'_>,
    (ids, dry_run): (&[TaskId], DryRun),
) -> Exit {
    let bar = bulk_bar(verb.as_str(), ids.len() as u64);
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let mut interrupted = false;
    let mut tasks = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(bulk::CHUNK) {
        bar.set_position(tasks.len() as u64);
        let mut answers = std::pin::pin!(verb.act(client, chunk, dry_run));
        let answers = tokio::select! {
            answers = &mut answers => answers,
            _ = &mut interrupt => {
                interrupted = true;
                bar.suspend(|| print_stderr("interrupted, finishing the current transaction"));
                answers.await
            }
        };
        match answers {
            Ok(answers) => tasks.extend(answers),
            Err(failure) if tasks.is_empty() => return Err(failure),
            Err(failure) => {
                // Report the tasks of earlier chunks: their changes are committed.
                bar.finish_and_clear();
                print(out, &Report::new(dry_run, false, tasks))?;
                return Err(failure);
            }
        }
        if interrupted {
            break;
        }
    }
    bar.finish_and_clear();
    let interrupted = tasks.len() < ids.len();
    let code = print(out, &Report::new(dry_run, interrupted, tasks))?;
    if interrupted {
        return Ok(exit::INTERRUPTED);
    }
    Ok(code)
}

fn print(out: &Output, report: &Report) -> Exit {
    out.shown(report, || summary(report))?;
    Ok(exit_code(&report.counts))
}

fn exit_code(counts: &BTreeMap<String, usize>) -> u8 {
    if counts.contains_key("refused") {
        exit::REFUSED
    } else if counts.contains_key("not found") {
        exit::NOT_FOUND
    } else {
        exit::OK
    }
}

/// Formats each task if there are few, and the counts.
fn summary(report: &Report) -> String {
    const MAX_LINES: usize = 20;
    let mut lines = Vec::new();
    if report.tasks.len() <= MAX_LINES {
        lines.extend(report.tasks.iter().map(result_line));
    } else {
        let refused = report.tasks.iter().filter(|answer| answer.message.is_some());
        lines.extend(refused.take(MAX_LINES).map(result_line));
    }
    if report.tasks.len() > 1 {
        let counts: Vec<String> =
            report.counts.iter().map(|(result, count)| format!("{count} {result}")).collect();
        lines.push(format!("{}: {}", counted(report.tasks.len(), "task"), counts.join(", ")));
    }
    if report.interrupted {
        lines.push("interrupted: the other tasks are unchanged".to_owned());
    }
    if report.dry_run.is_set() {
        lines.push("dry run: nothing was changed".to_owned());
    }
    lines.join("\n")
}

/// Formats the result of one task.
pub(crate) fn result_line(answer: &BulkResult) -> String {
    match &answer.message {
        Some(message) => format!("task {}: refused: {}", answer.id, visible(message)),
        None => format!("task {}: {}", answer.id, result_text(&answer.result)),
    }
}

fn result_text(result: &str) -> String {
    match result {
        "requested" => "cancellation requested, its worker stops it".to_owned(),
        "finished" => "already finished".to_owned(),
        "changed" => "skipped, its state has changed".to_owned(),
        "not found" => "not found".to_owned(),
        "pending" | "running" | "blocked" => format!("already {result}"),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(results: &[(&str, Option<&str>)], dry_run: bool) -> Report {
        let tasks: Vec<BulkResult> = (1..)
            .zip(results)
            .map(|(id, (result, message))| BulkResult {
                id: TaskId(id),
                result: (*result).to_owned(),
                message: message.map(str::to_owned),
            })
            .collect();
        Report::new(dry_run.into(), false, tasks)
    }

    #[test]
    fn each_result_is_listed_and_counted() {
        let report = report(&[("cancelled", None), ("requested", None), ("cancelled", None)], true);
        assert_eq!(
            summary(&report),
            "task 1: cancelled\ntask 2: cancellation requested, its worker stops it\n\
             task 3: cancelled\n3 tasks: 2 cancelled, 1 requested\ndry run: nothing was changed"
        );
    }

    #[test]
    fn only_refused_tasks_of_many_are_listed() {
        let mut results = vec![("retried", None); 30];
        results.push(("refused", Some("another live task has the key")));
        let report = report(&results, false);
        assert_eq!(
            summary(&report),
            "task 31: refused: another live task has the key\n31 tasks: 1 refused, 30 retried"
        );
        assert_eq!(exit_code(&report.counts), exit::REFUSED);
    }
}
