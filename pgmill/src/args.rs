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
//! The arguments of `pgmill import` are in the crate `import`. Examples and notes of the other commands
//! are in `help.txt`.

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

use std::collections::HashMap;
use std::ffi::OsString;
use std::iter;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use import::args::{IMPORT_HELP, Import};
use queue::RunId;
use queue::TaskId;
use terminal::label;

pub(crate) use capacity::*;
pub(crate) use connection::*;
pub(crate) use console::*;
pub(crate) use fleet::*;
pub(crate) use insight::*;
pub(crate) use job::*;
pub(crate) use notification::*;
pub(crate) use profile::*;
pub(crate) use run::*;
pub(crate) use schedule::*;
pub(crate) use target::*;
pub(crate) use task::*;
pub(crate) use value::*;

/// Examples and notes of each command, below a line with `#` and the command.
const HELP: &str = include_str!("args/help.txt");

/// Returns the definition of the command line.
pub(crate) fn command() -> clap::Command {
    let sections = HELP.trim_start_matches("# ").split("\n\n# ");
    let texts = sections.filter_map(|it| it.split_once('\n')).collect();
    with_help(<Args as CommandFactory>::command(), "pgmill", &texts)
}

/// Adds the help texts of a command and its subcommands.
fn with_help(
    command: clap::Command,
    path: &str,
    texts: &HashMap<&str, &'static str>,
) -> clap::Command {
    let command = command.mut_subcommands(|verb| {
        let path = format!("{path} {}", verb.get_name());
        with_help(verb, &path, texts)
    });
    match texts.get(path) {
        Some(text) => command.after_help(text.trim_end()),
        None => command,
    }
}

/// Inspect and operate a pgmill fleet.
#[derive(Debug, Parser)]
#[command(name = "pgmill", version, max_term_width = 100)]
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
        let matches = command().try_get_matches_from(words)?;
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
    Init(DryRun),
    /// Show problems, queues, workers, and the task outcomes of the last hour
    Status,
    /// Show the fleet live in the terminal, with keys to inspect, cancel, pause and drain
    Top(TopArgs),
    /// Pause the whole fleet, now or at a planned time: nothing is claimed, schedules do not fire
    Pause(PauseArgs),
    /// End the pause of the fleet
    Resume(ResumeArgs),
    /// List, show, cancel, retry and change tasks
    #[command(subcommand)]
    Task(TaskVerb),
    /// List, pause, resume and configure queues
    #[command(subcommand)]
    Queue(QueueVerb),
    /// List priorities, set their weights, and reserve readers for tasks that have the priority
    /// `reserved`
    #[command(subcommand)]
    Priority(PriorityVerb),
    /// List, create, change and remove groups
    #[command(subcommand)]
    Group(GroupVerb),
    /// List, create, change and remove profiles: logins that tasks may run as
    #[command(subcommand)]
    Profile(ProfileVerb),
    /// List, create, change, check and remove targets: other databases in which tasks may run
    #[command(subcommand)]
    Target(TargetVerb),
    /// List limits, and set the limits of concurrency keys
    #[command(subcommand)]
    Limit(LimitVerb),
    /// List, show, cancel, retry, restart and rerun runs
    #[command(subcommand)]
    Run(RunVerb),
    /// List, show, test, change and define schedules; show their history and log
    #[command(subcommand)]
    Schedule(ScheduleVerb),
    /// List, set, enable, disable, test and remove subscriptions: who is notified of which events
    #[command(subcommand)]
    Subscription(SubscriptionVerb),
    /// List notifications, and send undeliverable ones again
    #[command(subcommand)]
    Notification(NotificationVerb),
    /// Apply jobs, schedules and dependencies from files
    Apply(ApplyArgs),
    /// Import jobs and schedules from the definitions of another system
    #[command(subcommand)]
    #[command(after_help = IMPORT_HELP)]
    Import(Import),
    /// List, show, enable and disable jobs
    #[command(subcommand)]
    Job(JobVerb),
    /// List, add and remove dependencies that apply to every job
    #[command(subcommand)]
    Dependency(DependencyVerb),
    /// Show the upstream and downstream tasks of a task across all jobs
    Lineage(LineageArgs),
    /// List and drain workers
    #[command(subcommand)]
    Worker(WorkerVerb),
    /// List finished attempts, newest first
    History(HistoryArgs),
    /// List operator actions: who cancelled, retried, paused or changed what, and when
    Audit(AuditArgs),
    /// List failed attempts, grouped by error
    Failures(FailuresArgs),
    /// Show durations by task name: median, 95th percentile, mean, last, trend
    Durations(DurationsArgs),
    /// Explain why a task is not running, what a run waits for, why a schedule does not fire, or
    /// what holds a queue back
    Why {
        /// Task id, run:RUN, RUN/NAME of a task of a run, schedule name or queue name
        #[arg(value_name = "TASK|SCHEDULE|QUEUE", value_parser = subject, allow_negative_numbers = true)]
        task: Subject,
    },
    /// Check the health of a worker over HTTP, without a database; exit code 1 if it is not healthy
    Health(HealthArgs),
    /// Serve the web console
    Console(ConsoleArgs),
    /// Check everything that the fleet depends on; exit code 1 if there is a problem
    Doctor,
    /// List the databases of the contexts file
    #[command(subcommand)]
    Context(ContextVerb),
    /// Print a shell completion script
    Completions {
        /// Shell for which to print the script
        shell: Shell,
    },
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
            Self::Init(_)
            | Self::Health(_)
            | Self::Context(_)
            | Self::Completions { .. }
            | Self::Target(TargetVerb::Init(_)) => None,
            Self::Target(TargetVerb::Set(_) | TargetVerb::Remove(_))
            | Self::Profile(ProfileVerb::Set(_) | ProfileVerb::Remove(_)) => Some("mill_owner"),
            it if it.is_query() => Some("mill_viewer"),
            _ => Some("mill_operator"),
        }
    }

    /// Returns whether the command changes nothing in the database.
    fn is_query(&self) -> bool {
        match self {
            Self::Status
            | Self::Top(_)
            | Self::Console(_)
            | Self::Doctor
            | Self::Lineage(_)
            | Self::History(_)
            | Self::Audit(_)
            | Self::Failures(_)
            | Self::Durations(_)
            | Self::Why { .. }
            | Self::Task(TaskVerb::List(_) | TaskVerb::Show { .. })
            | Self::Queue(QueueVerb::List)
            | Self::Priority(PriorityVerb::List)
            | Self::Group(GroupVerb::List)
            | Self::Profile(ProfileVerb::List)
            | Self::Target(TargetVerb::List)
            | Self::Limit(LimitVerb::List)
            | Self::Worker(WorkerVerb::List)
            | Self::Dependency(DependencyVerb::List)
            | Self::Notification(NotificationVerb::List(_))
            | Self::Subscription(SubscriptionVerb::List | SubscriptionVerb::Show { .. })
            | Self::Run(RunVerb::List(_) | RunVerb::Show(_))
            | Self::Run(RunVerb::Graph(_) | RunVerb::Results(_)) => true,
            Self::Job(verb) => !matches!(verb, JobVerb::Enable(_) | JobVerb::Disable(_)),
            Self::Schedule(verb) => verb.is_query(),
            _ => false,
        }
    }
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
        check(&command());
    }
}
