//! Several short tasks of one queue in one transaction: a shared commit.
//!
//! Each task has its own savepoint and its own fenced completion, and between two tasks the session
//! forgets all that it forgets between two transactions. In a group a task either succeeds or is
//! rolled_back and run again alone: whatever goes wrong, its group is never the reason that is recorded.
//!
//! All goes out in one flight, and the completion of all that went well, with COMMIT, in a second.

use std::time::{Duration, Instant};

use queue::complete::Success;
use queue::fail::Report;
use queue::resolve_commit::CommitResolution;
use queue::{Mode, scan};
use serde_json::Value;
use tokio::sync::watch;
use tokio_postgres::Error;

use crate::error::ExecutionError;
use crate::execute::{CompletionError, Executor, classify_completion_error};
use crate::in_flight::{ClaimedTask, StopSignal};
use crate::rows::Rows;
use crate::session::{Session, last_value};
use crate::statement::read_results;
use crate::supervise::{Supervised, Supervisor};

/// A group that takes this many budgets is stopped: its tasks are not as short as was thought, or
/// wait for one another.
const MAX_BUDGETS: u32 = 10;

/// What became of the tasks of a group.
#[derive(Default)]
pub(crate) struct SharedCommit {
    /// Committed.
    pub(crate) succeeded: Vec<(ClaimedTask, Duration)>,
    /// Without effect; each has to be run alone.
    pub(crate) rolled_back: Vec<ClaimedTask>,
    /// Never begun, because one before it took too long.
    pub(crate) not_started: Vec<ClaimedTask>,
    /// Not this worker's any more.
    pub(crate) lost: Vec<ClaimedTask>,
    /// The tasks of this queue had better run alone for a while.
    pub(crate) slow: bool,
}

/// A task on its way executed the group.
struct PipelinedTask {
    task: ClaimedTask,
    state: TaskState,
}

enum TaskState {
    NotStarted,
    /// Its statement is executed; `until`: from the begin of the transaction.
    Executed {
        rows: Rows,
        until: Duration,
    },
    RolledBack,
}

/// Whether the task may run in one transaction with others. Not with effects that no savepoint
/// undoes, nor with what outlasts one: the mode of constraints, or a timeout below the time_limit with
/// the group. Parameters take a round trip of their own.
pub(crate) fn may_share(task: &ClaimedTask) -> bool {
    let claim = &task.claim;
    let Some(budget) = task.shared_commit_budget else { return false };
    claim.mode() == Mode::Transaction
        && !claim.external()
        && claim.params().is_none()
        && !claim.explain()
        && claim.timeout().is_none_or(|timeout| timeout > budget * MAX_BUDGETS)
        && scan::forbidden(claim.statement()).is_none()
        && scan::can_be_followed(claim.statement())
        && !mentions_constraints(claim.statement())
}

/// SET CONSTRAINTS reaches to the end of the transaction, and nothing takes it back. Wherever the word
/// stands: a body of DO may say it too.
fn mentions_constraints(statement: &str) -> bool {
    let word = b"constraints";
    statement.as_bytes().windows(word.len()).any(|found| found.eq_ignore_ascii_case(word))
}

