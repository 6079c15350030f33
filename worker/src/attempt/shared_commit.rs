//! Shared commit: runs several short tasks of one queue in one transaction.
//!
//! Each task has its own savepoint and its own fenced completion, and the session is reset between
//! two tasks as between two transactions. A task of a shared commit either succeeds, or is rolled
//! back and run again alone. Therefore an error that the shared commit causes is never recorded for
//! a task.
//!
//! All statements are sent in one pipeline. A second pipeline contains the completions of the
//! executed tasks and COMMIT.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queue::complete::Success;
use queue::fail::Report;
use queue::resolve_commit::CommitResolution;
use queue::scan;
use serde_json::Value;
use tokio::sync::watch;

use crate::attempt::commit::{Completion, commit};
use crate::attempt::error::ExecutionError;
use crate::attempt::execute::Executor;
use crate::attempt::output::rows::Rows;
use crate::attempt::session::{Session, TASK_BOUNDARY, last_value};
use crate::attempt::statement::read_results;
use crate::attempt::supervise::{Supervised, Supervisor, find_terminator};
use crate::context::in_flight::{ClaimedTask, StopSignal};

/// A shared commit is stopped after this multiple of its time budget. Its tasks then take longer
/// than assumed, or wait for each other.
const MAX_BUDGETS: u32 = 10;

/// The tasks of a shared commit, by result.
#[derive(Default)]
pub(crate) struct SharedCommit {
    /// Tasks that are committed, with their run times.
    pub(crate) succeeded: Vec<(ClaimedTask, Duration)>,
    /// Tasks that were rolled back and have to be run alone.
    pub(crate) rolled_back: Vec<ClaimedTask>,
    /// Tasks that were not started, because an earlier task took too long.
    pub(crate) not_started: Vec<ClaimedTask>,
    /// Tasks whose claim was lost.
    pub(crate) lost: Vec<ClaimedTask>,
    /// Whether the tasks of this queue should run alone for a while.
    pub(crate) slow: bool,
}

/// A task in the pipeline.
struct PipelinedTask {
    task: ClaimedTask,
    state: TaskState,
}

enum TaskState {
    NotStarted,
    /// The statement is executed. `until`: time since the start of the transaction.
    Executed {
        rows: Rows,
        until: Duration,
    },
    RolledBack,
}

/// Returns whether the task may share a transaction. It may not if it has to run alone; if it sets
/// constraint modes, which outlast a savepoint; or if its timeout is below the time limit of the
/// shared commit.
pub(crate) fn may_share(task: &ClaimedTask) -> bool {
    let claim = &task.claim;
    let Some(budget) = task.shared_commit_budget else { return false };
    task.may_run_among_others()
        && claim.timeout().is_none_or(|timeout| timeout > budget * MAX_BUDGETS)
        && scan::can_be_followed(claim.statement())
        && !mentions_constraints(claim.statement())
}

/// Returns whether the statement contains the word "constraints" anywhere, also in the body of DO.
/// SET CONSTRAINTS lasts until the end of the transaction and cannot be undone.
fn mentions_constraints(statement: &str) -> bool {
    let word = b"constraints";
    statement.as_bytes().windows(word.len()).any(|found| found.eq_ignore_ascii_case(word))
}

impl Executor {
    /// Runs the tasks one after another in one transaction. Afterwards the session is clean or
    /// retired.
    pub(crate) async fn run_shared_commit(
        &self,
        session: &mut Session,
        batch: Vec<ClaimedTask>,
        budget: Duration,
    ) -> SharedCommit {
        let begun = Instant::now();
        let time_limit = budget * MAX_BUDGETS;
        let mut runs: Vec<PipelinedTask> = batch
            .into_iter()
            .map(|task| PipelinedTask { task, state: TaskState::NotStarted })
            .collect();
        let (_sender, mut signal) = watch::channel(None);
        let supervisor = self.shared_commit_supervisor(session, time_limit, &mut signal);
        let (ran, slow) = match supervisor.run(run_all(session, &mut runs, begun, time_limit)).await
        {
            Supervised::Done(ran) => (Some(ran), begun.elapsed() > time_limit),
            Supervised::Stopped(_, last) => {
                session.retire();
                (last, true)
            }
        };
        let mut result = match ran {
            Some(Ok(xact)) => self.commit_all(session, (runs, begun), &xact, time_limit).await,
            Some(Err(ExecutionError::Database(_))) => {
                session.reset().await;
                roll_back_all(runs)
            }
            // The transaction can no longer commit, but may hold locks that would block the tasks
            // when they run again.
            lost => {
                if let Some(Err(mut error)) = lost {
                    find_terminator(&session.host, session.server(), Instant::now(), &mut error)
                        .await;
                }
                session.retire();
                session.host.ensure_gone(session.identity()).await;
                roll_back_all(runs)
            }
        };
        result.slow |= slow;
        result
    }

    /// Commits the executed tasks.
    async fn commit_all(
        &self,
        session: &mut Session,
        (runs, begun): (Vec<PipelinedTask>, Instant),
        xact: &str,
        time_limit: Duration,
    ) -> SharedCommit {
        let (executed, mut result) = partition(session, runs, begun);
        if executed.is_empty() {
            session.reset().await;
            return result;
        }
        let successes: Vec<Success<'_>> = executed
            .iter()
            .map(|executed| Success {
                claim: &executed.task.claim,
                ran_until: Some(executed.until),
                report: &executed.report,
            })
            .collect();
        let (_sender, mut signal) = watch::channel(None);
        let supervisor = self.shared_commit_supervisor(session, time_limit, &mut signal);
        let ended = commit(session, supervisor, &successes, xact, None).await;
        self.apply(executed, ended.completion, &mut result).await;
        result
    }

