//! Several short tasks of one queue in one transaction: a shared commit.
//!
//! Each task has its own savepoint and its own fenced completion, and between two tasks the session
//! forgets all that it forgets between two transactions. In a group a task either succeeds or is
//! undone and run again alone: whatever goes wrong, its group is never the reason that is recorded.
//!
//! All goes out in one flight, and the completion of all that went well, with COMMIT, in a second.

use std::time::{Duration, Instant};

use queue::complete::Success;
use queue::fail::Report;
use queue::settle::Settled;
use queue::{Mode, scan};
use serde_json::Value;
use tokio::sync::watch;
use tokio_postgres::Error;

use crate::execute::{Completion, Executor, completion_trouble};
use crate::guard::{Guard, Guarded};
use crate::held::{Stop, Work};
use crate::rows::Rows;
use crate::session::{Session, last_value};
use crate::statement::drain;
use crate::trouble::Trouble;

/// A group that takes this many budgets is stopped: its tasks are not as short as was thought, or
/// wait for one another.
const PATIENCE_BUDGETS: u32 = 10;

/// What became of the tasks of a group.
#[derive(Default)]
pub(crate) struct Grouped {
    /// Committed.
    pub(crate) succeeded: Vec<(Work, Duration)>,
    /// Without effect; each has to be run alone.
    pub(crate) undone: Vec<Work>,
    /// Never begun, because one before it took too long.
    pub(crate) waiting: Vec<Work>,
    /// Not this worker's any more.
    pub(crate) lost: Vec<Work>,
    /// The tasks of this queue had better run alone for a while.
    pub(crate) slow: bool,
}

/// A task on its way through the group.
struct Run {
    work: Work,
    state: State,
}

enum State {
    Waiting,
    /// Its statement is through; `until`: from the begin of the transaction.
    Through {
        rows: Rows,
        until: Duration,
    },
    Undone,
}

/// Whether the task may run in one transaction with others. Not with effects that no savepoint
/// undoes, nor with what outlasts one: the mode of constraints, or a timeout below the patience with
/// the group. Parameters take a round trip of their own.
pub(crate) fn may_share(work: &Work) -> bool {
    let claim = &work.claim;
    let Some(budget) = work.shared else { return false };
    claim.mode() == Mode::Transaction
        && !claim.external()
        && claim.params().is_none()
        && !claim.explain()
        && claim.timeout().is_none_or(|timeout| timeout > budget * PATIENCE_BUDGETS)
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
    pub(crate) async fn together(
        &self,
        session: &mut Session,
        works: Vec<Work>,
        budget: Duration,
    ) -> Grouped {
        let begun = Instant::now();
        let patience = budget * PATIENCE_BUDGETS;
        let mut runs: Vec<Run> =
            works.into_iter().map(|work| Run { work, state: State::Waiting }).collect();
        let (_nobody, mut told) = watch::channel(None);
        let guard = self.group_guard(session, patience, &mut told);
        let (ran, slow) = match guard.run(run_all(session, &mut runs, begun, patience)).await {
            Guarded::Done(ran) => (Some(ran), begun.elapsed() > patience),
            Guarded::Stopped(_, last) => {
                session.spend();
                (last, true)
            }
        };
        let mut grouped = match ran {
            Some(Ok(xact)) => self.commit_all(session, runs, &xact, patience).await,
            Some(Err(Trouble::Fault(_))) => {
                session.reset().await;
                undo(runs)
            }
            // Nothing of it can commit; it may hold locks, on which the tasks themselves would wait.
            Some(Err(Trouble::ConnectionLost(_) | Trouble::Confused(_))) | None => {
                session.spend();
                self.control.ensure_gone(session.identity()).await;
                undo(runs)
            }
        };
        grouped.slow |= slow;
        grouped
    }

    /// Commits those that are through.
    async fn commit_all(
        &self,
        session: &mut Session,
        runs: Vec<Run>,
        xact: &str,
        patience: Duration,
    ) -> Grouped {
        let (through, mut grouped) = sort(session, runs);
        if through.is_empty() {
            session.reset().await;
            return grouped;
        }
        let successes: Vec<Success<'_>> = through
            .iter()
            .map(|through| Success {
                claim: &through.work.claim,
                ran_until: Some(through.until),
                report: &through.report,
            })
            .collect();
        let (_nobody, mut told) = watch::channel(None);
        let guard = self.group_guard(session, patience, &mut told);
        let finish = match guard.run(session.finish(&successes, xact)).await {
            Guarded::Done(finish) => Some(finish),
            Guarded::Stopped(_, finish) => {
                session.spend();
                finish
            }
        };
        if finish.as_ref().is_none_or(|finish| !finish.clean) {
            session.reset().await;
        }
        let committed = finish.map(|finish| finish.committed);
        self.conclude(session, through, committed, &mut grouped).await;
        grouped
    }

    /// What the answer to COMMIT means for each of the tasks.
    async fn conclude(
        &self,
        session: &mut Session,
        through: Vec<Through>,
        committed: Option<Result<(), Error>>,
        grouped: &mut Grouped,
    ) {
        let trouble = match committed {
            Some(Ok(())) => {
                let succeeded = through.into_iter().map(|through| (through.work, through.ran));
                grouped.succeeded.extend(succeeded);
                return;
            }
            Some(Err(error)) => completion_trouble(error),
            None => Completion::InDoubt(None),
        };
        grouped.slow = true;
        if !matches!(trouble, Completion::InDoubt(_)) {
            grouped.undone.extend(through.into_iter().map(|through| through.work));
            return;
        }
        // The answer to COMMIT never came: the tasks' rows know.
        session.spend();
        for Through { work, ran, .. } in through {
            match self.control.settle(&work.claim).await {
                Settled::Recorded(_) => grouped.succeeded.push((work, ran)),
                Settled::StillClaimed => grouped.undone.push(work),
                Settled::Lost => grouped.lost.push(work),
            }
        }
    }

    /// Orders to single tasks wait until the group is over, a second at most.
    fn group_guard<'a>(
        &'a self,
        session: &Session,
        patience: Duration,
        told: &'a mut watch::Receiver<Option<Stop>>,
    ) -> Guard<'a> {
        Guard {
            canceller: session.canceller(),
            identity: session.identity(),
            control: &self.control,
            deadline: Some(patience),
            stop: told,
            completes: true,
        }
    }
}

