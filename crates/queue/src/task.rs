//! The claim of a running task, with its retry policy, and the state of a task after an attempt.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use pgmill_client::{Backoff, Isolation, Mode, Outcome, RunId, TaskId, Traceparent};
use serde_json::value::RawValue;

use crate::id::{LimitId, Token};
use crate::pg_enum;
use crate::receipt::Receipt;

/// State of a task after the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The task is finished.
    Finished(Outcome),
    /// Another attempt follows.
    Retried(Outcome),
    /// The claim was released, and the attempt is not counted.
    Released,
    /// The claim was lost before, and nothing was changed.
    Lost,
}

pg_enum! {
    /// The object that a limit applies to.
    LimitKind {
        /// Tasks with one concurrency key.
        Key = "key",
        /// Tasks of one group in one run.
        Group = "group",
        /// Tasks of one queue.
        Queue = "queue",
        /// Tasks that ran when the server crashed.
        Crash = "crash",
    }
}

pg_enum! {
    /// Share of the fleet's readers that run only tasks of priority reserved.
    ReservedCapacity {
        /// No readers.
        None = "none",
        /// 10 percent.
        Low = "low",
        /// 15 percent.
        Medium = "medium",
        /// 25 percent.
        High = "high",
    }
}

/// Number and timing of retries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Number of failed attempts after which the task fails; the first attempt counts too.
    pub max_attempts: u32,
    /// Wait before the second attempt.
    pub interval: Duration,
    /// Growth of the wait after that.
    pub backoff: Backoff,
    /// Whether the wait is drawn at random between zero and the full wait.
    pub jitter: bool,
}

/// What a task runs.
#[derive(Clone, Debug)]
pub struct Body {
    pub(crate) statement: String,
    pub(crate) params: Option<Vec<Box<RawValue>>>,
}

/// A running task, and the right to record its end. A claim belongs to one reader, which is one of
/// the sessions in which a worker runs tasks. Functions that end the task consume its claim. If a
/// claim is dropped instead, the task stays `running` until the reclaimer returns it to the queue.
#[derive(Debug)]
#[must_use = "a claim that is dropped leaves its task running until the worker is declared dead"]
pub struct Claim {
    pub(crate) id: TaskId,
    pub(crate) token: Token,
    pub(crate) attempt: u32,
    pub(crate) failures: u32,
    pub(crate) transient_failures: u32,
    pub(crate) retry: RetryPolicy,
    pub(crate) timeout: Option<Duration>,
    pub(crate) mode: Mode,
    pub(crate) at_most_once: bool,
    pub(crate) external: bool,
    pub(crate) explain: bool,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) traceparent: Option<Traceparent>,
    /// Comment that the worker appends to each statement that it sends.
    pub(crate) comment: Option<String>,
    pub(crate) queue: String,
    pub(crate) name: Option<String>,
    /// `None` if the claim left it out because of its size.
    pub(crate) body: Option<Body>,
    pub(crate) limits: Vec<LimitId>,
    pub(crate) run: Option<RunId>,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) due_at: Timestamp,
    pub(crate) claimed_at: Timestamp,
    pub(crate) receipt: Option<Receipt>,
}

impl Claim {
    /// The task's id.
    #[must_use]
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// The fencing token, which every change of the task must specify.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Attempt number, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Maximum run time of the statement.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The retry policy.
    #[must_use]
    pub fn retry(&self) -> &RetryPolicy {
        &self.retry
    }

    /// Execution mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the statement must not be started again if its end is unknown.
    #[must_use]
    pub fn at_most_once(&self) -> bool {
        self.at_most_once
    }

    /// The receipt that the task's target stores, with the epoch of this claim; `None` if the task has
    /// no target.
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        self.receipt
    }

    /// Whether the statement has effects outside the cluster.
    #[must_use]
    pub fn external(&self) -> bool {
        self.external
    }

    /// Whether to keep the plan of the statement instead of its rows.
    #[must_use]
    pub fn explain(&self) -> bool {
        self.explain
    }

    /// Isolation level of the transaction; `None` for the default of the session.
    #[must_use]
    pub fn isolation(&self) -> Option<Isolation> {
        self.isolation
    }

    /// The queue of the task.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Name of the task.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether statement and params are known. If not, they are empty until
    /// [`crate::claim::load`] has fetched them.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.body.is_some()
    }

    /// Sets statement and params.
    pub fn set_body(&mut self, body: Body) {
        self.body = Some(body);
    }

    /// The SQL to run.
    #[must_use]
    pub fn statement(&self) -> &str {
        self.body.as_ref().map_or("", |body| &body.statement)
    }

    /// Trace context of the caller who enqueued the task.
    #[must_use]
    pub fn traceparent(&self) -> Option<&Traceparent> {
        self.traceparent.as_ref()
    }

    /// Sets the trace context that a comment at the end of each statement of the task names, in the
    /// format of sqlcommenter.
    pub fn set_trace_comment(&mut self, traceparent: &Traceparent) {
        // On a line of its own, because the statement may end with a comment that starts with --.
        self.comment = Some(format!("\n/*traceparent='{traceparent}'*/"));
    }

    /// Returns the SQL to send for this part of [`Claim::statement`]: with the comment, if there is
    /// one. The comment is at the end, so that positions of errors stay the same.
    #[must_use]
    pub fn with_comment<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        match &self.comment {
            Some(comment) => Cow::Owned(format!("{sql}{comment}")),
            None => Cow::Borrowed(sql),
        }
    }

    /// Time of the enqueue, by the database clock.
    #[must_use]
    pub fn enqueued_at(&self) -> Timestamp {
        self.enqueued_at
    }

    /// Time from which the attempt could start, by the database clock.
    #[must_use]
    pub fn due_at(&self) -> Timestamp {
        self.due_at
    }

    /// Time of the claim, by the database clock.
    #[must_use]
    pub fn claimed_at(&self) -> Timestamp {
        self.claimed_at
    }

    /// Values of $1, $2, … as the JSON that the server stores, with any number of digits and any
    /// depth.
    #[must_use]
    pub fn params(&self) -> Option<&[Box<RawValue>]> {
        self.body.as_ref()?.params.as_deref()
    }

    /// The limits of the task. The task holds their permits, and other tasks may wait for these.
    #[must_use]
    pub fn limits(&self) -> &[LimitId] {
        &self.limits
    }

    /// The run of the task. Other tasks of the run may wait for the end of this task.
    #[must_use]
    pub fn run(&self) -> Option<RunId> {
        self.run
    }

    /// Time from the due time of the task to its claim.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.claimed_at.duration_since(self.due_at).try_into().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use pgmill_client::{Priority, State};

    use super::*;

    #[test]
    fn every_label_parses_back() {
        for state in State::ALL {
            assert_eq!(state.as_str().parse(), Ok(*state));
        }
        for outcome in Outcome::ALL {
            assert_eq!(outcome.as_str().parse(), Ok(*outcome));
        }
        assert_eq!(
            "urgent".parse::<Priority>(),
            Err("\"urgent\" is not one of low, normal, high, critical, reserved".to_owned())
        );
    }

    #[test]
    fn a_task_can_only_run_from_pending_and_can_always_end() {
        for from in State::ALL {
            assert_eq!(from.can_transition_to(Some(State::Running)), *from == State::Pending);
            assert!(from.can_transition_to(None));
        }
    }
}
