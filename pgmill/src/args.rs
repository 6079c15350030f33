//! The command line.

mod capacity;
mod console;
mod fleet;
mod insight;
mod job;
mod profile;
mod run;
mod schedule;
mod task;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use jiff::{Span, SpanRelativeTo};
use queue::connect::{ConnectionSource, Layer, SourceNames};
use queue::run::RunId;
use queue::{Outcome, TaskId};
use terminal::label;

pub(crate) use capacity::{
    GroupArgs, GroupName, GroupVerb, LimitArgs, LimitFlags, LimitVerb, OrOff, PriorityVerb,
    QueueSetArgs, ReserveArgs, WeightArgs,
};
pub(crate) use console::ConsoleArgs;
pub(crate) use fleet::{DrainArgs, HealthArgs, QueueArgs, QueueVerb, TopArgs, WorkerVerb};
pub(crate) use insight::{AuditArgs, DurationsArgs, FailuresArgs};
pub(crate) use job::{
    ApplyArgs, DependencyArgs, DependencyPair, DependencyVerb, GraphFormat, JobName, JobVerb,
    LineageArgs,
};
pub(crate) use profile::{ProfileArgs, ProfileName, ProfileVerb};
pub(crate) use run::{RunCancel, RunGraph, RunList, RunRestart, RunRetry, RunShow, RunVerb};
pub(crate) use schedule::{
    ScheduleHistory, ScheduleLog, ScheduleName, ScheduleNext, ScheduleRunNow, ScheduleSet,
    ScheduleVerb, jitter,
};
pub(crate) use task::{BulkFlags, CancelArgs, RetryArgs, TaskList, TaskVerb};

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
    0  it worked; doctor: no problem; health: the worker is well
    1  something failed that has no code of its own; doctor: at least one problem; health: not well
    2  the command line or a file is wrong, or a question could not be asked
    4  no such task, queue, worker or job; or nothing matched
    5  refused: a value, a missing right, no schema or an unknown version of it
   75  the database cannot be reached: try again later

Without --database-url, DATABASE_URL and the like the connection is what psql would use: PGHOST,
PGUSER, PGSERVICE, PGPASSFILE and so on. Reading takes the role mill_viewer, steering mill_operator.";

/// See, steer and examine a pgmill fleet.
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

/// What every verb takes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Global {
    /// Where the fleet's database is: URL or key=value pairs, as for psql
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "CONNINFO")]
    #[arg(global = true)]
    database_url: Option<String>,
    /// The file that holds it, in place of --database-url
    #[arg(long, env = "PGMILL_DATABASE_URL_FILE", value_name = "FILE", global = true)]
    database_url_file: Option<PathBuf>,
    /// What counts of these two; in arguments every user of the machine can read it.
    #[arg(skip)]
    pub(crate) given: Option<(ConnectionSource, Layer)>,
    /// Print one JSON document; times are RFC 3339 in UTC
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no colours
    #[arg(long, env = "NO_COLOR", global = true, hide = true, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "1")]
    pub(crate) no_color: Option<String>,
}

