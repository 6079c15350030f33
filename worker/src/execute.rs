//! One attempt: the claimed statement in the reader's session, to one of a closed set of endings.

use std::time::Instant;

use queue::complete::{LOST, OWN_TRANSACTION, Success, complete};
use queue::fail::{Fault, Report};
use queue::retry::{self, Verdict};
use queue::settle::Settled;
use queue::{Claim, Mode, Outcome, QueueError, scan};
use tokio_postgres::Error;

use crate::control::{Backoff, Control, answered};
use crate::guard::{Guard, Guarded, Reason};
use crate::held::{Stop, Work};
use crate::progress::Sayings;
use crate::rows::Rows;
use crate::session::Session;
use crate::statement;
use crate::trouble::Trouble;

/// How an attempt ended.
pub(crate) enum Ending {
    /// Its completion is committed.
    Succeeded,
    /// The task was not this worker's to finish any more: nothing was recorded.
    Lost,
    /// To be recorded, with what follows from it.
    Failed { outcome: Outcome, verdict: Verdict, report: Box<Report> },
    /// To be given back with its attempt, to run again after this wait.
    GiveBack { wait: std::time::Duration },
}

/// What an attempt needs besides its claim and its session.
pub(crate) struct Executor {
    pub(crate) control: Control,
    pub(crate) fatal_sqlstates: Vec<String>,
    pub(crate) sayings: Sayings,
}

/// A transaction whose statement is through.
struct Ready {
    xact: String,
    begun: Instant,
    report: Report,
}

/// How the statement itself ended.
enum Ran<T> {
    Well(T),
    Badly(Trouble),
    Stopped(Reason, Option<Trouble>),
}

impl Executor {
    /// Runs the attempt. The session comes back clean, or spent.
    pub(crate) async fn execute(&self, session: &mut Session, work: &mut Work) -> Ending {
        // Told while it waited behind others of its group: nothing of it runs.
        let told = *work.stop.borrow();
        if let Some(reason) = told {
            return self.stopped(&work.claim, Reason::Told(reason), None, Report::default());
        }
        if let Some(forbidden) = scan::forbidden(work.claim.statement()) {
            let fault = refusal(&work.claim, &forbidden);
            return failed(Outcome::Failed, Verdict::Final, fault);
        }
        if work.claim.explain() && !scan::explainable(work.claim.statement()) {
            let fault = Fault {
                sqlstate: Some("0A000".to_owned()),
                message: "there is no plan to keep of this SQL".to_owned(),
                hint: Some(scan::EXPLAINABLE.to_owned()),
                ..Fault::default()
            };
            return failed(Outcome::Failed, Verdict::Final, fault);
        }
        let _listening = self.sayings.listen(&work.claim, session.notices());
        match work.claim.mode() {
            Mode::Transaction => self.in_transaction(session, work).await,
            Mode::Autocommit => self.autocommit(session, work).await,
        }
    }

    /// Exactly once: effects and completion commit together.
    async fn in_transaction(&self, session: &mut Session, work: &mut Work) -> Ending {
        let begun = Instant::now();
        let mut rows = Rows::default();
        let guard = self.guard(session, &work.claim, &mut work.stop, begun);
        let ran = match guard.run(statement::in_transaction(session, &work.claim, &mut rows)).await
        {
            Guarded::Done(Ok(xact)) => Ran::Well(xact),
            Guarded::Done(Err(trouble)) => Ran::Badly(trouble),
            // Even a statement that came to its end: nothing is committed yet.
            Guarded::Stopped(reason, last) => Ran::Stopped(reason, last.and_then(Result::err)),
        };
        let report = report(session, rows);
        match ran {
            Ran::Well(xact) => self.commit(session, work, Ready { xact, begun, report }).await,
            Ran::Badly(trouble) => {
                if trouble.connection_lost() {
                    // Nothing it did can commit any more, but it may hold locks for long.
                    self.control.terminate(session.identity()).await;
                }
                session.reset().await;
                self.judge(&work.claim, &trouble, report)
            }
            Ran::Stopped(reason, trouble) => {
                // A cancel request may still be on its way to this session.
                session.spend();
                self.stopped(&work.claim, reason, trouble, report)
            }
        }
    }

