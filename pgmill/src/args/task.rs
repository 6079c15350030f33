//! The command line of tasks.

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use queue::{Outcome, State, TaskId};

use super::{duration, enum_value, limit, task_id};

#[derive(Debug, Subcommand)]
pub(crate) enum TaskVerb {
    /// List live tasks, or finished ones, the newest first
    #[command(after_help = "\
Examples:
  pgmill task list
  pgmill task list --state pending --queue etl --name 'load_*'
  pgmill task list --outcome failed --since 2h
  pgmill task list --finished --json | jq '.[].task_id'")]
    List(TaskList),
    /// Everything about one task: options, state, attempts, errors, notices, first rows
    #[command(
        after_help = "Examples:\n  pgmill task show 4711\n  pgmill task show 4711 --json\n  \
                            pgmill task show 4711 --plan"
    )]
    Show {
        /// The task's id
        #[arg(value_parser = task_id, allow_negative_numbers = true)]
        id: TaskId,
        /// The plan of its last attempt that has one: of tasks enqueued with --explain
        #[arg(long)]
        plan: bool,
    },
    /// Cancel tasks: one that waits ends at once, one that runs is stopped by its worker
    #[command(after_help = "\
Examples:
  pgmill task cancel 4711 4712
  pgmill task cancel --queue etl --state pending --dry-run
  pgmill task cancel --name 'load_*' --yes")]
    Cancel(CancelArgs),
    /// Run finished tasks again under their ids, with all their attempts; scheduled ones at once
    #[command(after_help = "\
Examples:
  pgmill task retry 4711
  pgmill task retry --outcome failed --queue etl --since 2h --dry-run
  pgmill task retry --outcome lost --yes
  pgmill task retry --sqlstate 40P01 --since 2h --yes")]
    Retry(RetryArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TaskList {
    /// Live tasks in this state
    #[arg(long, value_parser = enum_value::<State>(State::ALL.iter().map(|it| it.as_str())))]
    pub(crate) state: Option<State>,
    /// Finished tasks that ended so
    #[arg(long, value_parser = enum_value::<Outcome>(Outcome::ALL.iter().map(|it| it.as_str())))]
    #[arg(conflicts_with = "state")]
    pub(crate) outcome: Option<Outcome>,
    /// Finished tasks, whatever their outcome
    #[arg(long, conflicts_with = "state")]
    pub(crate) finished: bool,
    /// Of this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// With such a name: * stands for any characters, ? for one
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name: Option<String>,
    /// Enqueued, or finished, at most this long ago: 90s, "1h 30m", "2 days" [default for finished
    /// ones: 1 day]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

/// How to do something to many tasks.
#[derive(Debug, clap::Args)]
pub(crate) struct BulkFlags {
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "state", "queue", "name", "since"]))]
pub(crate) struct CancelArgs {
    /// Ids of tasks
    #[arg(value_name = "ID", value_parser = task_id, allow_negative_numbers = true)]
    #[arg(conflicts_with_all = ["state", "queue", "name", "since"])]
    pub(crate) ids: Vec<TaskId>,
    /// Every live task in this state
    #[arg(long, value_parser = enum_value::<State>(State::ALL.iter().map(|it| it.as_str())))]
    pub(crate) state: Option<State>,
    /// Every live task of this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Every live task with such a name: * stands for any characters, ? for one
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name: Option<String>,
    /// Every live task enqueued at most this long ago
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    #[command(flatten)]
    pub(crate) flags: BulkFlags,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "outcome", "sqlstate"]))]
pub(crate) struct RetryArgs {
    /// Ids of tasks
    #[arg(value_name = "ID", value_parser = task_id, allow_negative_numbers = true)]
    #[arg(conflicts_with_all = ["outcome", "sqlstate", "queue", "name", "since"])]
    pub(crate) ids: Vec<TaskId>,
    /// Every finished task that ended so
    #[arg(long, value_parser = enum_value::<Outcome>(Outcome::ALL.iter().map(|it| it.as_str())))]
    pub(crate) outcome: Option<Outcome>,
    /// Every task that failed with this code; with --outcome, of these only those with it
    #[arg(long, value_name = "CODE")]
    pub(crate) sqlstate: Option<String>,
    /// Of these, only those with such a message, as pgmill failures tells it
    #[arg(long, value_name = "TEXT", requires = "sqlstate")]
    pub(crate) message: Option<String>,
    /// Of these, only those of this queue
    #[arg(long, conflicts_with = "ids")]
    pub(crate) queue: Option<String>,
    /// Of these, only those with such a name: * stands for any characters, ? for one
    #[arg(long, value_name = "PATTERN", conflicts_with = "ids")]
    pub(crate) name: Option<String>,
    /// Of these, only those that ended at most this long ago [default: 1 day]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "ids")]
    pub(crate) since: Option<Duration>,
    #[command(flatten)]
    pub(crate) flags: BulkFlags,
}