/// A task whose statement is through.
struct Through {
    work: Work,
    until: Duration,
    ran: Duration,
    report: Report,
}

/// Runs the tasks in the order they stand in. Returns the transaction's id.
async fn run_all(
    session: &mut Session,
    runs: &mut [Run],
    begun: Instant,
    patience: Duration,
) -> Result<String, Trouble> {
    let mut xact = None;
    let mut next = 0;
    while next < runs.len() && begun.elapsed() < patience {
        next += flight(session, &mut runs[next..], &mut xact, begun).await?;
    }
    Ok(xact.unwrap_or_default())
}

/// Sends the tasks in one flight. Of the first that fails, what it did is undone; those after it wait
/// for the next flight. Returns how many were run.
async fn flight(
    session: &mut Session,
    runs: &mut [Run],
    xact: &mut Option<String>,
    begun: Instant,
) -> Result<usize, Trouble> {
    let first = &runs[0].work.claim;
    let opened = match xact {
        None => session.begin_shared(first).await?,
        Some(_) => session.begin_again(first).await?,
    };
    let mut answers = Vec::with_capacity(runs.len());
    for (n, run) in runs.iter().enumerate() {
        let next = runs.get(n + 1).map(|run| &run.work.claim);
        answers.push(session.send_shared(run.work.claim.statement(), next).await?);
    }
    let id = last_value(opened).await?;
    xact.get_or_insert(id.unwrap_or_default());
    for (n, (run, statement)) in runs.iter_mut().zip(answers).enumerate() {
        let mut rows = Rows::default();
        match drain(statement, &mut rows).await {
            Ok(()) => run.state = State::Through { rows, until: begun.elapsed() },
            Err(Trouble::Fault(_)) => {
                // The server refuses the rest of the flight until it is back at the savepoint.
                session.undo_last().await?;
                run.state = State::Undone;
                return Ok(n + 1);
            }
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(runs.len())
}

/// Those that are through, with what they leave in history, and the others.
fn sort(session: &Session, runs: Vec<Run>) -> (Vec<Through>, Grouped) {
    let Some(mut notices) = session.notices().take_owned() else { return (Vec::new(), undo(runs)) };
    let mut grouped = Grouped::default();
    let mut through = Vec::new();
    let mut before = Duration::ZERO;
    for Run { work, state } in runs {
        let owner = session.owner(&work.claim);
        let own: Vec<Value> = notices
            .extract_if(.., |(raised, _)| *raised == owner)
            .map(|(_, notice)| notice)
            .collect();
        match state {
            State::Waiting => grouped.waiting.push(work),
            State::Undone => grouped.undone.push(work),
            State::Through { rows, until } => {
                let report = Report {
                    rows: Some(rows.count()),
                    notices: (!own.is_empty()).then_some(Value::Array(own)),
                    result: rows.into_result(),
                    plan: None,
                    error: None,
                };
                let ran = until.saturating_sub(before);
                through.push(Through { work, until, ran, report });
                before = until;
            }
        }
    }
    if !notices.is_empty() {
        // Raised by a task that gave the session another name: nobody knows which.
        grouped.slow = true;
        grouped.undone.extend(through.drain(..).map(|through| through.work));
    }
    (through, grouped)
}

/// Nothing has had an effect.
fn undo(runs: Vec<Run>) -> Grouped {
    let mut grouped = Grouped { slow: true, ..Grouped::default() };
    for Run { work, state } in runs {
        match state {
            State::Waiting => grouped.waiting.push(work),
            State::Undone | State::Through { .. } => grouped.undone.push(work),
        }
    }
    grouped
}