    /// COMMIT runs what the task deferred to it, triggers and held cursors, for as long as they like:
    /// deadline and orders hold here too.
    async fn commit(&self, session: &mut Session, work: &mut Work, ready: Ready) -> Ending {
        let Ready { xact, begun, report } = ready;
        let claim = &work.claim;
        let guard = Guard { completes: true, ..self.guard(session, claim, &mut work.stop, begun) };
        let success = [Success::now(claim, &report)];
        let (finish, stopped) = match guard.run(session.finish(&success, &xact)).await {
            Guarded::Done(finish) => (Some(finish), None),
            Guarded::Stopped(reason, finish) => (finish, Some(reason)),
        };
        if stopped.is_some() {
            session.spend();
        } else if finish.as_ref().is_none_or(|finish| !finish.clean) {
            session.reset().await;
        }
        let trouble = match finish.map(|finish| finish.committed) {
            Some(Ok(())) => return Ending::Succeeded,
            Some(Err(error)) => completion_trouble(error),
            None => Completion::InDoubt(None),
        };
        let trouble = match trouble {
            Completion::Lost => return Ending::Lost,
            Completion::Refused(trouble) => Some(trouble),
            Completion::InDoubt(trouble) => {
                session.spend();
                // The answer to COMMIT never came: the task's row knows.
                match self.control.settle(claim).await {
                    Settled::Recorded(Outcome::Succeeded) => return Ending::Succeeded,
                    Settled::Recorded(_) | Settled::Lost => return Ending::Lost,
                    Settled::StillClaimed => trouble,
                }
            }
        };
        match (stopped, trouble) {
            (Some(reason), trouble) => self.stopped(claim, reason, trouble, report),
            (None, Some(trouble)) => self.judge(claim, &trouble, report),
            (None, None) => Ending::Lost,
        }
    }

    /// At least once: the statements first, then the completion, on a control session that no task
    /// has touched.
    async fn autocommit(&self, session: &mut Session, work: &mut Work) -> Ending {
        let mut rows = Rows::default();
        let guard = self.guard(session, &work.claim, &mut work.stop, Instant::now());
        let ran = match guard.run(statement::one_by_one(session, &work.claim, &mut rows)).await {
            Guarded::Done(Ok(())) => Ran::Well(()),
            Guarded::Done(Err(trouble)) => Ran::Badly(trouble),
            Guarded::Stopped(reason, last) => {
                session.spend();
                match last {
                    // It ran to its end before the order to stop got through.
                    Some(Ok(())) => Ran::Well(()),
                    Some(Err(trouble)) => Ran::Stopped(reason, Some(trouble)),
                    None => Ran::Stopped(reason, None),
                }
            }
        };
        let report = report(session, rows);
        match ran {
            Ran::Well(()) => {
                session.reset().await;
                self.complete_apart(&work.claim, report).await
            }
            Ran::Badly(trouble) => {
                if trouble.connection_lost() {
                    // What cannot be heard may still run, and have effects.
                    self.control.ensure_gone(session.identity()).await;
                } else {
                    session.reset().await;
                }
                self.judge(&work.claim, &trouble, report)
            }
            Ran::Stopped(reason, trouble) => {
                if trouble.as_ref().is_none_or(Trouble::connection_lost) {
                    self.control.ensure_gone(session.identity()).await;
                }
                self.stopped(&work.claim, reason, trouble, report)
            }
        }
    }

    /// Completes a task whose effects are committed already, whatever it takes.
    async fn complete_apart(&self, claim: &Claim, report: Report) -> Ending {
        let mut backoff = Backoff::default();
        loop {
            let completed = answered(async {
                let client = self.control.get().await?;
                Ok(complete(&client, &[Success::now(claim, &report)], None).await?)
            });
            let trouble = match completed.await {
                Ok(()) => return Ending::Succeeded,
                Err(QueueError::Database(error)) => completion_trouble(error),
                Err(QueueError::NoAnswer { .. }) => Completion::InDoubt(None),
                Err(error) => {
                    self.control.trouble("completion", claim.id(), &error);
                    backoff.wait().await;
                    continue;
                }
            };
            match trouble {
                Completion::Lost => return Ending::Lost,
                Completion::Refused(trouble) => {
                    self.control.trouble("completion", claim.id(), &trouble.fault().message);
                }
                Completion::InDoubt(_) => match self.control.settle(claim).await {
                    Settled::Recorded(_) => return Ending::Succeeded,
                    Settled::Lost => return Ending::Lost,
                    Settled::StillClaimed => {}
                },
            }
            backoff.wait().await;
        }
    }

