//! Executes one attempt of a task in its own transaction: check, run, commit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_decisions::batch_size::BatchSizes;
use queue::complete::Success;
use queue::fail::{DatabaseError, Report};
use queue::resolve_commit::CommitResolution;
use queue::retry::{self, AttemptError, RetryDecision, RetryState};
use queue::{Claim, Condition, Mode, Outcome};
use tokio_util::sync::CancellationToken;

use crate::attempt::call::handlers::{self, Handlers};
use crate::attempt::call::run_call::run_call;
use crate::attempt::commit::{Completion, Ended, commit, complete_committed};
use crate::attempt::error::ExecutionError;
use crate::attempt::in_target::recorder::Recorder;
use crate::attempt::output::progress::{ProgressReporter, TrackingGuard};
use crate::attempt::output::rows::Rows;
use crate::attempt::session::{OpenedTransaction, Session};
use crate::attempt::statement;
use crate::attempt::statement::check::check;
use crate::attempt::supervise::{StopReason, Supervised, Supervisor, find_terminator};
use crate::context::in_flight::{ClaimedTask, StopSignal};
use crate::control::Control;

/// Result of an attempt, to be recorded.
pub(crate) enum AttemptResult {
    /// The completion is committed.
    Succeeded,
    /// The effects are committed in a target. The success has to be recorded.
    InTarget(Box<Report>),
    /// The claim was lost: nothing was recorded.
    Lost,
    /// The attempt failed; outcome and retry decision have to be recorded.
    Failed { outcome: Outcome, decision: RetryDecision, report: Box<Report> },
    /// The claim has to be released, to run again after `wait`; the attempt is not counted.
    Release { wait: Duration },
}

/// A transaction whose statement has succeeded, before its completion.
pub(crate) struct Executed {
    xact: String,
    begun: Instant,
    report: Report,
    _tracking: TrackingGuard,
}

/// Result of [`Executor::commit`].
pub(crate) enum Committed {
    /// The attempt has ended. The transaction of the next task is open, if there is one.
    Ended(AttemptResult, Option<OpenedTransaction>),
    /// The server refused the message that contained COMMIT and the next task, maybe because of the
    /// next task. Nothing is committed; the task has to be run alone.
    RunAlone,
}

/// Reason why a statement did not succeed.
pub(crate) enum Interruption {
    Failed(ExecutionError),
    /// Stopped, with the error that the statement returned, if it returned one.
    Stopped(StopReason, Option<ExecutionError>),
}

/// Executes attempts. Holds what all attempts of the process share.
pub(crate) struct Executor {
    pub(crate) control: Arc<Control>,
    pub(crate) fatal_sqlstates: Vec<String>,
    pub(crate) progress: ProgressReporter,
    pub(crate) batch_sizes: BatchSizes,
    pub(crate) recorder: Recorder,
    pub(crate) handlers: Handlers,
}

impl Executor {
    /// Runs the statement of the task. `opened`: its transaction, if the COMMIT of the task before
    /// has begun it. Afterwards the transaction is open, or the session is clean or retired.
    pub(crate) async fn run(
        &self,
        session: &mut Session,
        task: &mut ClaimedTask,
        opened: Option<OpenedTransaction>,
    ) -> Result<Executed, AttemptResult> {
        let chained = opened.is_some();
        if !chained {
            self.load(task).await?;
            self.may_start(session, task)?;
        }
        let tracking = self.progress.track(&task.claim, session.notices());
        if task.claim.mode() == Mode::Autocommit {
            return Err(self.autocommit(session, task).await);
        }
        let mut begun = Instant::now();
        let mut ran = self.in_transaction(session, task, begun, opened).await;
        let notices = match &ran {
            Ok((_, report)) => report.notices.is_some(),
            Err(result) => result.notices().is_some() && session.is_usable(),
        };
        if chained && notices {
            // The COMMIT of the task before may have raised these notices.
            self.batch_sizes.cool_down(task.claim.queue(), Instant::now());
            if ran.is_ok() {
                session.reset().await;
            }
            tracking.follow(session.notices());
            begun = Instant::now();
            ran = self.in_transaction(session, task, begun, None).await;
        }
        let (xact, report) = ran?;
        Ok(Executed { xact, begun, report, _tracking: tracking })
    }

