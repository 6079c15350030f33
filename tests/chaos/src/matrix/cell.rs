//! A cell of the matrix: one fault at one moment of a task's execution, in one execution mode, and
//! the promise about the outcome.

use std::fmt;

use super::fault::{Fault, Setup};

/// Execution mode of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Transaction,
    AtLeastOnce,
    AtMostOnce,
}

/// Database in which the task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The queue's database.
    Queue,
    /// A target: a database on another server.
    Target,
}

/// Moment of the task's execution at which the fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The task is being enqueued; the client retries with the same key until it has a reply.
    Enqueue,
    /// The task is claimed; BEGIN is on its way to the server.
    Claimed,
    /// The task's statement has left an effect and is still running.
    Executing,
    /// The task's statement is finished. In transaction mode, COMMIT is being executed (a deferred
    /// trigger waits); otherwise the completion is on its way.
    Completing,
    /// The task is committed, or in autocommit mode completed, and the reply is on its way.
    CommitSent,
    /// The task is committed in its target, and the statement that records its success in the queue
    /// is on its way.
    Recording,
    /// The task is executing, and a heartbeat of its worker is on its way.
    Heartbeat,
    /// The task is due some seconds later.
    Scheduled,
    /// There is no task; it arrives after or during the fault.
    Idle,
}

/// Promise for tasks whose sessions go to two primaries.
pub(crate) const MAY_LACK_EFFECT: &str = "effect may be lost";

/// Promise for tasks of which nothing has reached the standby.
pub(crate) const MAY_BE_LOST: &str = "may be lost with its effect";

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) fault: Fault,
    pub(crate) moment: Moment,
    pub(crate) mode: Mode,
    pub(crate) place: Place,
}

impl Cell {
    pub(crate) fn setup(&self) -> Setup {
        match self.place {
            Place::Queue => self.fault.setup(),
            Place::Target => Setup::Target,
        }
    }

    /// Returns whether worker and session of the task survive the fault, so that a held message
    /// arrives afterwards.
    pub(crate) fn held_message_arrives(&self) -> bool {
        match self.fault {
            Fault::WorkerStopped
            | Fault::Drain
            | Fault::DiskFrozen
            | Fault::Latency
            | Fault::TargetFrozen
            | Fault::BothFrozen => true,
            Fault::ServerKilled | Fault::ServerFrozen => self.place == Place::Target,
            _ => false,
        }
    }

    /// Returns whether the mode's promise permits a duplicate effect.
    pub(crate) fn may_duplicate(&self) -> bool {
        self.mode == Mode::AtLeastOnce
    }

    /// Returns whether the mode's promise permits the outcome `unknown`.
    pub(crate) fn may_be_unknown(&self) -> bool {
        self.mode == Mode::AtMostOnce
    }

    /// Returns whether the task may be missing afterwards, or have succeeded without its effect.
    pub(crate) fn may_be_lost(&self) -> bool {
        self.may_be_missing() || self.may_be_on_old_primary()
    }

    /// Returns whether the effect may be on the old primary only, although the success is recorded
    /// on the new one. In transaction mode both are in one transaction.
    fn may_be_on_old_primary(&self) -> bool {
        self.fault == Fault::AsyncOldPrimary && self.mode != Mode::Transaction
    }

    /// Returns whether the task may be missing afterwards: nothing of it had reached the standby.
    pub(crate) fn may_be_missing(&self) -> bool {
        self.fault.standby_is_asynchronous() && self.moment == Moment::CommitSent
    }

    /// Returns whether each trial must leave an unsuccessful attempt, which proves that the fault
    /// hit its task. In other cells the task may succeed despite the fault, or a crash may lose the
    /// attempt.
    pub(crate) fn interrupts(&self) -> bool {
        let unhurt = self.fault.is_tolerated()
            || matches!(
                self.fault,
                Fault::Drain
                    | Fault::ShutdownTimeout
                    | Fault::BackendStopped
                    | Fault::Sessions(
                        "pgmill control %" | "pgmill claimer %" | "pgmill listener %"
                    )
                    | Fault::TasksLocked
                    | Fault::WorkersLocked
                    | Fault::LocksExhausted
                    | Fault::ReadOnly
                    | Fault::ServerFrozen
                    | Fault::TargetFrozen
                    | Fault::BothFrozen
                    | Fault::DiskFrozen
                    | Fault::StandbyMissing
            );
        // A task in a target runs on while the queue is down.
        let unhurt = unhurt || self.place == Place::Target && self.fault == Fault::ServerKilled;
        // Claims commit asynchronously, so a crash may lose the claim, and with it the attempt. In
        // autocommit mode the claim is on disk, because the commit of the effect has flushed it. The
        // claim of a task with a target is on disk before the task starts.
        let forgotten = self.mode == Mode::Transaction
            && self.place == Place::Queue
            && matches!(
                self.fault,
                Fault::BackendKilled
                    | Fault::ServerKilled
                    | Fault::ServerImmediate
                    | Fault::WalDiskFull
            );
        // Nothing flushes the claim of a task whose effect comes after the promotion.
        let promoted = self.mode == Mode::Transaction && self.fault.promotes();
        let forgotten = forgotten || promoted || self.fault.keeps_old_primary();
        let unhurt = unhurt || forgotten;
        self.moment == Moment::Executing && !unhurt
    }

    /// Returns the promise as shown in the table.
    pub(crate) fn promise(&self) -> &'static str {
        match (self.fault, self.mode) {
            _ if self.may_be_missing() => MAY_BE_LOST,
            _ if self.may_be_on_old_primary() => MAY_LACK_EFFECT,
            (Fault::OwnCommit | Fault::OwnCommitInBlock, _) => "refused, no effect",
            (_, Mode::Transaction) => "exactly once",
            (_, Mode::AtLeastOnce) => "may duplicate",
            (_, Mode::AtMostOnce) => "may be unknown",
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enqueue => "enqueue",
            Self::Claimed => "claimed",
            Self::Executing => "executing",
            Self::Completing => "completing",
            Self::CommitSent => "commit sent",
            Self::Recording => "recording",
            Self::Heartbeat => "heartbeat",
            Self::Scheduled => "scheduled",
            Self::Idle => "idle",
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transaction => "transaction",
            Self::AtLeastOnce => "at least once",
            Self::AtMostOnce => "at most once",
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queue => "queue",
            Self::Target => "target",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {} | {} | {}", self.fault, self.moment, self.mode, self.place)
    }
}