    fn guard<'a>(
        &'a self,
        session: &Session,
        claim: &Claim,
        stop: &'a mut tokio::sync::watch::Receiver<Option<Stop>>,
        begun: Instant,
    ) -> Guard<'a> {
        Guard {
            canceller: session.canceller(),
            identity: session.identity(),
            control: &self.control,
            deadline: claim.timeout().map(|timeout| timeout.saturating_sub(begun.elapsed())),
            stop,
            completes: false,
        }
    }

    /// What follows from an error.
    fn judge(&self, claim: &Claim, trouble: &Trouble, mut report: Report) -> Ending {
        let mut fault = trouble.fault().clone();
        let sqlstate = fault.sqlstate.as_deref();
        if sqlstate == Some(retry::LATER) {
            return Ending::GiveBack { wait: claim.retry().interval };
        }
        if let Some(hint) = retry::mode_hint(claim.mode(), sqlstate) {
            fault.hint = Some(hint.to_owned());
        }
        let lost = trouble.connection_lost();
        let verdict = self.verdict(claim, sqlstate, lost);
        let outcome = if lost && claim.at_most_once() { Outcome::Unknown } else { Outcome::Failed };
        report.error = Some(fault);
        Ending::Failed { outcome, verdict, report: Box::new(report) }
    }

    fn verdict(&self, claim: &Claim, sqlstate: Option<&str>, lost: bool) -> Verdict {
        retry::decide(&claim.past(), sqlstate, lost, &self.fatal_sqlstates, &mut rand::rng())
    }

    /// What follows from having been stopped.
    fn stopped(
        &self,
        claim: &Claim,
        reason: Reason,
        trouble: Option<Trouble>,
        mut report: Report,
    ) -> Ending {
        let (outcome, verdict, message) = match reason {
            Reason::BackendGone => {
                let gone = trouble.unwrap_or_else(Trouble::backend_gone);
                return self.judge(claim, &gone, report);
            }
            Reason::Told(Stop::Lost) => return Ending::Lost,
            Reason::Told(Stop::Shutdown) if !claim.at_most_once() => {
                return Ending::GiveBack { wait: std::time::Duration::ZERO };
            }
            Reason::Told(Stop::Shutdown) => {
                (Outcome::Unknown, Verdict::Final, "the worker was stopped".to_owned())
            }
            Reason::Told(Stop::Cancelled) => {
                (Outcome::Cancelled, Verdict::Final, "cancelled on request".to_owned())
            }
            Reason::Deadline => (
                Outcome::TimedOut,
                self.verdict(claim, None, false),
                format!("ran longer than its timeout of {:?}", claim.timeout().unwrap_or_default()),
            ),
        };
        let seen = trouble.map(|trouble| trouble.fault().clone()).unwrap_or_default();
        report.error = Some(Fault { message, detail: Some(seen.message), hint: None, ..seen });
        Ending::Failed { outcome, verdict, report: Box::new(report) }
    }
}

/// read_only_sql_transaction
const READ_ONLY: &str = "25006";

/// What an error of the completion's flight means.
pub(crate) enum Completion {
    Lost,
    Refused(Trouble),
    InDoubt(Option<Trouble>),
}

pub(crate) fn completion_trouble(error: Error) -> Completion {
    let trouble = Trouble::from(error);
    match (&trouble, trouble.fault().sqlstate.as_deref()) {
        (_, Some(LOST)) => Completion::Lost,
        (_, Some(OWN_TRANSACTION)) => {
            let message = trouble.fault().message.clone();
            let hint = "Leave out COMMIT and ROLLBACK, or enqueue with --mode autocommit. \
                        What the task committed itself stays.";
            Completion::Refused(Trouble::refused(retry::FATAL, &message, hint))
        }
        (_, Some(READ_ONLY)) => Completion::Refused(Trouble::refused(
            READ_ONLY,
            "the task's transaction is read-only: its completion cannot be written",
            "Leave out SET TRANSACTION READ ONLY.",
        )),
        (Trouble::Fault(_), _) => Completion::Refused(trouble),
        (Trouble::ConnectionLost(_) | Trouble::Confused(_), _) => {
            Completion::InDoubt(Some(trouble))
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

fn failed(outcome: Outcome, verdict: Verdict, fault: Fault) -> Ending {
    let report = Box::new(Report { error: Some(fault), ..Report::default() });
    Ending::Failed { outcome, verdict, report }
}

/// A statement that is not even sent.
fn refusal(claim: &Claim, forbidden: &scan::Forbidden) -> Fault {
    let before = &claim.statement()[..forbidden.offset()];
    Fault {
        sqlstate: Some("0A000".to_owned()),
        message: forbidden.to_string(),
        hint: Some(forbidden.hint().to_owned()),
        position: u32::try_from(before.chars().count() + 1).ok(),
        ..Fault::default()
    }
}

impl Ending {
    /// The server's code for why it did not succeed.
    pub(crate) fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Failed { report, .. } => report.error.as_ref()?.sqlstate.as_deref(),
            _ => None,
        }
    }
}