    /// Returns an error if the task was stopped while it waited for the other tasks of its batch, or
    /// if its statement must not be sent.
    fn may_start(&self, session: &Session, task: &ClaimedTask) -> Result<(), AttemptResult> {
        let signal = *task.stop.borrow();
        if signal == Some(StopSignal::Shutdown) {
            return Err(AttemptResult::Release { wait: Duration::ZERO });
        }
        if let Some(reason) = signal {
            let stopped = Interruption::Stopped(StopReason::Signal(reason), None);
            return Err(self.classify(&task.claim, stopped, Report::default()));
        }
        check(&task.claim, session.host.is_in_target()).map_err(|error| {
            failed(Outcome::Failed, RetryDecision::Final, *error, Report::default())
        })?;
        if self.handlers.find(&task.claim).is_some()
            && let Err(error) = handlers::check(&task.claim)
        {
            return Err(self.classify_error(&task.claim, &error, Report::default()));
        }
        Ok(())
    }

    /// Runs the statement in the task's own transaction. Returns the transaction id and the report.
    async fn in_transaction(
        &self,
        session: &mut Session,
        task: &mut ClaimedTask,
        begun: Instant,
        opened: Option<OpenedTransaction>,
    ) -> Result<(String, Report), AttemptResult> {
        let mut rows = Rows::default();
        let handler = self.handlers.find(&task.claim);
        let stopping = handler.map(|_| CancellationToken::new());
        let supervisor = Supervisor {
            stopping: stopping.clone(),
            ..self.supervisor(session, &task.claim, &mut task.stop, begun)
        };
        let statement = async {
            match (opened, handler.zip(stopping)) {
                (Some(opened), _) => statement::in_opened_transaction(opened, &mut rows).await,
                (None, Some((handler, stopping))) => {
                    run_call(session, &task.claim, handler, &stopping, &mut rows).await
                }
                (None, None) => statement::in_transaction(session, &task.claim, &mut rows).await,
            }
        };
        let ran = match supervisor.run(statement).await {
            Supervised::Done(ran) => ran.map_err(|error| {
                Interruption::Failed(error.limit_position(task.claim.statement()))
            }),
            // A statement that finished just before the stop counts as stopped too, and its effects
            // are not committed.
            Supervised::Stopped(reason, last) => {
                Err(Interruption::Stopped(reason, last.and_then(Result::err)))
            }
        };
        let report = report(session, rows);
        trace_statement(session, task, begun, ran.as_ref().err(), report.rows);
        let mut interruption = match ran {
            Ok(xact) => return Ok((xact, report)),
            Err(interruption) => interruption,
        };
        if let Interruption::Failed(error) = &mut interruption {
            find_terminator(&session.host, session.server(), Instant::now(), error).await;
        }
        match &interruption {
            Interruption::Failed(error) => {
                if error.connection_lost() {
                    // The transaction can no longer commit, but may hold locks for a long time.
                    session.host.terminate(session.identity()).await;
                }
                session.reset().await;
                if error.outdated_plan() {
                    session.retire();
                }
            }
            Interruption::Stopped(reason, _) => {
                if matches!(reason, StopReason::BackendGone) {
                    // The backend may be idle in the transaction, with its locks.
                    session.host.terminate(session.identity()).await;
                }
                // A cancel request may still be on its way to this session.
                session.retire();
            }
        }
        Err(self.classify(&task.claim, interruption, report))
    }