impl Executor {
    /// Runs the tasks, one after another, in one transaction. The session comes back clean, or spent.
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
            Some(Ok(xact)) => self.commit_all(session, runs, &xact, time_limit).await,
            Some(Err(ExecutionError::Database(_))) => {
                session.reset().await;
                roll_back_all(runs)
            }
            // Nothing of it can commit; it may hold locks, on which the tasks themselves would wait.
            Some(Err(ExecutionError::ConnectionLost(_) | ExecutionError::Protocol(_))) | None => {
                session.retire();
                self.control.ensure_gone(session.identity()).await;
                roll_back_all(runs)
            }
        };
        result.slow |= slow;
        result
    }

    /// Commits those that are executed.
    async fn commit_all(
        &self,
        session: &mut Session,
        runs: Vec<PipelinedTask>,
        xact: &str,
        time_limit: Duration,
    ) -> SharedCommit {
        let (executed, mut result) = partition(session, runs);
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
        let commit_result =
            match supervisor.run(session.complete_and_commit(&successes, xact)).await {
                Supervised::Done(commit_result) => Some(commit_result),
                Supervised::Stopped(_, commit_result) => {
                    session.retire();
                    commit_result
                }
            };
        if commit_result.as_ref().is_none_or(|commit_result| !commit_result.clean) {
            session.reset().await;
        }
        let committed = commit_result.map(|commit_result| commit_result.committed);
        self.apply_commit(session, executed, committed, &mut result).await;
        result
    }

    /// What the answer to COMMIT means for each of the tasks.
    async fn apply_commit(
        &self,
        session: &mut Session,
        executed: Vec<ExecutedTask>,
        committed: Option<Result<(), Error>>,
        result: &mut SharedCommit,
    ) {
        let error = match committed {
            Some(Ok(())) => {
                let succeeded = executed.into_iter().map(|executed| (executed.task, executed.ran));
                result.succeeded.extend(succeeded);
                return;
            }
            Some(Err(error)) => classify_completion_error(error),
            None => CompletionError::InDoubt(None),
        };
        result.slow = true;
        if !matches!(error, CompletionError::InDoubt(_)) {
            result.rolled_back.extend(executed.into_iter().map(|executed| executed.task));
            return;
        }
        // The answer to COMMIT never came: the tasks' rows know.
        session.retire();
        for ExecutedTask { task, ran, .. } in executed {
            match self.control.resolve_commit(&task.claim).await {
                CommitResolution::Recorded(_) => result.succeeded.push((task, ran)),
                CommitResolution::StillClaimed => result.rolled_back.push(task),
                CommitResolution::Lost => result.lost.push(task),
            }
        }
    }

    /// Orders to single tasks wait until the group is over, a second at most.
    fn shared_commit_supervisor<'a>(
        &'a self,
        session: &Session,
        time_limit: Duration,
        signal: &'a mut watch::Receiver<Option<StopSignal>>,
    ) -> Supervisor<'a> {
        Supervisor {
            canceller: session.canceller(),
            identity: session.identity(),
            control: &self.control,
            deadline: Some(time_limit),
            stop: signal,
            includes_completion: true,
        }
    }
}

/// A task whose statement is executed.
struct ExecutedTask {
    task: ClaimedTask,
    until: Duration,
    ran: Duration,
    report: Report,
}

/// Runs the tasks in the order they stand in. Returns the transaction's id.
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

/// Sends the tasks in one flight. Of the first that fails, what it did is rolled_back; those after it wait
/// for the next flight. Returns how many were run.
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
        let next = runs.get(n + 1).map(|run| &run.task.claim);
        answers.push(session.send_shared(run.task.claim.statement(), next).await?);
    }
    let id = last_value(opened).await?;
    xact.get_or_insert(id.unwrap_or_default());
    for (n, (run, statement)) in runs.iter_mut().zip(answers).enumerate() {
        let mut rows = Rows::default();
        match read_results(statement, &mut rows).await {
            Ok(()) => run.state = TaskState::Executed { rows, until: begun.elapsed() },
            Err(ExecutionError::Database(_)) => {
                // The server refuses the rest of the flight until it is back at the savepoint.
                session.roll_back_last().await?;
                run.state = TaskState::RolledBack;
                return Ok(n + 1);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(runs.len())
}

/// Those that are executed, with what they leave in history, and the others.
fn partition(session: &Session, runs: Vec<PipelinedTask>) -> (Vec<ExecutedTask>, SharedCommit) {
    let Some(mut notices) = session.notices().take_owned() else {
        return (Vec::new(), roll_back_all(runs));
    };
    let mut result = SharedCommit::default();
    let mut executed = Vec::new();
    let mut before = Duration::ZERO;
    for PipelinedTask { task, state } in runs {
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
                executed.push(ExecutedTask { task, until, ran, report });
                before = until;
            }
        }
    }
    if !notices.is_empty() {
        // Raised by a task that gave the session another name: nobody knows which.
        result.slow = true;
        result.rolled_back.extend(executed.drain(..).map(|executed| executed.task));
    }
    (executed, result)
}

/// Nothing has had an effect.
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
