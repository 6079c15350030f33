//! Effects of `schema.sql` on a task's row. The functions have the names of those in the schema,
//! but know no limits and no runs.

use queue::retry::{self, AttemptError, RetryDecision, RetryState};
use queue::{Backoff, Outcome, RetryPolicy, State};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

use crate::model::{Bug, Model};
use crate::world::{Claim, Fault, Row, World};

/// A rule that a step itself violates.
pub(crate) type RuleViolation = String;

impl Model {
    /// Every change of state uses this function.
    pub(crate) fn change(&self, row: &mut Row, next: Option<State>) -> Result<(), RuleViolation> {
        let Some(from) = row.state else { return Err("an ended task changes".into()) };
        if !from.can_transition_to(next) {
            return Err(format!("{from} may not become {next:?}"));
        }
        self.used.borrow_mut().insert((from, next));
        row.state = next;
        if next != Some(State::Running) {
            (row.token, row.claimed_by) = (None, None);
        }
        Ok(())
    }

    /// The condition `WHERE id = … AND token = …`. Also checks that only the live claim meets it.
    pub(crate) fn fence(&self, row: &Row, claim: Claim) -> Result<bool, RuleViolation> {
        let passes = match self.size.planted {
            Some(Bug::FinishById) => row.state.is_some(),
            Some(Bug::FenceByAttempt) => {
                row.state == Some(State::Running) && row.attempt == claim.attempt
            }
            _ => row.token == Some(claim.token),
        };
        if passes && row.token != Some(claim.token) {
            return Err("a stale claim changed the task".into());
        }
        Ok(passes)
    }

    /// `mill.complete`. Returns false if the claim is lost.
    pub(crate) fn complete(&self, world: &mut World, claim: Claim) -> Result<bool, RuleViolation> {
        let row = &mut world.rows[usize::from(claim.task)];
        if !self.fence(row, claim)? {
            return Ok(false);
        }
        self.end(row, Outcome::Succeeded)?;
        if self.size.planted != Some(Bug::AsynchronousCompletion) {
            world.durable.clone_from(&world.rows);
        }
        Ok(true)
    }

    fn end(&self, row: &mut Row, outcome: Outcome) -> Result<(), RuleViolation> {
        self.change(row, None)?;
        let kept = Row::new(State::Pending, 0);
        *row = Row {
            state: None,
            outcome: Some(outcome),
            attempt: row.attempt,
            again: row.again,
            effects: row.effects,
            ..kept
        };
        Ok(())
    }

    /// `mill.fail` with the product's retry decision, or `mill.release_claim`.
    pub(crate) fn record(
        &self,
        world: &mut World,
        claim: Claim,
        fault: Fault,
    ) -> Result<(), RuleViolation> {
        let row = &world.rows[usize::from(claim.task)];
        if !self.fence(row, claim)? {
            return Ok(());
        }
        let (outcome, sqlstate) = match fault {
            Fault::Snooze => return self.release(world, claim, State::Scheduled),
            Fault::Interrupted => return self.release(world, claim, State::Pending),
            Fault::ConnectionLost if self.size.at_most_once => (Outcome::Unknown, None),
            Fault::Error => (Outcome::Failed, Some("22012")),
            Fault::Serialization => (Outcome::Failed, Some("40001")),
            Fault::Fatal => (Outcome::Failed, Some(retry::FATAL)),
            Fault::ConnectionLost => (Outcome::Failed, None),
            Fault::Timeout => (Outcome::TimedOut, None),
            Fault::Cancelled => (Outcome::Cancelled, None),
        };
        let verdict = match fault {
            Fault::Cancelled => RetryDecision::Final,
            _ => self.decide(row, sqlstate, fault == Fault::ConnectionLost),
        };
        self.fail(world, claim.task, outcome, Ended::By(verdict))
    }

    fn decide(&self, row: &Row, sqlstate: Option<&str>, connection_lost: bool) -> RetryDecision {
        let policy = RetryPolicy {
            max_attempts: self.size.max_attempts,
            interval: Duration::from_secs(1),
            backoff: Backoff::Fixed,
            jitter: false,
        };
        let past = RetryState {
            retry: &policy,
            failures: row.failures.into(),
            transient_failures: row.transient_failures.into(),
            mode: self.size.mode,
            at_most_once: self.size.at_most_once,
        };
        let fatal: Vec<String> = retry::FATAL_CLASSES.iter().map(ToString::to_string).collect();
        let mut random = StdRng::seed_from_u64(1);
        let error = AttemptError { sqlstate, connection_lost, condition: None };
        retry::decide(&past, error, &fatal, &mut random)
    }

