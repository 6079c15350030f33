//! `pgmill run approve|reject`.

use cli::{Failure, exit};
use conninfo::Client;
use queue::{RunId, run};
use serde_json::json;
use terminal::visible;

use crate::args::{RunReject, TaskOfRun};
use crate::output::Output;
use crate::runs::list::find;
use crate::session::{begin_read_committed, commit_unless_dry_run};

/// The decision on a task that waits for approval.
struct Decision<'a> {
    run: RunId,
    task: &'a str,
    approve: bool,
    reason: Option<&'a str>,
    dry_run: bool,
}

/// Approves a task.
///
/// # Errors
/// Fails if there is no such run or task, or if the task does not wait for approval.
pub(super) async fn approve(
    client: &mut Client,
    out: &Output,
    args: &TaskOfRun,
) -> Result<u8, Failure> {
    let TaskOfRun { run, task, dry_run } = args;
    let decision = Decision { run: *run, task, approve: true, reason: None, dry_run: *dry_run };
    decide(client, out, &decision).await
}

/// Rejects a task.
///
/// # Errors
/// Fails if there is no such run or task, or if the task does not wait for approval.
pub(super) async fn reject(
    client: &mut Client,
    out: &Output,
    args: &RunReject,
) -> Result<u8, Failure> {
    let RunReject { run, task, reason, dry_run } = args;
    let reason = reason.as_deref();
    let decision = Decision { run: *run, task, approve: false, reason, dry_run: *dry_run };
    decide(client, out, &decision).await
}

async fn decide(client: &mut Client, out: &Output, decision: &Decision<'_>) -> Result<u8, Failure> {
    let Decision { run, task, approve, reason, dry_run } = *decision;
    find(client, run).await?;
    let transaction = begin_read_committed(client).await?;
    if approve {
        run::approve(&transaction, run, task).await?;
    } else {
        run::reject(&transaction, run, task, reason).await?;
    }
    commit_unless_dry_run(transaction, dry_run).await?;
    let result = if approve { "approved" } else { "rejected" };
    if out.json {
        out.document(&json!({
            "dry_run": dry_run, "run_id": run, "task": task, "result": result,
        }))?;
    } else {
        let would = if dry_run { "would be " } else { "" };
        out.text(&format!("task {} {would}{result}", visible(task)))?;
    }
    Ok(exit::OK)
}