    /// Derives the result of each task from the result of the transaction.
    async fn apply(
        &self,
        executed: Vec<ExecutedTask>,
        completion: Completion,
        result: &mut SharedCommit,
    ) {
        result.slow |= !matches!(completion, Completion::Committed);
        for ExecutedTask { task, ran, .. } in executed {
            let resolved = match completion {
                Completion::Committed => CommitResolution::Committed,
                // It is not known which claim was lost. Each task finds out when it runs alone.
                Completion::Lost(_) | Completion::Refused(_) => CommitResolution::RolledBack,
                Completion::InDoubt(_) => self.control.resolve_commit(&task.claim).await,
            };
            match resolved {
                CommitResolution::Committed => result.succeeded.push((task, ran)),
                CommitResolution::RolledBack => result.rolled_back.push(task),
                CommitResolution::Lost => result.lost.push(task),
            }
        }
    }

    /// Returns a supervisor for the shared commit. Stop signals for a single task take effect when
    /// the shared commit ends, after at most a second.
    fn shared_commit_supervisor<'a>(
        &'a self,
        session: &Session,
        time_limit: Duration,
        signal: &'a mut watch::Receiver<Option<StopSignal>>,
    ) -> Supervisor<'a> {
        Supervisor {
            canceller: session.canceller(),
            identity: session.identity(),
            host: Arc::clone(&session.host),
            deadline: Some(time_limit),
            stop: signal,
            includes_completion: true,
            stopping: None,
        }
    }
}

/// A task whose statement was executed, but whose transaction is not committed yet.
struct ExecutedTask {
    task: ClaimedTask,
    until: Duration,
    ran: Duration,
    report: Report,
}

/// Runs the tasks in order. Returns the transaction id.
async fn run_all(
    session: &mut Session,
    runs: &mut [PipelinedTask],
    begun: Instant,
    time_limit: Duration,
) -> Result<String, ExecutionError> {
    let mut xact = None;
    let mut next = 0;
    while next < runs.len() && begun.elapsed() < time_limit {
        next += run_pipeline(session, &mut runs[next..], &mut xact, begun).await?;
    }
    Ok(xact.unwrap_or_default())
}

/// Sends the tasks in one pipeline. If a task fails, it is rolled back, and the tasks after it wait
/// for the next pipeline. Returns the number of tasks that were run.
async fn run_pipeline(
    session: &mut Session,
    runs: &mut [PipelinedTask],
    xact: &mut Option<String>,
    begun: Instant,
) -> Result<usize, ExecutionError> {
    let first = &runs[0].task.claim;
    let opened = match xact {
        None => session.begin_shared(first).await?,
        Some(_) => session.begin_next(first).await?,
    };
    let mut answers = Vec::with_capacity(runs.len());
    for (n, run) in runs.iter().enumerate() {
        let next = runs.get(n + 1).map(|run| &*run.task.claim);
        let claim = &run.task.claim;
        let statement = claim.with_comment(claim.statement());
        answers.push(session.send_shared(&statement, next).await?);
    }
    let id = last_value(opened).await?;
    xact.get_or_insert(id.unwrap_or_default());
    for (n, (run, statement)) in runs.iter_mut().zip(answers).enumerate() {
        let mut rows = Rows::default();
        match read_results(statement, &mut rows, Some(&TASK_BOUNDARY)).await {
            Ok(()) => run.state = TaskState::Executed { rows, until: begun.elapsed() },
            Err(ExecutionError::Database(_)) => {
                // Until the rollback to the savepoint, the server refuses the rest of the pipeline.
                session.roll_back_last().await?;
                run.state = TaskState::RolledBack;
                return Ok(n + 1);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(runs.len())
}

/// Separates the executed tasks from the other tasks, and attaches their reports for the history.
fn partition(
    session: &Session,
    runs: Vec<PipelinedTask>,
    begun: Instant,
) -> (Vec<ExecutedTask>, SharedCommit) {
    let Some(mut notices) = session.notices().take_owned() else {
        return (Vec::new(), roll_back_all(runs));
    };
    let mut result = SharedCommit::default();
    let mut executed = Vec::new();
    let mut before = Duration::ZERO;
    for PipelinedTask { mut task, state } in runs {
        let owner = session.owner(&task.claim);
        let own: Vec<Value> = notices
            .extract_if(.., |(raised, _)| *raised == owner)
            .map(|(_, notice)| notice)
            .collect();
        match state {
            TaskState::NotStarted => result.not_started.push(task),
            TaskState::RolledBack => result.rolled_back.push(task),
            TaskState::Executed { rows, until } => {
                let report = Report {
                    rows: Some(rows.count()),
                    notices: (!own.is_empty()).then_some(Value::Array(own)),
                    result: rows.into_result(),
                    plan: None,
                    error: None,
                };
                let ran = until.saturating_sub(before);
                if let Some(trace) = &mut task.trace {
                    let times = (begun + before, begun + until);
                    trace.statement_ran(session.target(), times, report.rows, None);
                }
                executed.push(ExecutedTask { task, until, ran, report });
                before = until;
            }
        }
    }
    if !notices.is_empty() {
        // Some notices belong to no task, because a task changed application_name.
        result.slow = true;
        result.rolled_back.extend(executed.drain(..).map(|executed| executed.task));
    }
    (executed, result)
}

/// Marks all started tasks as rolled back.
fn roll_back_all(runs: Vec<PipelinedTask>) -> SharedCommit {
    let mut result = SharedCommit { slow: true, ..SharedCommit::default() };
    for PipelinedTask { task, state } in runs {
        match state {
            TaskState::NotStarted => result.not_started.push(task),
            TaskState::RolledBack | TaskState::Executed { .. } => result.rolled_back.push(task),
        }
    }
    result
}