    /// `mill.fail`.
    pub(crate) fn fail(
        &self,
        world: &mut World,
        task: u8,
        outcome: Outcome,
        ended: Ended,
    ) -> Result<(), RuleViolation> {
        let row = &mut world.rows[usize::from(task)];
        row.lost += u8::from(outcome == Outcome::Lost);
        row.ended += 1;
        if row.lost > self.size.max_crashes || row.ended > self.max_attempts() {
            return Err("a task exceeds its maximum attempts".into());
        }
        if row.cancel_requested || ended == Ended::By(RetryDecision::Final) {
            // A failure of its own remains the outcome of a cancelled task.
            let own = matches!(outcome, Outcome::Failed | Outcome::TimedOut | Outcome::Unknown)
                && !matches!(
                    ended,
                    Ended::By(RetryDecision::Transient { .. } | RetryDecision::Interrupted { .. })
                        | Ended::Crash
                );
            let outcome = if row.cancel_requested && !own { Outcome::Cancelled } else { outcome };
            self.end(row, outcome)?;
        } else {
            let wait = match ended {
                Ended::By(RetryDecision::Failure { retry_in }) => {
                    row.failures += 1;
                    retry_in
                }
                Ended::By(
                    RetryDecision::Transient { retry_in } | RetryDecision::Interrupted { retry_in },
                ) => {
                    row.transient_failures += 1;
                    retry_in
                }
                Ended::By(RetryDecision::Final) | Ended::Crash => {
                    row.crashes += u8::from(self.size.planted != Some(Bug::CrashNotCounted));
                    Duration::ZERO
                }
            };
            let next = if wait.is_zero() { State::Pending } else { State::Scheduled };
            self.change(row, Some(next))?;
        }
        world.durable.clone_from(&world.rows);
        Ok(())
    }

    /// `mill.release_claim`. `next` is scheduled if the task waits.
    pub(crate) fn release(
        &self,
        world: &mut World,
        claim: Claim,
        next: State,
    ) -> Result<(), RuleViolation> {
        let row = &mut world.rows[usize::from(claim.task)];
        if !self.fence(row, claim)? {
            return Ok(());
        }
        if row.cancel_requested {
            return self.fail(
                world,
                claim.task,
                Outcome::Cancelled,
                Ended::By(RetryDecision::Final),
            );
        }
        row.attempt = row.attempt.saturating_sub(1);
        self.change(row, Some(next))?;
        world.durable.clone_from(&world.rows);
        Ok(())
    }

    /// `mill.reclaim`, for one row.
    pub(crate) fn reclaim(&self, world: &mut World, task: u8) -> Result<(), RuleViolation> {
        let crashes = world.rows[usize::from(task)].crashes;
        let outcome = if self.size.at_most_once { Outcome::Unknown } else { Outcome::Lost };
        let last = self.size.at_most_once || crashes + 1 >= self.size.max_crashes;
        let ended = if last { Ended::By(RetryDecision::Final) } else { Ended::Crash };
        self.fail(world, task, outcome, ended)
    }

    /// `mill.cancel`.
    pub(crate) fn cancel(&self, world: &mut World, task: u8) -> Result<(), RuleViolation> {
        let row = &mut world.rows[usize::from(task)];
        if row.state == Some(State::Running) {
            row.cancel_requested = true;
        } else {
            self.end(row, Outcome::Cancelled)?;
        }
        world.durable.clone_from(&world.rows);
        Ok(())
    }

    /// `mill.retry`.
    pub(crate) fn retry(&self, world: &mut World, task: u8) -> Result<(), RuleViolation> {
        let row = &mut world.rows[usize::from(task)];
        match row.state {
            Some(_) => self.change(row, Some(State::Pending))?,
            None => {
                let (attempt, again) = (row.attempt, row.again + 1);
                *row = Row {
                    attempt,
                    again,
                    ..Row::new(State::Pending, self.size.transient_failures)
                };
            }
        }
        world.durable.clone_from(&world.rows);
        Ok(())
    }
}

/// The argument of `mill.fail`: the worker's retry decision, or the reclaimer's report that the
/// worker died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    By(RetryDecision),
    Crash,
}
