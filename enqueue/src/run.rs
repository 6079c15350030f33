//! `enqueue --job`: starts a run of one or more jobs, and waits for its end.

use std::time::Duration;

use cli::exit;
use conninfo::{Client, GenericClient};
use indicatif::ProgressBar;
use queue::run::{self, RunOptions, RunState, Started};
use queue::run_queries::{self, Run, RunTask};
use queue::{QueueError, RunId};
use serde_json::{Map, Value, json};
use terminal::{print_stderr, run_bar, run_outcome, update_run_bar, visible};

use crate::args::{Args, Param};
use crate::failure::Failure;
use crate::output::print;
use crate::session::Session;
use crate::wait::deadline;

const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of running tasks that are named next to the progress bar.
const RUNNING_SHOWN: i64 = 3;
/// Maximum number of unsuccessful tasks that are named at the end.
const UNSUCCESSFUL_SHOWN: i64 = 20;

/// A run that has ended, with the unsuccessful tasks that are shown.
struct EndedRun {
    run: Run,
    unsuccessful: Vec<RunTask>,
}

enum WaitResult {
    Finished(Box<EndedRun>),
    TimedOut,
    Interrupted,
}

/// Starts the run. With `--wait`, also waits for its end.
///
/// # Errors
/// Returns an error for an unknown job or an invalid parameter, or if the connection is lost.
pub(crate) async fn start(args: &Args, session: &mut Session) -> Result<u8, Failure> {
    if args.wait.is_some() {
        // The privilege to start a run does not include the privilege to read it. The latter is
        // checked before the run starts.
        run_queries::run(&session.client, RunId(0)).await?;
    }
    let params: Map<String, Value> = args
        .input
        .params
        .iter()
        .filter_map(|param| match param {
            Param::Named(name, value) => Some((name.clone(), value.clone())),
            Param::Positional(_) => None,
        })
        .collect();
    let options = RunOptions {
        labels: args.labels(),
        run_timeout: args.input.run_timeout,
        traceparent: args.traceparent()?,
    };
    let started = begin(&mut session.client, &args.input.job, &params, &options).await;
    let started = started.map_err(|error| match error {
        error if error.commit_in_doubt() => Failure::RunInDoubt(error),
        error => Failure::Database(error),
    })?;
    for edge in &started.dropped {
        print_stderr(format_args!(
            "left out a dependency on a task that is not in these jobs: {}",
            visible(edge)
        ));
    }
    let Some(timeout) = args.wait else {
        let answer = json!({ "run_id": started.run, "dropped": started.dropped });
        print(|out| match args.json {
            true => writeln!(out, "{answer}"),
            false => writeln!(out, "{}", started.run),
        })?;
        return Ok(exit::OK);
    };
    if !args.json {
        print(|out| writeln!(out, "{}", started.run))?;
    }
    let bar = run_bar(started.run.0);
    let ended = tokio::select! {
        ended = until_end(session, started.run, &bar) => WaitResult::Finished(ended?),
        () = deadline(timeout) => WaitResult::TimedOut,
        _ = tokio::signal::ctrl_c() => WaitResult::Interrupted,
    };
    bar.finish_and_clear();
    match ended {
        WaitResult::Finished(ended) => show_end(&ended, args.json),
        WaitResult::TimedOut => {
            print_stderr(format_args!("timed out, run {} continues", started.run));
            Ok(exit::TIMED_OUT)
        }
        WaitResult::Interrupted => {
            print_stderr(format_args!(
                "interrupted, run {0} continues; to cancel it: pgmill run cancel {0}",
                started.run
            ));
            Ok(exit::INTERRUPTED)
        }
    }
}

/// Starts a run, in one statement if the session allows it.
async fn begin(
    client: &mut Client,
    jobs: &[String],
    params: &Map<String, Value>,
    options: &RunOptions,
) -> Result<Started, QueueError> {
    if let Some(driver) = client.driver() {
        return run::start(driver, jobs, params, options).await;
    }
    let transaction = client.transaction().await?;
    let started = run::start(&transaction, jobs, params, options).await?;
    transaction.commit().await?;
    Ok(started)
}

/// Polls until the run ends. Reconnects when the connection is lost.
async fn until_end(
    session: &mut Session,
    id: RunId,
    bar: &ProgressBar,
) -> Result<Box<EndedRun>, Failure> {
    let mut pause = MIN_POLL_INTERVAL;
    loop {
        match poll(session, id).await {
            Ok(Poll::Ended(ended)) => return Ok(ended),
            Ok(Poll::Running(run, tasks)) => update_run_bar(bar, &run, &tasks),
            Ok(Poll::Gone) => {
                return Err(Failure::refused(
                    format!("run {id} no longer exists"),
                    "pgmill run list",
                ));
            }
            Err(error) if session.lost(&error) => {
                bar.set_message(format!("reconnecting: {error}"));
                let lost = |reason: String| Failure::LostRun { id, reason };
                session.reopen().await.map_err(|error| lost(error.to_string()))?;
            }
            Err(error) => return Err(Failure::LostRun { id, reason: error.to_string() }),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_POLL_INTERVAL);
    }
}

enum Poll {
    /// The run, and the names of some of its running tasks.
    Running(Box<Run>, Vec<String>),
    Ended(Box<EndedRun>),
    Gone,
}

/// Reads the unsuccessful tasks as part of the poll that finds the run ended, so that a connection that is
/// lost in between is replaced as well.
async fn poll(session: &Session, id: RunId) -> Result<Poll, QueueError> {
    let client = &session.client;
    let Some(run) = run_queries::run(client, id).await? else { return Ok(Poll::Gone) };
    if run.state == RunState::Running {
        let tasks = run_queries::running(client, id, RUNNING_SHOWN).await?;
        return Ok(Poll::Running(Box::new(run), tasks));
    }
    let unsuccessful = run_queries::unsuccessful_tasks(client, id, UNSUCCESSFUL_SHOWN).await?;
    Ok(Poll::Ended(Box::new(EndedRun { run, unsuccessful })))
}

fn show_end(ended: &EndedRun, json: bool) -> Result<u8, Failure> {
    let EndedRun { run, unsuccessful } = ended;
    if json {
        let answer = json!({ "run": run, "unsuccessful_tasks": unsuccessful });
        print(|out| writeln!(out, "{answer}"))?;
    } else {
        print_stderr(run_outcome(run, unsuccessful));
    }
    Ok(if run.state == RunState::Succeeded { exit::OK } else { exit::TASK_FAILED })
}
