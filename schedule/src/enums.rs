//! Closed sets of words about schedules, as the schema has them.

queue::pg_enum! {
    /// What makes a schedule fire.
    FireMode {
        /// A person only.
        Manual = "manual",
        /// The clock.
        Scheduled = "scheduled",
        /// What is in a table.
        Triggered = "triggered",
    }
}

queue::pg_enum! {
    /// What becomes of a fire while a run of the schedule goes on.
    Overlap {
        /// It is left out, and recorded.
        Skip = "skip",
        /// One waits for the end of that run.
        Queue = "queue",
        /// It starts another run.
        Allow = "allow",
    }
}

queue::pg_enum! {
    /// Where a schedule is declared.
    DeclaredIn {
        /// In the COMMENT of a procedure.
        Comment = "comment",
        /// In a file that was applied.
        File = "file",
        /// By a call of `mill.set_schedule`.
        Call = "call",
    }
}

queue::pg_enum! {
    /// What happened to a schedule.
    Event {
        /// A run was started.
        Fired = "fired",
        /// A run that goes on was in the way.
        Skipped = "skipped",
        /// A run has ended.
        Completed = "completed",
        /// It could not fire, or what it looks at could not be read.
        Error = "error",
        /// Nobody ticked in time.
        Missed = "missed",
        /// The worker of a task of it died.
        Reclaimed = "reclaimed",
    }
}
