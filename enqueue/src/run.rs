//! `--job`: a run of one or more jobs, and its end.

use std::time::Duration;

use indicatif::ProgressBar;
use queue::graph::{self, Run, RunTask};
use queue::run::{self, RunId, RunState};
use queue::{QueueError, exit};
use serde_json::{Map, Value, json};
use terminal::{move_bar, run_bar, run_outcome, tell, visible};

use crate::args::{Args, Param};
use crate::failure::Failure;
use crate::output::print;
use crate::session::Session;
use crate::wait::run_out;
use crate::{INTERRUPTED, ring};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Names next to the bar.
const RUNNING_SHOWN: i64 = 3;
/// Tasks that did not succeed, named at the end.
const TROUBLES_SHOWN: i64 = 20;

enum Ended {
    With(Box<Run>),
    TimedOut,
    Interrupted,
}

/// Starts the run, and waits for it if asked.
///
/// # Errors
/// An unknown job, a wrong parameter; database trouble.
pub(crate) async fn start(args: &Args) -> Result<u8, Failure> {
    let mut session =
        Session::open(terminal::target(args.given.as_ref())?.with_application_name("enqueue"))
            .await?;
    if args.wait.is_some() {
        // Who may start a run need not see it: better said before there is one.
        graph::run(&session.client, RunId(0)).await?;
    }
    let params: Map<String, Value> = args
        .what
        .params
        .iter()
        .filter_map(|param| match param {
            Param::Named(name, value) => Some((name.clone(), value.clone())),
            Param::Next(_) => None,
        })
        .collect();
    let started = run::start(&session.client, &args.what.job, &params).await?;
    ring(&session).await;
    for edge in &started.dropped {
        tell(format_args!("left out, its parent is in none of these jobs: {}", visible(edge)));
    }
    let Some(patience) = args.wait else {
        let answer = json!({ "run": started.run, "dropped": started.dropped });
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
        run = until_end(&mut session, started.run, &bar) => Ended::With(Box::new(run?)),
        () = run_out(patience) => Ended::TimedOut,
        _ = tokio::signal::ctrl_c() => Ended::Interrupted,
    };
    bar.finish_and_clear();
    match ended {
        Ended::With(run) => show_end(&session, &run, args.json).await,
        Ended::TimedOut => {
            tell(format_args!("run {} has not ended in time and goes on", started.run));
            Ok(exit::TIMED_OUT)
        }
        Ended::Interrupted => {
            tell(format_args!("run {0} goes on; pgmill run cancel {0} ends it", started.run));
            Ok(INTERRUPTED)
        }
    }
}

/// Polls, as the wait for a task does. A connection that is lost is made anew.
async fn until_end(session: &mut Session, id: RunId, bar: &ProgressBar) -> Result<Run, Failure> {
    let mut pause = FIRST_PAUSE;
    loop {
        match look(session, id).await {
            Ok(Some((run, _))) if run.state != RunState::Running => return Ok(run),
            Ok(Some((run, running))) => move_bar(bar, &run, &running),
            Ok(None) => {
                return Err(Failure::refused(format!("run {id} is gone"), "pgmill run list"));
            }
            Err(error) if session.lost(&error) => {
                bar.set_message(format!("connecting again: {error}"));
                let lost = |reason: String| Failure::LostRun { id, reason };
                session.reopen().await.map_err(|error| lost(error.to_string()))?;
            }
            Err(error) => return Err(Failure::LostRun { id, reason: error.to_string() }),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn look(session: &Session, id: RunId) -> Result<Option<(Run, Vec<String>)>, QueueError> {
    let Some(run) = graph::run(&session.client, id).await? else { return Ok(None) };
    let running = graph::running(&session.client, id, RUNNING_SHOWN).await?;
    Ok(Some((run, running)))
}

async fn show_end(session: &Session, run: &Run, json: bool) -> Result<u8, Failure> {
    let troubles: Vec<RunTask> = graph::troubles(&session.client, run.id, TROUBLES_SHOWN).await?;
    if json {
        let answer = json!({ "run": run, "troubles": troubles });
        print(|out| writeln!(out, "{answer}"))?;
    } else {
        tell(run_outcome(run, &troubles));
    }
    Ok(if run.state == RunState::Succeeded { exit::OK } else { exit::TASK_FAILED })
}
