//! The command line of `pgmill`: its commands, the role that each needs, and their arguments.
//!
//! | arguments | file |
//! |---|---|
//! | options of every command, above all the database; `pgmill context` | `connection` |
//! | options and value parsers that several commands share | `value` |
//! | `pgmill task`: filters, bulk options, and the changes of `task set` | `task` |
//! | `pgmill run`: filters, tasks to run again, approvals, graphs | `run` |
//! | `pgmill job`, `apply`, `dependency` and `lineage`, with the formats of graphs | `job` |
//! | `pgmill schedule`: definition, overrides, fires, history and backfills | `schedule` |
//! | `pgmill top`, `health`, `pause`, `resume`, `queue` and `worker` | `fleet` |
//! | `pgmill priority`, `limit`, `group` and `queue set`: limits, rates, conditions | `capacity` |
//! | `pgmill console`: listen address, and the flags of the crate `console` | `console` |
//! | `pgmill subscription` and `notification`: events, receivers and filters | `notification` |
//! | `pgmill history`, `failures`, `durations` and `audit` | `insight` |
//! | `pgmill profile`: allowed roles and routines | `profile` |
//! | `pgmill target`: allowed roles, kept receipts, conditions, checks | `target` |
//!
//! The arguments of `pgmill import` are in the crate `import`.

mod capacity;
mod connection;
mod console;
mod fleet;
mod insight;
mod job;
mod notification;
mod profile;
mod run;
mod schedule;
mod target;
mod task;
mod value;

use std::ffi::OsString;
use std::iter;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use import::args::{IMPORT_HELP, Import};
use queue::RunId;
use queue::TaskId;
use terminal::label;

pub(crate) use capacity::{
    GroupArgs, GroupDefaultArgs, GroupImportArgs, GroupName, GroupVerb, LimitArgs, LimitFlags,
    LimitRemoveArgs, LimitVerb, OrOff, PriorityVerb, QueueSetArgs, ReserveArgs, WeightArgs,
    parse_max_running, parse_period,
};
pub(crate) use connection::{ContextVerb, GivenDatabase, Global};
pub(crate) use console::ConsoleArgs;
pub(crate) use fleet::{
    DrainArgs, HealthArgs, HealthUrl, PauseArgs, QueueArgs, QueuePauseArgs, QueuePurgeArgs,
    QueueVerb, ResumeArgs, TopArgs, WorkerVerb,
};
pub(crate) use insight::{AuditArgs, DurationsArgs, FailuresArgs, HistoryArgs};
pub(crate) use job::{
    ApplyArgs, DependencyArgs, DependencyPair, DependencyVerb, GraphFormat, JobDiff, JobName,
    JobVerb, LineageArgs,
};
pub(crate) use notification::{
    NotificationList, NotificationRetry, NotificationVerb, SubscriptionName, SubscriptionSet,
    SubscriptionVerb,
};
pub(crate) use profile::{ProfileArgs, ProfileName, ProfileVerb};
pub(crate) use run::{
    RunCancel, RunGraph, RunList, RunReject, RunRerun, RunRestart, RunResults, RunShow, RunVerb,
    TaskOfRun,
};
pub(crate) use schedule::{
    BackfillId, BackfillList, BackfillStart, ScheduleCalendar, ScheduleCancel, ScheduleHistory,
    ScheduleList, ScheduleLog, ScheduleName, ScheduleNext, ScheduleRunNow, ScheduleSet,
    ScheduleVerb, jitter,
};
pub(crate) use target::{TargetArgs, TargetCheck, TargetInit, TargetName, TargetVerb};
pub(crate) use task::{
    BulkFlags, CancelArgs, RetryArgs, SetArgs, TaskList, TaskListOrder, TaskVerb,
};
pub(crate) use value::{DEFAULT_SINCE, DryRun};

const AFTER_HELP: &str = "\
Examples:
  pgmill init
  pgmill status
  pgmill task list --state running
  pgmill task show 4711
  pgmill task retry --outcome failed --queue etl --since 2h --dry-run
  pgmill why 4711
  pgmill apply jobs --dry-run
  pgmill doctor
  pgmill console

Exit codes:
    0  success; doctor: no problem found; health: the worker is healthy
    1  failure without a code of its own; also if it is not known whether the change was made;
       doctor: problem found; health: the worker is not healthy
    2  invalid command line or file, or confirmation needed without a terminal
    3  run show --watch: the run ended without success
    4  no such task, queue, worker, job or run; or nothing matched
    5  refused: invalid value, missing privilege, no schema or an unsupported schema version
   75  database unreachable, or lock wait timed out: try again later
  130  task cancel, task retry, task set, queue purge: interrupted after some of the tasks

