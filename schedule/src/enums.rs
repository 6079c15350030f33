//! Enums of schedules, as defined in the schema.

queue::pg_enum! {
    /// The cause of a schedule's fires.
    FireMode {
        /// A user only.
        Manual = "manual",
        /// The clock.
        Scheduled = "scheduled",
        /// Rows of a table or a probe.
        Triggered = "triggered",
    }
}

queue::pg_enum! {
    /// Treatment of a fire while a run of the schedule is in progress.
    Overlap {
        /// The fire is skipped and logged.
        Skip = "skip",
        /// One fire waits for the end of that run.
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
        /// The worker of one of its tasks died.
        Reclaimed = "reclaimed",
    }
}
