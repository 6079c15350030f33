//! The command line of schedules.

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use jiff::Timestamp;
use queue::run::RunState;
use schedule::enums::{Event, Overlap};
use terminal::label;

use super::{DryRun, duration, enum_value, limit};

const SYNC_HELP: &str = "\
Examples:
  pgmill schedule sync --dry-run
  pgmill schedule sync

Comments such as COMMENT ON PROCEDURE nightly() IS 'Cleans up. @daily(03:15) @retry(max_attempts: 3)' are
all that a schedule takes: docs/schedules.md. Workers do the same when they start. An error is shown with
its place and disables the schedule that it is in; exit code 1 if there is one. What is declared no more
is disabled, nothing is deleted.";

const SET_HELP: &str = "\
Examples:
  pgmill schedule set nightly --max-attempts 5 --jitter 2m
  pgmill schedule set nightly --max-attempts declared
  pgmill schedule set purge --timing 'daily(03:15, zone: Europe/Berlin)' --statement 'CALL purge()'
  pgmill schedule set vault --timing 'every(15 minutes, between: 06:00-22:00)' --job daily
  pgmill schedule set orders --timing 'trigger(table: staging.orders, rows: 500)' --job orders
  pgmill schedule set orders --timing manual

--max-attempts, --retry-interval and --jitter are yours: no declaration changes them. The rest belongs to the
declaration; here it can be changed only of schedules that are declared here.";

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleVerb {
    /// List schedules: when each fires next, and how its last run ended
    #[command(after_help = "Examples:\n  pgmill schedule list\n  \
                            pgmill schedule list --json | jq '.schedules[] | select(.last_state == \"failed\") | .name'")]
    List,
    /// Everything about one schedule: in words, its next fires, its last runs and events
    #[command(after_help = "Examples:\n  pgmill schedule show nightly")]
    Show(ScheduleOf),
    /// The next fires of a schedule, or of a timing that is none yet
    #[command(after_help = "\
Examples:
  pgmill schedule next nightly
  pgmill schedule next --timing 'nth(last, fri, 18:00, zone: America/New_York)' --count 12")]
    Next(ScheduleNext),
    /// Let a schedule fire again, from now on
    #[command(after_help = "Examples:\n  pgmill schedule enable nightly")]
    Enable(ScheduleName),
    /// Let a schedule fire no more; a run that goes on is not touched
    #[command(after_help = "Examples:\n  pgmill schedule disable nightly --dry-run")]
    Disable(ScheduleName),
    /// Set what is yours, or declare a schedule
    #[command(after_help = SET_HELP)]
    Set(ScheduleSet),
    /// Remove a schedule that was declared here or in a file; its history stays
    #[command(after_help = "Examples:\n  pgmill schedule remove purge --dry-run")]
    Remove(ScheduleName),
    /// Synchronize schedules with the comments of procedures
    #[command(after_help = SYNC_HELP)]
    Sync(DryRun),
    /// Start a run now; the timing goes on as if nothing had happened
    #[command(after_help = "\
Examples:
  pgmill schedule run-now nightly
  pgmill schedule run-now nightly --force     beside a run that goes on
  pgmill run cancel 12 --kill                 stops it, wherever it runs")]
    RunNow(ScheduleRunNow),
    /// Whether it would fire now, and why or why not; fires nothing
    #[command(after_help = "\
Examples:
  pgmill schedule test staging_orders
  pgmill schedule test staging_orders --json | jq .would_fire

By the rules of the ticks, in a transaction that reads only. What triggers it is measured with your
rights; workers measure with those of the login that tasks run as.")]
    Test(ScheduleOf),
    /// Runs that schedules have fired, the newest first
    #[command(after_help = "\
Examples:
  pgmill schedule history
  pgmill schedule history nightly --state failed --since '30 days'
  pgmill schedule history nightly --from 2026-11-01T00:00:00Z --to 2026-11-08T00:00:00Z
  pgmill schedule history --limit 50 --before 4711     the next page")]
    History(ScheduleHistory),
    /// What happened to schedules, the newest first
    #[command(after_help = "\
Examples:
  pgmill schedule log
  pgmill schedule log nightly --event skipped
  pgmill schedule log --limit 50 --before 4711         the next page")]
    Log(ScheduleLog),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleOf {
    /// The schedule
    #[arg(value_parser = label)]
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleName {
    /// The schedule
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).args(["name", "timing"]))]
pub(crate) struct ScheduleNext {
    /// The schedule
    #[arg(value_parser = label)]
    pub(crate) name: Option<String>,
    /// A cadence, as daily(03:15)
    #[arg(long)]
    pub(crate) timing: Option<String>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) count: u16,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args([
    "max_attempts", "max_retries", "retry_interval", "jitter", "timing", "statement", "jobs", "overlap", "catch_up",
    "max_lateness", "description",
]))]
pub(crate) struct ScheduleSet {
    /// The schedule
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Attempts of its tasks, in total; "declared": as they are declared
    #[arg(long, alias = "attempts", value_name = "N", value_parser = or_declared(max_attempts))]
    pub(crate) max_attempts: Option<OrDeclared<u16>>,
    /// The same, without the first attempt
    #[arg(long, hide = true, value_name = "N", conflicts_with = "max_attempts")]
    #[arg(value_parser = or_declared(max_retries))]
    pub(crate) max_retries: Option<OrDeclared<u16>>,
    /// Wait before another attempt; "declared": as it is declared
    #[arg(long, value_name = "DURATION", value_parser = or_declared(duration))]
    pub(crate) retry_interval: Option<OrDeclared<Duration>>,
    /// Fire up to so much later; "declared": as it is declared
    #[arg(long, value_name = "DURATION", value_parser = or_declared(jitter))]
    pub(crate) jitter: Option<OrDeclared<Duration>>,
    /// When it fires: manual, a cadence as daily(03:15), or trigger(…)
    #[arg(long)]
    pub(crate) timing: Option<String>,
    /// What it runs: one statement
    #[arg(long, value_name = "SQL", conflicts_with = "jobs")]
    pub(crate) statement: Option<String>,
    /// What it runs: jobs, separated by commas
    #[arg(long = "job", value_name = "NAMES", value_delimiter = ',')]
    pub(crate) jobs: Option<Vec<String>>,
    /// What becomes of a fire while a run of it goes on
    #[arg(long, value_parser = enum_value::<Overlap>(Overlap::ALL.iter().map(|it| it.as_str())))]
    pub(crate) overlap: Option<Overlap>,
    /// Of fires that nobody made in time, how many are made late
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) catch_up: Option<u16>,
    /// A fire that is later is not made
    #[arg(long, value_name = "DURATION", value_parser = max_lateness)]
    pub(crate) max_lateness: Option<Duration>,
    /// For people
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleRunNow {
    /// The schedule
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Beside a run that goes on
    #[arg(long)]
    pub(crate) force: bool,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleHistory {
    /// Of this schedule
    #[arg(value_parser = label)]
    pub(crate) name: Option<String>,
    /// Runs in this state
    #[arg(long, value_parser = enum_value::<RunState>(RunState::ALL.iter().map(|it| it.as_str())))]
    pub(crate) state: Option<RunState>,
    /// Begun at most this long ago: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "from")]
    pub(crate) since: Option<Duration>,
    /// Begun from this instant on
    #[arg(long, value_name = "TIMESTAMP")]
    pub(crate) from: Option<Timestamp>,
    /// Begun before this instant
    #[arg(long, value_name = "TIMESTAMP")]
    pub(crate) to: Option<Timestamp>,
    /// Older than this run
    #[arg(long, value_name = "RUN")]
    pub(crate) before: Option<i64>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleLog {
    /// Of this schedule
    #[arg(value_parser = label)]
    pub(crate) name: Option<String>,
    /// Of this kind
    #[arg(long, value_parser = enum_value::<Event>(Event::ALL.iter().map(|it| it.as_str())))]
    pub(crate) event: Option<Event>,
    /// Older than this event
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<i64>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

/// A person's own value, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrDeclared<T> {
    Own(T),
    Declared,
}

impl<T> OrDeclared<T> {
    /// `None`: as it is declared.
    pub(crate) fn own(&self) -> Option<&T> {
        match self {
            Self::Own(value) => Some(value),
            Self::Declared => None,
        }
    }
}

fn or_declared<T: Clone + Send + Sync + 'static>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<OrDeclared<T>, String> + Clone + Send + Sync + 'static {
    move |text| match text {
        "declared" => Ok(OrDeclared::Declared),
        _ => parse(text).map(OrDeclared::Own),
    }
}

/// By how much fires may be spread, as the schema has it.
pub(crate) fn jitter(text: &str) -> Result<Duration, String> {
    let found = Some(duration(text)?).filter(|span| *span <= Duration::from_secs(86_400));
    found.ok_or_else(|| "fires are spread over at most a day".to_owned())
}

fn max_lateness(text: &str) -> Result<Duration, String> {
    let found = Some(duration(text)?).filter(|span| *span <= Duration::from_secs(365 * 86_400));
    found.ok_or_else(|| "it is at most 365 days".to_owned())
}

/// As attempts in all.
fn max_retries(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (0..10_000).contains(number));
    let retries = number.ok_or_else(|| "write a number from 0 to 9999, or declared".to_owned());
    retries.map(|retries: u16| retries + 1)
}

fn max_attempts(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=10_000).contains(number));
    number.ok_or_else(|| "write a number from 1 to 10000, or declared".to_owned())
}