impl Args {
    /// The process's command line.
    ///
    /// # Errors
    /// What is wrong with it; also --help and --version.
    pub(crate) fn from_process() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let mut args = Self::from_arg_matches(&matches)?;
        let layer = |name| match matches.value_source(name) {
            Some(ValueSource::EnvVariable) => Layer::Environment,
            _ => Layer::Arguments,
        };
        let text = args.global.database_url.take().map(|text| (text, layer("database_url")));
        let file = args.global.database_url_file.take();
        let file = file.map(|file| (file, layer("database_url_file")));
        args.global.given = ConnectionSource::choose(SourceNames::DATABASE, text, file)
            .map_err(|error| Self::command().error(ErrorKind::ArgumentConflict, error))?;
        Ok(args)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Apply the schema to the database, or find it applied
    #[command(after_help = "\
Examples:
  pgmill init --dry-run
  pgmill init --database-url postgresql://postgres@db/app

Needs a superuser, or a role with CREATEROLE and with CREATE on the database. It does the same as
psql -f schema.sql; running it again changes nothing.")]
    Init(DryRun),
    /// One screen: problems, queues, workers, and how the tasks of the last hour ended
    #[command(after_help = "Examples:\n  pgmill status\n  watch -n 5 pgmill status\n  \
                            pgmill status --json | jq '.queues[] | select(.paused)'")]
    Status,
    /// The fleet on the terminal, looked at again and again; keys to cancel, pause, drain, drill down
    #[command(after_help = "\
Examples:
  pgmill top
  pgmill top --interval 500ms
  NO_COLOR=1 pgmill top

Works over ssh and in 80 columns; ? lists the keys. Looking takes the role mill_viewer, acting
mill_operator. When the database goes away, the last look stays and top connects again.")]
    Top(TopArgs),
    /// List, show, cancel and retry tasks
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill task list --queue etl\n  pgmill task show 4711")]
    Task(TaskVerb),
    /// List, pause, resume and limit queues
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill queue list\n  pgmill queue pause etl")]
    Queue(QueueVerb),
    /// List priorities, change their weights, keep readers for reserved tasks
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill priority list\n  pgmill priority set low=10")]
    Priority(PriorityVerb),
    /// List, make, change and remove groups
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill group list\n  \
                            pgmill group set nightly --active 22:00-06:00 --zone Europe/Berlin")]
    Group(GroupVerb),
    /// List, make, change and remove profiles: logins that tasks may run as
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill profile list\n  \
                            pgmill profile set etl --allow loaders")]
    Profile(ProfileVerb),
    /// List limits, and change those of concurrency keys
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill limit list\n  \
                            pgmill limit set customer-17 --max-running 4")]
    Limit(LimitVerb),
    /// List, show, cancel, retry and restart runs
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill run list\n  pgmill run show 12 --watch")]
    Run(RunVerb),
    /// List, show, test, steer and declare schedules; their history and log
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill schedule list\n  pgmill schedule test nightly")]
    Schedule(ScheduleVerb),
    /// Make the database's jobs and schedules what files say
    #[command(after_help = job::APPLY_HELP)]
    Apply(ApplyArgs),
    /// List, show, enable and disable jobs
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill job list\n  pgmill job show daily,sunday")]
    Job(JobVerb),
    /// List, add and remove dependencies that hold in every job
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill dependency list\n  \
                            pgmill dependency add mart_orders vault_orders")]
    Dependency(DependencyVerb),
    /// What leads to a task, and what follows from it, over all jobs
    #[command(after_help = job::LINEAGE_HELP)]
    Lineage(LineageArgs),
    /// List and drain workers
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  pgmill worker list\n  pgmill worker drain 3f2a")]
    Worker(WorkerVerb),
    /// List attempts that ended, the newest first
    #[command(after_help = "\
Examples:
  pgmill history
  pgmill history --task 4711
  pgmill history --outcome failed --queue etl --since '2 days'

A task has one attempt per run, also those after which it was tried again. `pgmill task list
--finished` lists tasks by their last one.")]
    History(HistoryArgs),
    /// Who did what: cancelled, retried, paused, changed, and when
    #[command(after_help = insight::AUDIT_HELP)]
    Audit(AuditArgs),
    /// What failed, by kind of error, and how to run a kind of it again
    #[command(after_help = insight::FAILURES_HELP)]
    Failures(FailuresArgs),
    /// How long tasks take, by name: median, 95th percentile, mean, last, trend
    #[command(after_help = insight::DURATIONS_HELP)]
    Durations(DurationsArgs),
    /// One sentence: why this task is not running now, or what it is doing; why a schedule does not fire
    #[command(
        after_help = "Examples:\n  pgmill why 4711\n  pgmill why 12/raw_orders\n  pgmill why nightly"
    )]
    Why {
        /// The task's id, RUN/NAME of a task of a run, or a schedule
        #[arg(value_name = "TASK|SCHEDULE", value_parser = subject, allow_negative_numbers = true)]
        task: Subject,
    },
    /// Ask a worker whether it is well; exit code 1 if not. Needs no database
    #[command(after_help = "\
Examples:
  pgmill health
  pgmill health http://127.0.0.1:9187/livez --timeout 2s
  pgmill health worker-1:9187 --json

/readyz is 200 while the worker claims tasks, /livez while it lives. For containers without another
program that could ask.")]
    Health(HealthArgs),
    /// Serve the web console: what an operator opens at night
    #[command(after_help = console::CONSOLE_HELP)]
    Console(ConsoleArgs),
    /// Check everything the fleet depends on; exit code 1 if something is wrong
    #[command(after_help = "\
Examples:
  pgmill doctor
  pgmill doctor --json | jq '.checks[] | select(.status == \"problem\")'

To compare the schema with what it should be, it is applied under another name inside a transaction
that is rolled back. That needs CREATE on the database and membership in mill_owner; without them
this check is skipped. Nothing is changed.")]
    Doctor,
    /// Print what makes a shell complete pgmill's verbs and flags
    #[command(after_help = "\
