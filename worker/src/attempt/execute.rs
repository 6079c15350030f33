//! Executes one attempt: runs the claimed statement in the reader's session and classifies the
//! result.

use std::time::Instant;

use queue::complete::{LOST, Success, TRANSACTION_ENDED, complete};
use queue::fail::{DatabaseError, Report};
use queue::resolve_commit::CommitResolution;
use queue::retry::{self, RetryDecision};
use queue::{Claim, Mode, Outcome, QueueError, scan};
use tokio_postgres::Error;

use crate::attempt::error::ExecutionError;
use crate::attempt::progress::ProgressReporter;
use crate::attempt::rows::Rows;
use crate::attempt::session::Session;
use crate::attempt::statement;
use crate::attempt::supervise::{StopReason, Supervised, Supervisor};
use crate::claim::in_flight::{ClaimedTask, StopSignal};
use crate::control::{Backoff, Control, answered};

/// Result of an attempt.
pub(crate) enum AttemptResult {
    /// The completion is committed.
    Succeeded,
    /// The claim was lost: nothing was recorded.
    Lost,
    /// The attempt failed; outcome and retry decision have to be recorded.
    Failed { outcome: Outcome, verdict: RetryDecision, report: Box<Report> },
    /// The claim has to be released, to run again after `wait`; the attempt is not counted.
    Release { wait: std::time::Duration },
}

/// Executes attempts. Holds what all attempts of the process share.
pub(crate) struct Executor {
    pub(crate) control: Control,
    pub(crate) fatal_sqlstates: Vec<String>,
    pub(crate) progress: ProgressReporter,
}

/// A transaction whose statement has been executed but not committed.
struct ExecutedTransaction {
    xact: String,
    begun: Instant,
    report: Report,
}

/// Result of the statement, before the completion.
enum Execution<T> {
    Ok(T),
    Failed(ExecutionError),
    Stopped(StopReason, Option<ExecutionError>),
}

impl Executor {
    /// Runs the attempt. Afterwards the session is clean or retired.
    pub(crate) async fn execute(
        &self,
        session: &mut Session,
        task: &mut ClaimedTask,
    ) -> AttemptResult {
        // Stopped while it waited for the other tasks of its batch: do not start it.
        let signal = *task.stop.borrow();
        if let Some(reason) = signal {
            return self.stopped(&task.claim, StopReason::Signal(reason), None, Report::default());
        }
        if let Some(forbidden) = scan::forbidden(task.claim.statement()) {
            let database_error = forbidden_statement(&task.claim, &forbidden);
            return failed(Outcome::Failed, RetryDecision::Final, database_error);
        }
        if task.claim.explain() && !scan::explainable(task.claim.statement()) {
            let database_error = DatabaseError {
                sqlstate: Some("0A000".to_owned()),
                message: "EXPLAIN does not support this statement".to_owned(),
                hint: Some(scan::EXPLAINABLE.to_owned()),
                ..DatabaseError::default()
            };
            return failed(Outcome::Failed, RetryDecision::Final, database_error);
        }
        let _tracking = self.progress.track(&task.claim, session.notices());
        match task.claim.mode() {
            Mode::Transaction => self.in_transaction(session, task).await,
            Mode::Autocommit => self.autocommit(session, task).await,
        }
    }