Without --database-url, --database-url-file, --context and their variables pgmill connects as psql
does: with PGHOST, PGUSER, PGSERVICE, PGPASSFILE and so on. Commands that only read need the role mill_viewer;
commands that change something need mill_operator.";

/// Inspect and operate a pgmill fleet.
#[derive(Debug, Parser)]
#[command(name = "pgmill", version, after_help = AFTER_HELP, max_term_width = 100)]
#[command(propagate_version = true, disable_help_subcommand = true, subcommand_required = true)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Parses the command line of this process.
    ///
    /// # Errors
    /// Returns an error for wrong arguments. The texts of `--help` and `--version` are returned as
    /// errors, too.
    pub(crate) fn from_process() -> Result<Self, clap::Error> {
        let mut words: Vec<OsString> = std::env::args_os().collect();
        // `pgmill help task list` is `pgmill task list --help`.
        if words.get(1).is_some_and(|word| word == "help") {
            words.remove(1);
            words.push("--help".into());
        }
        let matches = Self::command().try_get_matches_from(words)?;
        let mut args = Self::from_arg_matches(&matches)?;
        args.global.choose(&matches)?;
        Ok(args)
    }
}

impl CompleteArgs {
    /// Parses the command line of this process if it begins with `__complete`.
    pub(crate) fn from_process() -> Option<Result<Self, clap::Error>> {
        let mut words = std::env::args_os().skip(1);
        (words.next()? == "__complete").then(|| {
            let program = OsString::from("pgmill __complete");
            let matches = Self::command().try_get_matches_from(iter::once(program).chain(words))?;
            let mut args = Self::from_arg_matches(&matches)?;
            args.global.choose(&matches)?;
            Ok(args)
        })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install the schema, or upgrade an older one
    #[command(after_help = "\
Examples:
  pgmill init --dry-run
  pgmill init --database-url postgresql://postgres@db/app

Requires a superuser, or a role with CREATEROLE and CREATE on the database. On an empty database the
command does the same as psql -f schema.sql. Repeating it changes nothing.")]
    Init(DryRun),
    /// Show problems, queues, workers, and the task outcomes of the last hour
    #[command(after_help = "Examples:\n  pgmill status\n  watch -n 5 pgmill status\n  \
                            pgmill status --json | jq '.queues[] | select(.paused)'")]
    Status,
    /// Show the fleet live in the terminal, with keys to inspect, cancel, pause and drain
    #[command(after_help = "\
Examples:
  pgmill top
  pgmill top --interval 500ms
  NO_COLOR=1 pgmill top

Works over ssh and in 80 columns; ? lists the keys. Viewing needs the role mill_viewer; actions need
mill_operator. While the connection is lost, top shows the last data and reconnects.")]
    Top(TopArgs),
    /// Pause the whole fleet, now or at a planned time: nothing is claimed, schedules do not fire
    #[command(after_help = fleet::PAUSE_HELP)]
    Pause(PauseArgs),
    /// End the pause of the fleet
    #[command(after_help = fleet::RESUME_HELP)]
    Resume(ResumeArgs),
    /// List, show, cancel, retry and change tasks
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill task list --queue etl\n  pgmill task show 4711")]
    Task(TaskVerb),
    /// List, pause, resume and configure queues
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill queue list\n  pgmill queue pause etl")]
    Queue(QueueVerb),
    /// List priorities, set their weights, and reserve readers for tasks that have the priority
    /// `reserved`
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill priority list\n  pgmill priority set low=10")]
    Priority(PriorityVerb),
    /// List, create, change and remove groups
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill group list\n  \
                            pgmill group set nightly --active 22:00-06:00 --zone Europe/Berlin")]
    Group(GroupVerb),
    /// List, create, change and remove profiles: logins that tasks may run as
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill profile list\n  \
                            pgmill profile set etl --allow loaders")]
    Profile(ProfileVerb),
    /// List, create, change, check and remove targets: other databases in which tasks may run
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill target list\n  \
                            pgmill target set dwh --allow loaders")]
    Target(TargetVerb),
    /// List limits, and set the limits of concurrency keys
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill limit list\n  \
                            pgmill limit set customer-17 --max-running 4")]
    Limit(LimitVerb),
    /// List, show, cancel, retry, restart and rerun runs
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill run list\n  pgmill run show 12 --watch")]
    Run(RunVerb),
    /// List, show, test, change and define schedules; show their history and log
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill schedule list\n  pgmill schedule test nightly")]
    Schedule(ScheduleVerb),
    /// List, set, enable, disable, test and remove subscriptions: who is notified of which events
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill subscription list\n  \
                            pgmill subscription set ops --events task_failed --destination slack")]
    Subscription(SubscriptionVerb),
    /// List notifications, and send undeliverable ones again
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill notification list --state dead\n  \
                            pgmill notification retry")]
    Notification(NotificationVerb),
    /// Apply jobs, schedules and dependencies from files
    #[command(after_help = job::APPLY_HELP)]
    Apply(ApplyArgs),
    /// Import jobs and schedules from the definitions of another system
    #[command(subcommand)]
    #[command(after_help = IMPORT_HELP)]
    Import(Import),
    /// List, show, enable and disable jobs
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill job list\n  pgmill job show daily,sunday")]
    Job(JobVerb),
    /// List, add and remove dependencies that apply to every job
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill dependency list\n  \
                            pgmill dependency add mart_orders vault_orders")]
    Dependency(DependencyVerb),
    /// Show the upstream and downstream tasks of a task across all jobs
    #[command(after_help = job::LINEAGE_HELP)]
    Lineage(LineageArgs),
    /// List and drain workers
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill worker list\n  pgmill worker drain 3f2a")]
    Worker(WorkerVerb),
    /// List finished attempts, newest first
    #[command(after_help = "\
Examples:
  pgmill history
  pgmill history --task 4711
  pgmill history --outcome failed --queue etl --since '2 days'
  pgmill history --error 'duplicate key' --since 6h

A task has one row for each attempt, including attempts that were followed by a retry.
`pgmill task list --finished` lists each task once, with its final attempt. --sql and --error search
texts, the newest attempts first, for about 5 s; pgmill prints how far back it got if that was not
enough.")]
    History(HistoryArgs),
    /// List operator actions: who cancelled, retried, paused or changed what, and when
    #[command(after_help = insight::AUDIT_HELP)]
    Audit(AuditArgs),
    /// List failed attempts, grouped by error
    #[command(after_help = insight::FAILURES_HELP)]
    Failures(FailuresArgs),
    /// Show durations by task name: median, 95th percentile, mean, last, trend
    #[command(after_help = insight::DURATIONS_HELP)]
    Durations(DurationsArgs),
    /// Explain why a task is not running, what a run waits for, why a schedule does not fire, or
    /// what holds a queue back
    #[command(after_help = "\
Examples:
  pgmill why 4711
  pgmill why run:12
  pgmill why 12/raw_orders
  pgmill why nightly
  pgmill why etl

If a schedule and a queue have the same name, pgmill explains the schedule.")]
    Why {
        /// Task id, run:RUN, RUN/NAME of a task of a run, schedule name or queue name
        #[arg(value_name = "TASK|SCHEDULE|QUEUE", value_parser = subject, allow_negative_numbers = true)]
        task: Subject,
    },
    /// Check the health of a worker over HTTP, without a database; exit code 1 if it is not healthy
    #[command(after_help = "\
Examples:
  pgmill health
  pgmill health http://127.0.0.1:9187/livez --timeout 2s
  pgmill health worker-1:9187 --json

/readyz returns 200 while the worker claims tasks, /livez while the process is alive. The command
serves as a health check in containers that have no other HTTP client.")]
    Health(HealthArgs),
    /// Serve the web console
    #[command(after_help = console::CONSOLE_HELP)]
    Console(ConsoleArgs),
    /// Check everything that the fleet depends on; exit code 1 if there is a problem
    #[command(after_help = "\
Examples:
  pgmill doctor
  pgmill doctor --json | jq '.checks[] | select(.status == \"problem\")'

To find schema drift, doctor installs the expected schema under another name inside a transaction,
compares the two and rolls back. That needs CREATE on the database and membership in mill_owner;
without them this check is skipped. Nothing is changed.")]
    Doctor,
    /// List the databases of the contexts file
    #[command(subcommand)]
    #[command(
        after_help = "Examples:\n  pgmill context list\n  pgmill --context shard1 status\n  \
                            pgmill --all-contexts status"
    )]
    Context(ContextVerb),
    /// Print a shell completion script
    #[command(after_help = "\
