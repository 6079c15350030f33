//! `pgmill run cancel|retry|restart|rerun`.

use cli::{Failure, exit};
use conninfo::Client;
use queue::RunId;
use queue::bulk::json_word;
use queue::run::{self, RestartOptions, RunState};
use queue::run_queries::{self, RunFilter};
use serde_json::json;
use terminal::visible;

use crate::args::{RunCancel, RunRerun, RunRestart, TaskOfRun};
use crate::output::Output;
use crate::output::format::counted;
use crate::runs::list::find;
use crate::session::{begin_read_committed, commit_unless_dry_run};

/// Maximum number of runs that one command cancels, unless their ids are given.
pub(crate) const MAX_RUNS: i64 = 10_000;

/// Cancels runs.
///
/// A missing run is reported in the output and by the exit code.
pub(crate) async fn cancel(
    client: &mut Client,
    out: &Output,
    args: &RunCancel,
) -> Result<u8, Failure> {
    let runs: Vec<RunId> = if args.all {
        let filter = RunFilter { state: Some(RunState::Running), ..RunFilter::default() };
        let running = run_queries::runs(client, &filter, MAX_RUNS).await?;
        let open = running.iter().filter(|run| args.kill || !run.is_cancelled());
        open.map(|run| run.id).collect()
    } else {
        args.runs.clone()
    };
    cancel_runs(client, out, &runs, args.kill, args.dry_run).await
}

/// Cancels these runs, and prints the results.
pub(crate) async fn cancel_runs(
    client: &mut Client,
    out: &Output,
    runs: &[RunId],
    kill: bool,
    dry_run: bool,
) -> Result<u8, Failure> {
    let transaction = begin_read_committed(client).await?;
    let mut answers = Vec::new();
    for id in runs {
        answers.push((*id, run::cancel(&transaction, *id, kill).await?));
    }
    commit_unless_dry_run(transaction, dry_run).await?;
    if out.json {
        let answers: Vec<_> = answers
            .iter()
            .map(|(run, answer)| json!({ "run_id": run, "result": json_word(answer) }))
            .collect();
        out.document(&json!({ "dry_run": dry_run, "kill": kill, "runs": answers }))?;
    } else {
        for (run, answer) in &answers {
            out.text(&match answer.as_str() {
                "cancelling" if dry_run => format!("run {run} would be cancelled"),
                "cancelling" => format!("run {run} is being cancelled"),
                "not found" => format!("there is no run {run}"),
                state => format!("run {run} has already ended: {state}"),
            })?;
        }
        if answers.is_empty() {
            out.text("no run is in progress")?;
        }
    }
    let missing = answers.iter().any(|(_, answer)| answer == "not found");
    Ok(if missing { exit::NOT_FOUND } else { exit::OK })
}

/// Retries a task of a run.
///
/// # Errors
/// Fails if there is no such run or task, or if the run is being cancelled.
pub(crate) async fn retry(
    client: &mut Client,
    out: &Output,
    args: &TaskOfRun,
) -> Result<u8, Failure> {
    find(client, args.run).await?;
    let transaction = begin_read_committed(client).await?;
    let answer = run::retry(&transaction, args.run, &args.task).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let task = visible(&args.task);
    if answer == "not found" {
        let hint = format!("pgmill run show {}", args.run);
        let message = format!("run {} has no task {task}", args.run);
        return Err(Failure::not_found(message).hint(hint));
    }
    if out.json {
        out.document(&json!({
            "dry_run": args.dry_run, "run_id": args.run, "task": args.task, "result": json_word(&answer),
        }))?;
    } else {
        out.text(&match answer.as_str() {
            "retried" if args.dry_run => format!("task {task} would be retried"),
            "retried" => format!("task {task} retried"),
            "released" => format!("task {task} is queued or running: nothing to retry"),
            state => format!("task {task} is {state}: nothing to retry"),
        })?;
    }
    Ok(exit::OK)
}

/// Runs tasks of a run again, whatever their outcome was.
///
/// # Errors
/// Fails if there is no such run or task, or if one of the tasks has not ended.
pub(crate) async fn rerun(
    client: &mut Client,
    out: &Output,
    args: &RunRerun,
) -> Result<u8, Failure> {
    find(client, args.run).await?;
    let transaction = begin_read_committed(client).await?;
    let names = run::rerun(&transaction, args.run, &args.tasks, !args.only).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let verb = if args.dry_run { "would rerun" } else { "reran" };
    report(out, &TasksAgain { run: args.run, names, verb, dry_run: args.dry_run })
}

/// Runs those tasks of an ended run that did not succeed again.
///
/// # Errors
/// Fails if there is no such run, if it is in progress or was cancelled, or if no task matches.
pub(crate) async fn restart(
    client: &mut Client,
    out: &Output,
    args: &RunRestart,
) -> Result<u8, Failure> {
    find(client, args.run).await?;
    let some = args.failed || args.never_run || args.downstream;
    let again = RestartOptions {
        failed: args.failed || !some,
        never_run: args.never_run || !some,
        downstream: args.downstream,
        force: args.force,
    };
    let transaction = begin_read_committed(client).await?;
    let names = run::restart(&transaction, args.run, again).await?;
    commit_unless_dry_run(transaction, args.dry_run).await?;
    let verb = if args.dry_run { "would restart" } else { "restarted" };
    report(out, &TasksAgain { run: args.run, names, verb, dry_run: args.dry_run })
}

/// Tasks of a run that run again.
struct TasksAgain {
    run: RunId,
    names: Vec<String>,
    /// What was done or would be done: `reran`, `would restart`.
    verb: &'static str,
    dry_run: bool,
}

/// Prints which tasks run again.
fn report(out: &Output, again: &TasksAgain) -> Result<u8, Failure> {
    let TasksAgain { run, names, verb, dry_run } = again;
    if out.json {
        out.document(&json!({ "dry_run": dry_run, "run_id": run, "tasks": names }))?;
    } else {
        let shown: Vec<String> = names.iter().take(50).map(|name| visible(name)).collect();
        let more = names.len().saturating_sub(shown.len());
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let shown = shown.join(", ");
        let tasks = counted(names.len() as u64, "task");
        out.text(&format!("{verb} {tasks} of run {run}: {shown}{rest}"))?;
    }
    Ok(exit::OK)
}