    /// Runs the task exactly once: effects and completion commit together.
    async fn in_transaction(&self, session: &mut Session, task: &mut ClaimedTask) -> AttemptResult {
        let begun = Instant::now();
        let mut rows = Rows::default();
        let supervisor = self.supervisor(session, &task.claim, &mut task.stop, begun);
        let execution = match supervisor
            .run(statement::in_transaction(session, &task.claim, &mut rows))
            .await
        {
            Supervised::Done(Ok(xact)) => Execution::Ok(xact),
            Supervised::Done(Err(error)) => Execution::Failed(error),
            // This includes a statement that finished: nothing is committed yet.
            Supervised::Stopped(reason, last) => {
                Execution::Stopped(reason, last.and_then(Result::err))
            }
        };
        let report = report(session, rows);
        match execution {
            Execution::Ok(xact) => {
                self.commit(session, task, ExecutedTransaction { xact, begun, report }).await
            }
            Execution::Failed(error) => {
                if error.connection_lost() {
                    // The transaction cannot commit any more, but may hold locks for a long time.
                    self.control.terminate(session.identity()).await;
                }
                session.reset().await;
                self.classify_error(&task.claim, &error, report)
            }
            Execution::Stopped(reason, error) => {
                // A cancel request may still be on its way to this session.
                session.retire();
                self.stopped(&task.claim, reason, error, report)
            }
        }
    }

    /// Commits effects and completion. COMMIT runs deferred triggers and held cursors for an
    /// unlimited time, so deadline and stop signals apply here too.
    async fn commit(
        &self,
        session: &mut Session,
        task: &mut ClaimedTask,
        executed: ExecutedTransaction,
    ) -> AttemptResult {
        let ExecutedTransaction { xact, begun, report } = executed;
        let claim = &task.claim;
        let supervisor = Supervisor {
            includes_completion: true,
            ..self.supervisor(session, claim, &mut task.stop, begun)
        };
        let success = [Success::now(claim, &report)];
        let (commit_result, stopped) =
            match supervisor.run(session.complete_and_commit(&success, &xact)).await {
                Supervised::Done(commit_result) => (Some(commit_result), None),
                Supervised::Stopped(reason, commit_result) => (commit_result, Some(reason)),
            };
        if stopped.is_some() {
            session.retire();
        } else if commit_result.as_ref().is_none_or(|commit_result| !commit_result.clean) {
            session.reset().await;
        }
        let error = match commit_result.map(|commit_result| commit_result.committed) {
            Some(Ok(())) => return AttemptResult::Succeeded,
            Some(Err(error)) => classify_completion_error(error),
            None => CompletionError::InDoubt(None),
        };
        let error = match error {
            CompletionError::Lost => return AttemptResult::Lost,
            CompletionError::Refused(error) => Some(error),
            CompletionError::InDoubt(error) => {
                session.retire();
                // The answer to COMMIT is missing: the task's row shows the result.
                match self.control.resolve_commit(claim).await {
                    CommitResolution::Recorded(Outcome::Succeeded) => {
                        return AttemptResult::Succeeded;
                    }
                    CommitResolution::Recorded(_) | CommitResolution::Lost => {
                        return AttemptResult::Lost;
                    }
                    CommitResolution::StillClaimed => error,
                }
            }
        };
        match (stopped, error) {
            (Some(reason), error) => self.stopped(claim, reason, error, report),
            (None, Some(error)) => self.classify_error(claim, &error, report),
            (None, None) => AttemptResult::Lost,
        }
    }

    /// Runs the task at least once: first the statements, then the completion on a control session,
    /// which never runs task SQL.
    async fn autocommit(&self, session: &mut Session, task: &mut ClaimedTask) -> AttemptResult {
        let mut rows = Rows::default();
        let supervisor = self.supervisor(session, &task.claim, &mut task.stop, Instant::now());
        let execution =
            match supervisor.run(statement::one_by_one(session, &task.claim, &mut rows)).await {
                Supervised::Done(Ok(())) => Execution::Ok(()),
                Supervised::Done(Err(error)) => Execution::Failed(error),
                Supervised::Stopped(reason, last) => {
                    session.retire();
                    match last {
                        // The statement finished before the stop signal took effect.
                        Some(Ok(())) => Execution::Ok(()),
                        Some(Err(error)) => Execution::Stopped(reason, Some(error)),
                        None => Execution::Stopped(reason, None),
                    }
                }
            };
        let report = report(session, rows);
        match execution {
            Execution::Ok(()) => {
                session.reset().await;
                self.complete_on_control_session(&task.claim, report).await
            }
            Execution::Failed(error) => {
                if error.connection_lost() {
                    // Without a connection, the statement may still run and have effects.
                    self.control.ensure_gone(session.identity()).await;
                } else {
                    session.reset().await;
                }
                self.classify_error(&task.claim, &error, report)
            }
            Execution::Stopped(reason, error) => {
                if error.as_ref().is_none_or(ExecutionError::connection_lost) {
                    self.control.ensure_gone(session.identity()).await;
                }
                self.stopped(&task.claim, reason, error, report)
            }
        }
    }

