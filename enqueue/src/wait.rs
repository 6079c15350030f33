//! Waits for the end of a task by polling.
//!
//! Polls instead of listening for notifications. Otherwise every completion would have to send a
//! notification, and each NOTIFY inside a transaction that writes holds a cluster-wide lock until
//! its WAL is on disk.

use std::time::Duration;

use indicatif::ProgressBar;
use queue::attempt::{self, Attempt};
use queue::{QueueError, State, TaskId, task_queries};
use terminal::print_stderr;

use crate::failure::Failure;
use crate::render;
use crate::session::Session;

const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Number of polls for each query of the reason why the task waits. The query is rare, because it
/// counts the tasks ahead.
const POLLS_PER_REASON: u32 = 4;
/// Number of polls, within about 1.3 s, after which a wait without a terminal reports once why the
/// task has not started.
const POLLS_BEFORE_REPORT: u32 = 7;
/// Number of consecutive polls that find the task neither live nor in the history before it counts
/// as deleted. Between the two reads of a poll, a task can be retried and end, but not repeatedly.
const MAX_POLLS_WITHOUT_TRACE: u32 = 5;
/// Maximum time of the query for the reason, after the wait has timed out.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);

/// The end of a wait.
#[derive(Debug)]
pub(crate) enum WaitResult {
    /// The task has ended.
    Finished(Box<Attempt>),
    /// The wait timed out. Contains the reason why the task has not ended, if the database returned
    /// it.
    TimedOut(Option<String>),
    /// The user pressed Ctrl-C.
    Interrupted,
}

/// Checks, before anything is submitted, that the session has the privileges for waiting.
///
/// # Errors
/// Returns an error if the session may not read tasks or history, or the connection is lost.
pub(crate) async fn check_rights(session: &Session) -> Result<(), QueueError> {
    let unknown_id = TaskId(0);
    attempt::live_state(&session.client, unknown_id).await?;
    attempt::final_attempt(&session.client, unknown_id).await?;
    Ok(())
}

/// Waits until the task ends, but at most `timeout`. Reconnects when the connection is lost.
///
/// # Errors
/// Returns an error if reconnecting fails or the task was deleted manually.
pub(crate) async fn until_end(
    session: &mut Session,
    id: TaskId,
    timeout: Option<Duration>,
) -> Result<WaitResult, Failure> {
    let progress = render::spinner(id);
    let ended = tokio::select! {
        ended = poll_until_end(session, id, &progress) => ended.map(|attempt| WaitResult::Finished(Box::new(attempt))),
        () = deadline(timeout) => Ok(WaitResult::TimedOut(None)),
        _ = tokio::signal::ctrl_c() => Ok(WaitResult::Interrupted),
    };
    progress.finish_and_clear();
    match ended? {
        WaitResult::TimedOut(_) => Ok(WaitResult::TimedOut(reason(session, id).await)),
        ended => Ok(ended),
    }
}

pub(crate) async fn deadline(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

async fn reason(session: &Session, id: TaskId) -> Option<String> {
    let asked = tokio::time::timeout(REASON_TIMEOUT, task_queries::why(&session.client, id)).await;
    asked.ok()?.ok()?
}

async fn poll_until_end(
    session: &mut Session,
    id: TaskId,
    progress: &ProgressBar,
) -> Result<Attempt, Failure> {
    let mut pause = MIN_POLL_INTERVAL;
    let mut polls = 0_u32;
    let mut reported = false;
    let mut without_trace = 0;
    loop {
        match poll(session, id).await {
            Ok(Poll::Finished(attempt)) => return Ok(*attempt),
            Ok(Poll::Live(state)) => {
                without_trace = 0;
                if !progress.is_hidden() && polls.is_multiple_of(POLLS_PER_REASON) {
                    let why = task_queries::why(&session.client, id).await.ok().flatten();
                    progress.set_message(why.unwrap_or_else(|| state.to_string()));
                }
                // Without a terminal there is no spinner. One line says why nothing happens.
                if progress.is_hidden() && !reported && polls == POLLS_BEFORE_REPORT {
                    reported = true;
                    if state != State::Running
                        && let Ok(Some(why)) = task_queries::why(&session.client, id).await
                    {
                        print_stderr(format_args!("task {id} has not started: {why}"));
                    }
                }
            }
            Ok(Poll::Nothing) => {
                without_trace += 1;
                if without_trace == MAX_POLLS_WITHOUT_TRACE {
                    return Err(Failure::TaskGone(id));
                }
            }
            Err(error) if session.lost(&error) => {
                progress.set_message(format!("reconnecting: {error}"));
                session.reopen().await.map_err(|error| {
                    let reason = error.to_string();
                    Failure::LostTask { id, reason }
                })?;
            }
            Err(error) => return Err(Failure::LostTask { id, reason: error.to_string() }),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_POLL_INTERVAL);
        polls += 1;
    }
}

enum Poll {
    Live(State),
    Finished(Box<Attempt>),
    Nothing,
}

/// Reads the history only after the task has left the live table. Planning the query over the
/// partitions of history costs more than reading the live table.
async fn poll(session: &Session, id: TaskId) -> Result<Poll, QueueError> {
    if let Some(state) = attempt::live_state(&session.client, id).await? {
        return Ok(Poll::Live(state));
    }
    let ended = attempt::final_attempt(&session.client, id).await?;
    Ok(ended.map_or(Poll::Nothing, |attempt| Poll::Finished(Box::new(attempt))))
}
