//! Enums of schedules, as defined in the schema.

queue::pg_enum! {
    /// What makes a schedule fire.
    FireMode {
        /// Only a user, who starts a run manually.
        Manual = "manual",
        /// The clock.
        Scheduled = "scheduled",
        /// Rows of a table, or the result of a probe.
        Triggered = "triggered",
    }
}

queue::pg_enum! {
    /// Treatment of a fire while a run of the schedule is in progress.
    Overlap {
        /// The fire is skipped and logged.
        Skip = "skip",
        /// The fire waits for the end of that run; at most one fire waits.
        Queue = "queue",
        /// The fire starts another run.
        Allow = "allow",
    }
}

queue::pg_enum! {
    /// The place where a schedule is declared.
    DeclaredIn {
        /// The COMMENT of a procedure.
        Comment = "comment",
        /// A file that was applied.
        File = "file",
        /// A call of `mill.set_schedule`.
        Call = "call",
    }
}

queue::pg_enum! {
    /// State of a backfill.
    BackfillState {
        /// Workers start its runs.
        Running = "running",
        /// Workers start no more runs until an operator resumes the backfill.
        Paused = "paused",
        /// All its runs have ended.
        Finished = "finished",
        /// An operator has ended the backfill.
        Cancelled = "cancelled",
    }
}

queue::pg_enum! {
    /// An event of a schedule.
    Event {
        /// A run was started.
        Fired = "fired",
        /// A fire was skipped because a run was in progress.
        Skipped = "skipped",
        /// A run has ended.
        Completed = "completed",
        /// The schedule could not fire, or its trigger could not be evaluated.
        Error = "error",
        /// Fires were missed because no worker ticked in time.
        Missed = "missed",
        /// The worker of a task of one of its runs died.
        Reclaimed = "reclaimed",
    }
}