    /// Completes a task whose effects are already committed. Retries without limit.
    async fn complete_on_control_session(&self, claim: &Claim, report: Report) -> AttemptResult {
        let mut backoff = Backoff::default();
        loop {
            let completed = answered(async {
                let client = self.control.get().await?;
                Ok(complete(&client, &[Success::now(claim, &report)], None).await?)
            });
            let error = match completed.await {
                Ok(()) => return AttemptResult::Succeeded,
                Err(QueueError::Database(error)) => classify_completion_error(error),
                Err(QueueError::NoAnswer { .. }) => CompletionError::InDoubt(None),
                Err(error) => {
                    self.control.log_retry("completion", claim.id(), &error);
                    backoff.wait().await;
                    continue;
                }
            };
            match error {
                CompletionError::Lost => return AttemptResult::Lost,
                CompletionError::Refused(error) => {
                    self.control.log_retry(
                        "completion",
                        claim.id(),
                        &error.database_error().message,
                    );
                }
                CompletionError::InDoubt(_) => match self.control.resolve_commit(claim).await {
                    CommitResolution::Recorded(_) => return AttemptResult::Succeeded,
                    CommitResolution::Lost => return AttemptResult::Lost,
                    CommitResolution::StillClaimed => {}
                },
            }
            backoff.wait().await;
        }
    }

    fn supervisor<'a>(
        &'a self,
        session: &Session,
        claim: &Claim,
        stop: &'a mut tokio::sync::watch::Receiver<Option<StopSignal>>,
        begun: Instant,
    ) -> Supervisor<'a> {
        Supervisor {
            canceller: session.canceller(),
            identity: session.identity(),
            control: &self.control,
            deadline: claim.timeout().map(|timeout| timeout.saturating_sub(begun.elapsed())),
            stop,
            includes_completion: false,
        }
    }

    /// Derives the attempt's result from an error of the statement.
    fn classify_error(
        &self,
        claim: &Claim,
        error: &ExecutionError,
        mut report: Report,
    ) -> AttemptResult {
        let mut database_error = error.database_error().clone();
        let sqlstate = database_error.sqlstate.as_deref();
        if sqlstate == Some(retry::SNOOZE) {
            return AttemptResult::Release { wait: claim.retry().interval };
        }
        if let Some(hint) = retry::mode_hint(claim.mode(), sqlstate) {
            database_error.hint = Some(hint.to_owned());
        }
        let lost = error.connection_lost();
        let verdict = self.verdict(claim, sqlstate, lost);
        let outcome = if lost && claim.at_most_once() { Outcome::Unknown } else { Outcome::Failed };
        report.error = Some(database_error);
        AttemptResult::Failed { outcome, verdict, report: Box::new(report) }
    }

    fn verdict(&self, claim: &Claim, sqlstate: Option<&str>, lost: bool) -> RetryDecision {
        retry::decide(&claim.retry_state(), sqlstate, lost, &self.fatal_sqlstates, &mut rand::rng())
    }

    /// Derives the attempt's result from the reason for stopping the statement.
    fn stopped(
        &self,
        claim: &Claim,
        reason: StopReason,
        error: Option<ExecutionError>,
        mut report: Report,
    ) -> AttemptResult {
        let (outcome, verdict, message) = match reason {
            StopReason::BackendGone => {
                let gone = error.unwrap_or_else(ExecutionError::backend_gone);
                return self.classify_error(claim, &gone, report);
            }
            StopReason::Signal(StopSignal::Lost) => return AttemptResult::Lost,
            StopReason::Signal(StopSignal::Shutdown) if !claim.at_most_once() => {
                return AttemptResult::Release { wait: std::time::Duration::ZERO };
            }
            StopReason::Signal(StopSignal::Shutdown) => {
                (Outcome::Unknown, RetryDecision::Final, "the worker was stopped".to_owned())
            }
            StopReason::Signal(StopSignal::Cancelled) => {
                (Outcome::Cancelled, RetryDecision::Final, "cancelled on request".to_owned())
            }
            StopReason::Deadline => (
                Outcome::TimedOut,
                self.verdict(claim, None, false),
                format!("ran longer than its timeout of {:?}", claim.timeout().unwrap_or_default()),
            ),
        };
        let seen = error.map(|error| error.database_error().clone()).unwrap_or_default();
        report.error =
            Some(DatabaseError { message, detail: Some(seen.message), hint: None, ..seen });
        AttemptResult::Failed { outcome, verdict, report: Box::new(report) }
    }
}

