//! `pgmill queue purge`: cancels everything that waits in a queue.

use cli::{Exit, Failure, exit};
use conninfo::Client;
use queue::TaskId;
use queue::purge::{self, PurgedChunk};
use serde::Serialize;
use terminal::{bulk_bar, print_stderr};
use tokio_postgres::Transaction;

use crate::args::{DryRun, QueuePurgeArgs};
use crate::output::Output;
use crate::output::format::counted;
use crate::session::change;
use crate::tasks::actions::confirm;

/// The result of a purge, or of its dry run.
#[derive(Debug, Serialize)]
struct PurgeReport<'a> {
    queue: &'a str,
    dry_run: DryRun,
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
pub(crate) async fn run(client: &mut Client, out: &Output, args: &QueuePurgeArgs) -> Exit {
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
    if args.flags.dry_run.is_set() {
        return print(out, &report);
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
        let (queue, from) = (report.queue, after);
        let purge = async move |to: &mut Transaction<'_>| {
            Ok(purge::purge_chunk(to, queue, from, up_to).await?)
        };
        let mut chunk = std::pin::pin!(change(client, DryRun::default(), purge));
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

fn print(out: &Output, report: &PurgeReport<'_>) -> Exit {
    let (tasks, done) = match report.dry_run.is_set() {
        true => (report.waiting, "would be cancelled"),
        false if report.interrupted => {
            (report.cancelled, "cancelled\ninterrupted: the other tasks are unchanged")
        }
        false => (report.cancelled, "cancelled"),
    };
    let tasks = counted(tasks.unsigned_abs(), "waiting task");
    out.shown(report, || format!("{tasks} of queue {} {done}", report.queue))
}
