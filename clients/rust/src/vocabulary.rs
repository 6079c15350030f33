//! Enums of the schema: states, outcomes, priorities, modes, isolation levels and backoffs.

use crate::pg_enum;

pg_enum! {
    /// State of a live task.
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    State {
        /// Not due yet.
        Scheduled = "scheduled",
        /// Waits for a permit.
        Blocked = "blocked",
        /// May be claimed.
        Pending = "pending",
        /// Claimed by a reader.
        Running = "running",
    }
}

impl State {
    /// Returns whether the state graph has a transition from this state to `next`, where `None` is
    /// the end of the live task. ARCHITECTURE.md of pgmill shows the graph.
    #[must_use]
    pub fn can_transition_to(self, next: Option<Self>) -> bool {
        use State::{Blocked, Pending, Running, Scheduled};
        match (self, next) {
            // The lines are: promote and retry; a permit, or a later due time; the loss of a permit,
            // a later due time, or a claim; fail, release and reclaim; every end.
            (Scheduled, Some(Blocked | Pending))
            | (Blocked, Some(Scheduled | Pending))
            | (Pending, Some(Scheduled | Blocked | Running))
            | (Running, Some(Scheduled | Blocked | Pending))
            | (Scheduled | Blocked | Pending | Running, None) => true,
            (Scheduled, Some(Scheduled | Running))
            | (Blocked, Some(Blocked | Running))
            | (Pending, Some(Pending))
            | (Running, Some(Running)) => false,
        }
    }
}

pg_enum! {
    /// Outcome of an attempt.
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    Outcome {
        /// The statement succeeded.
        Succeeded = "succeeded",
        /// The statement raised an error.
        Failed = "failed",
        /// The task was cancelled.
        Cancelled = "cancelled",
        /// The attempt's deadline passed.
        TimedOut = "timed_out",
        /// The attempt's worker died.
        Lost = "lost",
        /// The statement runs at most once, and it is unknown whether it ended.
        Unknown = "unknown",
        /// The server ended the attempt, which does not count.
        Interrupted = "interrupted",
    }
}

pg_enum! {
    /// Priority of a task within its queue.
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    Priority {
        /// Lowest.
        Low = "low",
        /// The default.
        Normal = "normal",
        /// Above normal.
        High = "high",
        /// Above high.
        Critical = "critical",
        /// Highest.
        Reserved = "reserved",
    }
}

pg_enum! {
    /// Execution mode of a statement.
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    Mode {
        /// In one transaction with the completion of the task: exactly once.
        Transaction = "transaction",
        /// Without a transaction of the worker, for statements that refuse to run in one: at least
        /// once.
        Autocommit = "autocommit",
    }
}

pg_enum! {
    /// Isolation level of a task's transaction.
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    Isolation {
        /// Each statement sees what was committed when it started.
        ReadCommitted = "read_committed",
        /// All statements see what was committed when the first one started.
        RepeatableRead = "repeatable_read",
        /// The effects are those of some serial order of the transactions.
        Serializable = "serializable",
    }
}

pg_enum! {
    /// Growth of the wait before a retry.
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    Backoff {
        /// Always the retry interval.
        Fixed = "fixed",
        /// Doubles with each failure.
        Exponential = "exponential",
    }
}

pg_enum! {
    /// State of a run.
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    RunState {
        /// At least one task has not ended.
        Running = "running",
        /// Every task has succeeded, or has failed with a failure that is ignored, or could not
        /// run.
        Succeeded = "succeeded",
        /// A task has failed, and its failure is not ignored.
        Failed = "failed",
        /// The run or one of its tasks was cancelled.
        Cancelled = "cancelled",
    }
}
