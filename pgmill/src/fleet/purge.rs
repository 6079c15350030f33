//! `pgmill queue purge`: cancels everything that waits in a queue.

use cli::{Failure, exit};
use conninfo::Client;
use queue::TaskId;
use queue::purge::{self, PurgedChunk};
use serde::Serialize;
use terminal::{bulk_bar, print_stderr};

use crate::args::QueuePurgeArgs;
use crate::output::Output;
use crate::output::format::counted;
use crate::session::{begin_read_committed, commit_unless_dry_run};
use crate::tasks::actions::confirm;

/// The result of a purge, or of its dry run.
#[derive(Debug, Serialize)]
struct PurgeReport<'a> {
    queue: &'a str,
    dry_run: bool,
    /// Whether the command ended before it had reached the last task.
    interrupted: bool,
    /// Number of tasks that waited at the start.
    waiting: i64,
    cancelled: i64,
}

/// Cancels the waiting tasks of a queue, one chunk after the other. SIGINT ends the command after
/// the current chunk.
///
/// # Errors
/// Fails if no task waits in the queue, or if confirmation is needed without a terminal.
pub(crate) async fn run(
    client: &mut Client,
    out: &Output,
    args: &QueuePurgeArgs,
) -> Result<u8, Failure> {
    let name = args.queue.as_str();
    let found = purge::waiting_tasks(client, name).await?;
    let Some(up_to) = found.last_id else {
        return Err(
            Failure::not_found(format!("no task waits in queue {name}")).hint("pgmill queue list")
        );
    };
    let mut report = PurgeReport {
        queue: name,
        dry_run: args.flags.dry_run,
        interrupted: false,
        waiting: found.tasks,
        cancelled: 0,
    };
    if args.flags.dry_run {
        print(out, &report)?;
        return Ok(exit::OK);
    }
    let question =
        format!("cancel {} of queue {name}", counted(found.tasks.unsigned_abs(), "waiting task"));
    if !args.flags.yes && !confirm(&question, "")? {
        print_stderr("cancelled, nothing was changed");
        return Ok(exit::FAILURE);
    }
    let ended = chunks(client, &mut report, up_to).await;
    // The tasks of earlier chunks are cancelled also if a later chunk fails.
    if ended.is_ok() || report.cancelled > 0 {
        print(out, &report)?;
    }
    ended?;
    Ok(if report.interrupted { exit::INTERRUPTED } else { exit::OK })
}

/// Cancels one chunk in a transaction.
async fn purge_chunk(
    client: &mut Client,
    queue: &str,
    after: TaskId,
    up_to: TaskId,
) -> Result<PurgedChunk, Failure> {
    let transaction = begin_read_committed(client).await?;
    let chunk = purge::purge_chunk(&transaction, queue, after, up_to).await?;
    commit_unless_dry_run(transaction, false).await?;
    Ok(chunk)
}

async fn chunks(
    client: &mut Client,
    report: &mut PurgeReport<'_>,
    up_to: TaskId,
) -> Result<(), Failure> {
    let bar = bulk_bar("purge", report.waiting.unsigned_abs());
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let mut after = TaskId(0);
    while !report.interrupted {
        bar.set_position(report.cancelled.unsigned_abs());
        let mut chunk = std::pin::pin!(purge_chunk(client, report.queue, after, up_to));
        let PurgedChunk { cancelled, last_id } = tokio::select! {
            done = &mut chunk => done?,
            _ = &mut interrupt => {
                report.interrupted = true;
                bar.suspend(|| print_stderr("interrupted, finishing the current transaction"));
                chunk.await?
            }
        };
        report.cancelled += cancelled;
        match last_id {
            Some(last) if last < up_to => after = last,
            _ => {
                report.interrupted = false;
                break;
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn print(out: &Output, report: &PurgeReport<'_>) -> Result<(), Failure> {
    if out.json {
        return out.document(report);
    }
    let count = |tasks: i64| counted(tasks.unsigned_abs(), "waiting task");
    out.text(&if report.dry_run {
        format!("{} of queue {} would be cancelled", count(report.waiting), report.queue)
    } else if report.interrupted {
        format!(
            "{} of queue {} cancelled\ninterrupted: the other tasks are unchanged",
            count(report.cancelled),
            report.queue
        )
    } else {
        format!("{} of queue {} cancelled", count(report.cancelled), report.queue)
    })
}
