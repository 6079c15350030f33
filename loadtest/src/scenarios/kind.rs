//! The names and descriptions of the scenarios.

use clap::ValueEnum;

/// A scenario, named as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Drain,
    Noop,
    Enqueue,
    Latency,
    Backlog,
    History,
    Pinned,
    Scheduled,
    Capped,
    Targets,
    Tracing,
    Runs,
    Schedules,
    Fleet,
    Idle,
    Scale,
    Recovery,
    Memory,
    Console,
    Soak,
}

impl Kind {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Noop => "noop",
            Self::Enqueue => "enqueue",
            Self::Latency => "latency",
            Self::Backlog => "backlog",
            Self::History => "history",
            Self::Pinned => "pinned",
            Self::Scheduled => "scheduled",
            Self::Capped => "capped",
            Self::Targets => "targets",
            Self::Tracing => "tracing",
            Self::Runs => "runs",
            Self::Schedules => "schedules",
            Self::Fleet => "fleet",
            Self::Idle => "idle",
            Self::Scale => "scale",
            Self::Recovery => "recovery",
            Self::Memory => "memory",
            Self::Console => "console",
            Self::Soak => "soak",
        }
    }

    /// One-line description.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Drain => "a backlog of tasks, each one INSERT, exactly once",
            Self::Noop => "a backlog of SELECT 1: the queue's own work",
            Self::Enqueue => "enqueueing: single tasks, bulk, the command-line program",
            Self::Latency => {
                "pick-up latency: from the commit of an enqueue to the start of its statement"
            }
            Self::Backlog => "throughput with a small and with a large backlog",
            Self::History => "throughput with and without finished tasks in history",
            Self::Pinned => "throughput while an old snapshot stays open",
            Self::Scheduled => "throughput with and without scheduled tasks",
            Self::Capped => "throughput with and without many tasks of a run at its limit",
            Self::Targets => "throughput of tasks in another database, exactly once",
            Self::Tracing => "throughput with and without the export of traces",
            Self::Runs => "task graphs: one wide run compared with many small runs, and a chain",
            Self::Schedules => {
                "many schedules: a tick with none due, all due at once, the delay of a fire"
            }
            Self::Fleet => "1 to 64 worker processes on one backlog",
            Self::Idle => "cost of an idle fleet",
            Self::Scale => "cost per worker with up to 1,250 workers, and cost per task",
            Self::Recovery => {
                "recovery time: a worker killed, a worker stopped, the database restarted"
            }
            Self::Memory => "memory of a worker: a long drain, a huge result, many notices",
            Self::Console => "the web console with many live tasks and a long history",
            Self::Soak => "a long mixed load: stability of rate, memory and table sizes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for kind in Kind::value_variants() {
            assert_eq!(Kind::from_str(kind.name(), false), Ok(*kind));
        }
    }
}