/// read_only_sql_transaction
const READ_ONLY: &str = "25006";

/// Meaning of an error during completion and COMMIT.
pub(crate) enum CompletionError {
    Lost,
    Refused(ExecutionError),
    InDoubt(Option<ExecutionError>),
}

pub(crate) fn classify_completion_error(error: Error) -> CompletionError {
    let error = ExecutionError::from(error);
    match (&error, error.database_error().sqlstate.as_deref()) {
        (_, Some(LOST)) => CompletionError::Lost,
        (_, Some(TRANSACTION_ENDED)) => {
            let message = error.database_error().message.clone();
            let hint = "Leave out COMMIT and ROLLBACK, or enqueue with --mode autocommit. \
                        Changes that the task committed itself are kept.";
            CompletionError::Refused(ExecutionError::refused(retry::FATAL, &message, hint))
        }
        (_, Some(READ_ONLY)) => CompletionError::Refused(ExecutionError::refused(
            READ_ONLY,
            "the task's transaction is read-only: its completion cannot be written",
            "Leave out SET TRANSACTION READ ONLY.",
        )),
        (ExecutionError::Database(_), _) => CompletionError::Refused(error),
        (ExecutionError::ConnectionLost(_) | ExecutionError::Protocol(_), _) => {
            CompletionError::InDoubt(Some(error))
        }
    }
}

fn report(session: &Session, mut rows: Rows) -> Report {
    Report {
        plan: rows.take_plan(),
        rows: Some(rows.count()),
        notices: session.notices().take(),
        result: rows.into_result(),
        error: None,
    }
}

fn failed(
    outcome: Outcome,
    verdict: RetryDecision,
    database_error: DatabaseError,
) -> AttemptResult {
    let report = Box::new(Report { error: Some(database_error), ..Report::default() });
    AttemptResult::Failed { outcome, verdict, report }
}

/// Returns the error for a statement that the worker refuses to send.
fn forbidden_statement(claim: &Claim, forbidden: &scan::Forbidden) -> DatabaseError {
    let before = &claim.statement()[..forbidden.offset()];
    DatabaseError {
        sqlstate: Some("0A000".to_owned()),
        message: forbidden.to_string(),
        hint: Some(forbidden.hint().to_owned()),
        position: u32::try_from(before.chars().count() + 1).ok(),
        ..DatabaseError::default()
    }
}

impl AttemptResult {
    /// Returns the SQLSTATE of a failed attempt.
    pub(crate) fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Failed { report, .. } => report.error.as_ref()?.sqlstate.as_deref(),
            _ => None,
        }
    }
}