    /// Commits effects and completion, and begins the transaction of `next`.
    pub(crate) async fn commit(
        &self,
        session: &mut Session,
        task: &mut ClaimedTask,
        Executed { xact, begun, report, _tracking }: Executed,
        next: Option<&Claim>,
    ) -> Committed {
        let claim = &task.claim;
        let supervisor = Supervisor {
            includes_completion: true,
            ..self.supervisor(session, claim, &mut task.stop, begun)
        };
        let success = [Success::now(claim, &report)];
        let Ended { completion, stopped, at, next: opened } =
            commit(session, supervisor, &success, &xact, next).await;
        if let Some(receipt) = claim.receipt() {
            let ended = (completion, stopped);
            let result = self.end_in_target(session, (task, receipt), ended, report).await;
            return Committed::Ended(result, None);
        }
        let unsent = next.is_some() && opened.is_none() && stopped.is_none();
        if unsent && matches!(completion, Completion::Refused(_)) {
            self.batch_sizes.cool_down(claim.queue(), Instant::now());
            return Committed::RunAlone;
        }
        let error = match completion {
            Completion::Committed => return Committed::Ended(AttemptResult::Succeeded, opened),
            // Recording the failure finds out that the claim is lost.
            Completion::Lost(error) | Completion::Refused(error) => Some(error),
            Completion::InDoubt(mut error) => match self.control.resolve_commit(claim).await {
                CommitResolution::Committed => {
                    return Committed::Ended(AttemptResult::Succeeded, None);
                }
                CommitResolution::Lost => return Committed::Ended(AttemptResult::Lost, None),
                CommitResolution::RolledBack => {
                    if let Some(error) = &mut error {
                        find_terminator(&session.host, session.server(), at, error).await;
                    }
                    error
                }
            },
        };
        let result = match (stopped, error) {
            (Some(reason), error) => {
                self.classify(claim, Interruption::Stopped(reason, error), report)
            }
            (None, Some(error)) => self.classify(claim, Interruption::Failed(error), report),
            (None, None) => AttemptResult::Lost,
        };
        Committed::Ended(result, opened)
    }

    /// Runs the task at least once: runs its statements, then records the completion on a control
    /// session, which never runs task SQL.
    async fn autocommit(&self, session: &mut Session, task: &mut ClaimedTask) -> AttemptResult {
        let claim = &task.claim;
        let (mut rows, mut sent) = (Rows::default(), false);
        let begun = Instant::now();
        let supervisor = self.supervisor(session, claim, &mut task.stop, begun);
        let statements = statement::one_by_one(session, claim, &mut rows, &mut sent);
        let ran = match supervisor.run(statements).await {
            Supervised::Done(ran) => ran.map_err(Interruption::Failed),
            Supervised::Stopped(reason, last) => {
                session.retire();
                match last {
                    // The statement finished before the stop signal took effect.
                    Some(Ok(())) => {
                        self.until_replicated(session, claim).await;
                        Ok(())
                    }
                    last => Err(Interruption::Stopped(reason, last.and_then(Result::err))),
                }
            }
        };
        let report = report(session, rows);
        trace_statement(session, task, begun, ran.as_ref().err(), report.rows);
        let claim = &task.claim;
        let Err(mut interruption) = ran else {
            session.reset().await;
            let success = Success::now(claim, &report);
            return match complete_committed(&self.control, success).await {
                true => AttemptResult::Succeeded,
                false => AttemptResult::Lost,
            };
        };
        if let Interruption::Failed(error) = &mut interruption {
            find_terminator(&session.host, session.server(), Instant::now(), error).await;
        }
        let (stopped, error) = match &interruption {
            Interruption::Failed(error) => (false, Some(error)),
            Interruption::Stopped(_, error) => (true, error.as_ref()),
        };
        if error.is_none_or(ExecutionError::connection_lost) {
            // Because no answer arrived, the statement may still run and have effects.
            session.host.ensure_gone(session.identity()).await;
        } else if !stopped {
            session.reset().await;
        }
        if error.is_some_and(ExecutionError::outdated_plan) {
            session.retire();
        }
        let shutdown = StopReason::Signal(StopSignal::Shutdown);
        let stopped =
            matches!(&interruption, Interruption::Stopped(reason, _) if *reason == shutdown);
        let lost = error.is_some_and(ExecutionError::connection_lost);
        if !sent && claim.at_most_once() && (stopped || lost) {
            return AttemptResult::Release { wait: Duration::ZERO };
        }
        self.classify(claim, interruption, report)
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
            host: Arc::clone(&session.host),
            deadline: claim.timeout().map(|timeout| timeout.saturating_sub(begun.elapsed())),
            stop,
            includes_completion: false,
            stopping: None,
        }
    }

    /// Derives the attempt's result.
    pub(crate) fn classify(
        &self,
        claim: &Claim,
        interruption: Interruption,
        report: Report,
    ) -> AttemptResult {
        match interruption {
            Interruption::Failed(error) => self.classify_error(claim, &error, report),
            Interruption::Stopped(reason, error) => {
                self.classify_stop(claim, reason, error, report)
            }
        }
    }

    pub(crate) fn classify_error(
        &self,
        claim: &Claim,
        error: &ExecutionError,
        report: Report,
    ) -> AttemptResult {
        let mut database_error = error.database_error().clone();
        let sqlstate = database_error.sqlstate.as_deref();
        // A second start would break the promise of at most once: statements before the snooze may
        // have committed.
        if sqlstate == Some(retry::SNOOZE) && !claim.at_most_once() {
            return AttemptResult::Release { wait: claim.retry().interval };
        }
        let lost = error.connection_lost();
        let timed_out = lost && sqlstate == Some(retry::TRANSACTION_TIMEOUT);
        if retry::lost_race_to_create(claim.statement(), sqlstate) {
            database_error.condition = Some(Condition::CatalogRace);
        }
        if let Some(hint) = retry::mode_hint(claim, sqlstate) {
            database_error.hint = Some(hint.to_owned());
        } else if let Some(hint) = handlers::missing_handler_hint(claim, sqlstate) {
            database_error.hint = Some(hint);
        } else if timed_out {
            let hint = "transaction_timeout ended the session. It is set for the login of the task, the \
                        database or the server, or by the task itself.";
            database_error.hint = Some(hint.to_owned());
        }
        let error = AttemptError {
            sqlstate: database_error.sqlstate.as_deref(),
            connection_lost: lost,
            condition: database_error.condition,
        };
        let decision = self.decide(claim, error);
        let outcome = match decision {
            RetryDecision::Interrupted { .. } => Outcome::Interrupted,
            _ if lost && !timed_out && claim.at_most_once() => Outcome::Unknown,
            _ => Outcome::Failed,
        };
        failed(outcome, decision, database_error, report)
    }

    fn decide(&self, claim: &Claim, error: AttemptError<'_>) -> RetryDecision {
        retry::decide(&RetryState::of(claim), error, &self.fatal_sqlstates, &mut rand::rng())
    }

    fn classify_stop(
        &self,
        claim: &Claim,
        reason: StopReason,
        error: Option<ExecutionError>,
        report: Report,
    ) -> AttemptResult {
        let (outcome, decision, message) = match reason {
            StopReason::BackendGone => {
                let gone = error.unwrap_or_else(ExecutionError::backend_gone);
                return self.classify_error(claim, &gone, report);
            }
            StopReason::Signal(StopSignal::Lost) => return AttemptResult::Lost,
            StopReason::Signal(StopSignal::Shutdown) if !claim.at_most_once() => {
                return AttemptResult::Release { wait: Duration::ZERO };
            }
            StopReason::Signal(StopSignal::Shutdown) => {
                (Outcome::Unknown, RetryDecision::Final, "the worker was stopped".to_owned())
            }
            StopReason::Signal(StopSignal::Cancelled) => {
                (Outcome::Cancelled, RetryDecision::Final, "cancelled on request".to_owned())
            }
            StopReason::Deadline => (
                Outcome::TimedOut,
                self.decide(claim, AttemptError::default()),
                format!("ran longer than its timeout of {:?}", claim.timeout().unwrap_or_default()),
            ),
        };
        let seen = error.map(|error| error.database_error().clone()).unwrap_or_default();
        let database_error = DatabaseError { message, detail: Some(seen.message), ..seen };
        failed(outcome, decision, database_error, report)
    }
}