Examples:
  pgmill completions bash > ~/.local/share/bash-completion/completions/pgmill
  pgmill completions zsh > \"${fpath[1]}/_pgmill\"
  pgmill completions fish > ~/.config/fish/completions/pgmill.fish

In bash, zsh and fish the script also offers the names of queues, jobs, schedules, groups, profiles
and hosts, and the ids of runs and workers. It reads them from the database that the environment or
the command line names, and waits for the database at most one second.")]
    Completions(CompletionsArgs),
}

impl Command {
    /// Returns whether the command reads one answer from the database and changes nothing, so that it
    /// can run on all databases of the contexts file.
    pub(crate) fn only_reads(&self) -> bool {
        let endless = match self {
            Self::Top(_) | Self::Console(_) => true,
            Self::Run(RunVerb::Show(args)) => args.watch,
            _ => false,
        };
        !endless && self.role() == Some("mill_viewer")
    }

    /// The role to grant to a login that lacks the privilege for this command.
    pub(crate) fn role(&self) -> Option<&'static str> {
        match self {
            Self::Init(_) | Self::Health(_) | Self::Context(_) | Self::Completions(_) => None,
            Self::Status
            | Self::Top(_)
            | Self::History(_)
            | Self::Audit(_)
            | Self::Failures(_)
            | Self::Durations(_)
            | Self::Why { .. }
            | Self::Doctor
            | Self::Console(_)
            | Self::Task(TaskVerb::List(_) | TaskVerb::Show { .. })
            | Self::Queue(QueueVerb::List)
            | Self::Priority(PriorityVerb::List)
            | Self::Group(GroupVerb::List)
            | Self::Profile(ProfileVerb::List)
            | Self::Limit(LimitVerb::List)
            | Self::Job(
                JobVerb::List | JobVerb::Show { .. } | JobVerb::Versions { .. } | JobVerb::Diff(_),
            )
            | Self::Dependency(DependencyVerb::List)
            | Self::Lineage(_)
            | Self::Worker(WorkerVerb::List) => Some("mill_viewer"),
            Self::Pause(_)
            | Self::Resume(_)
            | Self::Task(TaskVerb::Cancel(_) | TaskVerb::Retry(_) | TaskVerb::Set(_))
            | Self::Queue(
                QueueVerb::Pause(_)
                | QueueVerb::Resume(_)
                | QueueVerb::Set(_)
                | QueueVerb::Purge(_)
                | QueueVerb::Remove(_),
            )
            | Self::Priority(PriorityVerb::Set(_) | PriorityVerb::Reserve(_))
            | Self::Group(
                GroupVerb::Set(_)
                | GroupVerb::Default(_)
                | GroupVerb::Import(_)
                | GroupVerb::Remove(_),
            )
            | Self::Limit(LimitVerb::Set(_) | LimitVerb::Remove(_))
            | Self::Apply(_)
            | Self::Import(_)
            | Self::Job(JobVerb::Enable(_) | JobVerb::Disable(_))
            | Self::Dependency(DependencyVerb::Add(_) | DependencyVerb::Remove(_))
            | Self::Worker(WorkerVerb::Drain(_)) => Some("mill_operator"),
            Self::Run(verb) => Some(verb.role()),
            Self::Schedule(verb) => Some(verb.role()),
            Self::Subscription(verb) => Some(verb.role()),
            Self::Target(verb) => verb.role(),
            Self::Notification(verb) => Some(verb.role()),
            Self::Profile(ProfileVerb::Set(_) | ProfileVerb::Remove(_)) => Some("mill_owner"),
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell for which to print the script
    pub(crate) shell: Shell,
}

/// Arguments of `pgmill __complete`. It is no verb of [`Args`], so no script, page or help lists it.
#[derive(Debug, Parser)]
#[command(name = "pgmill __complete")]
pub(crate) struct CompleteArgs {
    #[command(flatten)]
    pub(crate) global: Global,
    /// Position of the word to complete; 0 is the program
    pub(crate) index: usize,
    /// Words of the command line
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

/// The argument of `pgmill why`.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Task(TaskId),
    Run(RunId),
    RunTask(RunId, String),
    /// A schedule, or else a queue.
    Named(String),
}

fn subject(text: &str) -> Result<Subject, String> {
    if let Ok(id) = text.parse() {
        return Ok(Subject::Task(TaskId(id)));
    }
    if let Some(Ok(id)) = text.strip_prefix("run:").map(str::parse) {
        return Ok(Subject::Run(RunId(id)));
    }
    let of_run = text.split_once('/').and_then(|(run, name)| Some((run.parse().ok()?, name)));
    match of_run {
        Some((run, name)) => Ok(Subject::RunTask(RunId(run), label(name)?)),
        None => label(text).map(Subject::Named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_bulk_command_needs_ids_or_a_filter() {
        for wrong in [
            &["pgmill", "task", "cancel"][..],
            &["pgmill", "task", "cancel", "--yes"],
            &["pgmill", "task", "cancel", "7", "--queue", "etl"],
            &["pgmill", "task", "retry", "--queue", "etl"],
            &["pgmill", "task", "retry", "7", "--outcome", "failed"],
            &["pgmill", "task", "retry", "7", "--queue", "etl"],
            &["pgmill", "task", "retry", "7", "--since", "1h"],
            &["pgmill", "task", "list", "--state", "running", "--finished"],
            &["pgmill", "worker", "drain"],
            &["pgmill", "worker", "drain", "3f", "--host", "a"],
        ] {
            assert!(Args::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_help_has_examples() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&Args::command());
    }
}