Examples:
  pgmill completions bash > ~/.local/share/bash-completion/completions/pgmill
  pgmill completions zsh > \"${fpath[1]}/_pgmill\"
  pgmill completions fish > ~/.config/fish/completions/pgmill.fish")]
    Completions(CompletionsArgs),
}

impl Command {
    /// The role to grant to somebody who lacks the right for it.
    pub(crate) fn role(&self) -> Option<&'static str> {
        match self {
            Self::Init(_) | Self::Health(_) | Self::Completions(_) => None,
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
            | Self::Run(RunVerb::List(_) | RunVerb::Show(_) | RunVerb::Graph(_))
            | Self::Job(JobVerb::List | JobVerb::Show { .. })
            | Self::Dependency(DependencyVerb::List)
            | Self::Lineage(_)
            | Self::Schedule(
                ScheduleVerb::List
                | ScheduleVerb::Show(_)
                | ScheduleVerb::Next(_)
                | ScheduleVerb::Test(_)
                | ScheduleVerb::History(_)
                | ScheduleVerb::Log(_),
            )
            | Self::Worker(WorkerVerb::List) => Some("mill_viewer"),
            Self::Task(TaskVerb::Cancel(_) | TaskVerb::Retry(_))
            | Self::Queue(QueueVerb::Pause(_) | QueueVerb::Resume(_) | QueueVerb::Set(_))
            | Self::Priority(PriorityVerb::Set(_) | PriorityVerb::Reserve(_))
            | Self::Group(GroupVerb::Set(_) | GroupVerb::Remove(_))
            | Self::Limit(LimitVerb::Set(_))
            | Self::Run(RunVerb::Cancel(_) | RunVerb::Retry(_) | RunVerb::Restart(_))
            | Self::Apply(_)
            | Self::Schedule(
                ScheduleVerb::Enable(_)
                | ScheduleVerb::Disable(_)
                | ScheduleVerb::Set(_)
                | ScheduleVerb::Remove(_)
                | ScheduleVerb::Sync(_)
                | ScheduleVerb::RunNow(_),
            )
            | Self::Job(JobVerb::Enable(_) | JobVerb::Disable(_))
            | Self::Dependency(DependencyVerb::Add(_) | DependencyVerb::Remove(_))
            | Self::Worker(WorkerVerb::Drain(_)) => Some("mill_operator"),
            Self::Profile(ProfileVerb::Set(_) | ProfileVerb::Remove(_)) => Some("mill_owner"),
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Of this shell
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DryRun {
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Of this task
    #[arg(long, value_name = "ID", value_parser = task_id, allow_negative_numbers = true)]
    pub(crate) task: Option<TaskId>,
    /// Of this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Of tasks with such a name: * stands for any characters, ? for one
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name: Option<String>,
    /// That ended so
    #[arg(long, value_parser = enum_value::<Outcome>(Outcome::ALL.iter().map(|it| it.as_str())))]
    pub(crate) outcome: Option<Outcome>,
    /// That ended at most this long ago: 90s, "1h 30m", "2 days" [default without --task: 1 day]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

fn enum_value<T>(words: impl Iterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
}

fn limit() -> clap::builder::RangedI64ValueParser<i64> {
    clap::value_parser!(i64).range(1..=1_000_000)
}

/// How `pgmill why` is told which task is meant.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Task(TaskId),
    RunTask(RunId, String),
    Schedule(String),
}

fn subject(text: &str) -> Result<Subject, String> {
    if let Ok(id) = text.parse() {
        return Ok(Subject::Task(TaskId(id)));
    }
    let of_run = text.split_once('/').and_then(|(run, name)| Some((run.parse().ok()?, name)));
    match of_run {
        Some((run, name)) => Ok(Subject::RunTask(RunId(run), label(name)?)),
        None => label(text).map(Subject::Schedule),
    }
}

fn task_id(text: &str) -> Result<TaskId, &'static str> {
    text.parse().map(TaskId).map_err(|_| "a task's id is a whole number")
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const FORMS: &str = "write \"90s\", \"1h 30m\" or \"2 days\"";
    let span: Span = text.parse().map_err(|_| format!("it is not a duration: {FORMS}"))?;
    let exact = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| "months and years differ in length: write days".to_owned())?;
    Duration::try_from(exact).map_err(|_| "it is negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations_are_what_people_write() {
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("2 days"), Ok(Duration::from_secs(172_800)));
        assert!(duration("10").unwrap_err().contains("90s"));
        assert!(duration("1 month").unwrap_err().contains("write days"));
        assert!(duration("-5s").is_err());
    }

    #[test]
    fn a_bulk_verb_names_what_it_is_about() {
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