/// Records an execution of the statement, if the task is traced.
fn trace_statement(
    session: &Session,
    task: &mut ClaimedTask,
    begun: Instant,
    interruption: Option<&Interruption>,
    rows: Option<u64>,
) {
    let Some(trace) = &mut task.trace else { return };
    let error = interruption.map(|interruption| match interruption {
        Interruption::Failed(error) | Interruption::Stopped(_, Some(error)) => {
            error.database_error().sqlstate.as_deref().unwrap_or_default()
        }
        Interruption::Stopped(..) => "",
    });
    trace.statement_ran(session.target(), (begun, Instant::now()), rows, error);
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
    decision: RetryDecision,
    error: DatabaseError,
    report: Report,
) -> AttemptResult {
    let report = Box::new(Report { error: Some(error), ..report });
    AttemptResult::Failed { outcome, decision, report }
}

impl AttemptResult {
    /// Returns the notices of a failed attempt.
    fn notices(&self) -> Option<&serde_json::Value> {
        match self {
            Self::Failed { report, .. } => report.notices.as_ref(),
            _ => None,
        }
    }

    /// Returns the SQLSTATE of a failed attempt.
    pub(crate) fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Failed { report, .. } => report.error.as_ref()?.sqlstate.as_deref(),
            _ => None,
        }
    }
}
