//! `pgmill run cancel|retry|restart|rerun|approve|reject`.

use cli::{Exit, Failure, exit};
use conninfo::Client;
use queue::RunId;
use queue::bulk::json_word;
use queue::run::{self, RestartOptions};
use queue::run_queries;
use serde_json::json;

use crate::args::{DryRun, RunCancel, RunRerun, RunRestart, TaskOfRun};
use crate::output::Output;
use crate::output::format::counted;
use crate::runs::list::find;
use crate::session::change;

/// Cancels runs.
///
/// A missing run is reported in the output and by the exit code.
pub(crate) async fn cancel(client: &mut Client, out: &Output, args: &RunCancel) -> Exit {
    let RunCancel { runs, all, kill, dry_run } = args;
    if *all {
        let runs = run_queries::in_progress(client, None, *kill).await?;
        return cancel_runs(client, out, &runs, (*kill, *dry_run)).await;
    }
    cancel_runs(client, out, runs, (*kill, *dry_run)).await
}

/// Cancels these runs, and prints the results.
pub(crate) async fn cancel_runs(
    client: &mut Client,
    out: &Output,
    runs: &[RunId],
    (kill, dry_run): (bool, DryRun),
) -> Exit {
    let answers = change(client, dry_run, async |to| {
        let mut answers = Vec::with_capacity(runs.len());
        for id in runs {
            answers.push((*id, run::cancel(to, *id, kill).await?));
        }
        Ok(answers)
    })
    .await?;
    let result =
        |(run, answer): &(RunId, String)| json!({ "run_id": run, "result": json_word(answer) });
    let results: Vec<_> = answers.iter().map(result).collect();
    let line = |(run, answer): &(RunId, String)| match answer.as_str() {
        "cancelling" => format!("run {run} {} cancelled", dry_run.or("would be", "is being")),
        "not found" => format!("there is no run {run}"),
        state => format!("run {run} has already ended: {state}"),
    };
    let lines = match answers.iter().map(line).collect::<Vec<_>>() {
        none if none.is_empty() => "no run is in progress".to_owned(),
        lines => lines.join("\n"),
    };
    out.answer(json!({ "dry_run": dry_run, "kill": kill, "runs": results }), lines)?;
    let missing = answers.iter().any(|(_, answer)| answer == "not found");
    Ok(if missing { exit::NOT_FOUND } else { exit::OK })
}

/// Retries a task of a run.
///
/// # Errors
/// Fails if there is no such run or task, or if the run is being cancelled.
pub(crate) async fn retry(client: &mut Client, out: &Output, args: &TaskOfRun) -> Exit {
    let TaskOfRun { run, task, dry_run } = args;
    find(client, *run).await?;
    let answer = change(client, *dry_run, async |to| Ok(run::retry(to, *run, task).await?)).await?;
    let text = match answer.as_str() {
        "not found" => {
            let failure = Failure::not_found(format!("run {run} has no task {task}"));
            return Err(failure.hint(format!("pgmill run show {run}")));
        }
        "retried" => format!("task {task} {}retried", dry_run.or("would be ", "")),
        "released" => format!("task {task} is queued or running: nothing to retry"),
        state => format!("task {task} is {state}: nothing to retry"),
    };
    let result = json_word(&answer);
    let document = json!({ "dry_run": dry_run, "run_id": run, "task": task, "result": result });
    out.answer(document, text)
}

/// The decision on a task that waits for approval.
#[derive(Clone, Copy)]
pub(super) enum Decision<'a> {
    Approve,
    /// With the reason.
    Reject(Option<&'a str>),
}

/// Approves or rejects a task.
///
/// # Errors
/// Fails if there is no such run or task, or if the task does not wait for approval.
pub(super) async fn decide(
    client: &mut Client,
    out: &Output,
    of: &TaskOfRun,
    decision: Decision<'_>,
) -> Exit {
    let TaskOfRun { run, task, dry_run } = of;
    find(client, *run).await?;
    let result = change(client, *dry_run, async |to| {
        Ok(match decision {
            Decision::Approve => run::approve(to, *run, task).await.map(|_| "approved")?,
            Decision::Reject(reason) => {
                run::reject(to, *run, task, reason).await.map(|_| "rejected")?
            }
        })
    })
    .await?;
    let document = json!({ "dry_run": dry_run, "run_id": run, "task": task, "result": result });
    out.answer(document, format!("task {task} {}{result}", dry_run.or("would be ", "")))
}

/// Runs tasks of a run again, whatever their outcome was.
///
/// # Errors
/// Fails if there is no such run or task, or if one of the tasks has not ended.
pub(crate) async fn rerun(client: &mut Client, out: &Output, args: &RunRerun) -> Exit {
    let RunRerun { run, tasks, only, dry_run } = args;
    find(client, *run).await?;
    let names =
        change(client, *dry_run, async |to| Ok(run::rerun(to, *run, tasks, !only).await?)).await?;
    report(out, *run, (&names, *dry_run), dry_run.or("would rerun", "reran"))
}

/// Runs those tasks of an ended run that did not succeed again.
///
/// # Errors
/// Fails if there is no such run, if it is in progress or was cancelled, or if no task matches.
pub(crate) async fn restart(client: &mut Client, out: &Output, args: &RunRestart) -> Exit {
    let RunRestart { run, dry_run, .. } = args;
    find(client, *run).await?;
    let some = args.failed || args.never_run || args.downstream;
    let again = RestartOptions {
        failed: args.failed || !some,
        never_run: args.never_run || !some,
        downstream: args.downstream,
        force: args.force,
    };
    let names =
        change(client, *dry_run, async |to| Ok(run::restart(to, *run, again).await?)).await?;
    report(out, *run, (&names, *dry_run), dry_run.or("would restart", "restarted"))
}

/// Prints which tasks of a run run again.
fn report(out: &Output, run: RunId, (names, dry_run): (&[String], DryRun), verb: &str) -> Exit {
    let shown = names.iter().take(50).map(String::as_str).collect::<Vec<_>>().join(", ");
    let rest = match names.len().saturating_sub(50) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    out.answer(
        json!({ "dry_run": dry_run, "run_id": run, "tasks": names }),
        format!("{verb} {} of run {run}: {shown}{rest}", counted(names.len(), "task")),
    )
}
