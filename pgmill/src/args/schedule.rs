//! Arguments of `pgmill schedule`.

mod backfill;

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use cli::time::PeriodBound;
use queue::Mode;
use queue::run::RunState;
use schedule::enums::{Event, Overlap};
use serde_json::Value;
use terminal::label;

use super::value::{DryRun, FILTERS, duration, enum_value, limit, param};
use backfill::BACKFILL_HELP;
pub(crate) use backfill::{BackfillId, BackfillList, BackfillStart};

const OVERRIDES: &str = "Overrides";
const DEFINITION: &str = "Definition";

const SYNC_HELP: &str = "\
Examples:
  pgmill schedule sync --dry-run
  pgmill schedule sync

A comment on a procedure declares a schedule: docs/schedules.md. For example
  COMMENT ON PROCEDURE nightly() IS 'Cleans up. @daily(03:15) @retry(max_attempts: 3)';
Workers synchronize schedules when they start. An error in an annotation is reported with its
position; the schedules of its comment then stay as they were, and the exit code is 1. A schedule
that is no longer declared is removed; its history is kept.";

const SET_HELP: &str = "\
Examples:
  pgmill schedule set nightly --max-attempts 5 --jitter 2m
  pgmill schedule set nightly --max-attempts declared
  pgmill schedule set purge --timing 'daily(03:15, zone: Europe/Berlin)' --statement 'CALL purge()'
  pgmill schedule set vault --timing 'every(15 minutes, between: 06:00-22:00)' --job daily
  pgmill schedule set orders --timing 'trigger(table: staging.orders, rows: 500)' --job orders
  pgmill schedule set orders --timing manual
  pgmill schedule set vault --expected-duration 20m --deadline 2h --run-timeout 3h

The overrides --max-attempts, --retry-interval and --jitter take precedence over the declaration and
stay when it changes; the value \"declared\" removes an override. The definition of a schedule can
be changed here only if it was declared here, not in a file or a comment.";

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleVerb {
    /// List schedules with their next fire and the outcome of their last run
    #[command(
        after_help = "Examples:\n  pgmill schedule list\n  pgmill schedule list --removed\n  \
                            pgmill schedule list --json | jq '.schedules[] | select(.last_state == \"failed\") | .name'"
    )]
    List(ScheduleList),
    /// Show one schedule: its timing in words, next fires, last runs and events
    #[command(after_help = "Examples:\n  pgmill schedule show nightly")]
    Show(ScheduleOf),
    /// Show the next fires of a schedule, or of a timing expression not yet in use
    #[command(after_help = "\
Examples:
  pgmill schedule next nightly
  pgmill schedule next --timing 'nth(last, fri, 18:00, zone: America/New_York)' --count 12
  pgmill schedule next nightly --from 2027-03-28")]
    Next(ScheduleNext),
    /// List past and coming fires of all schedules, in the order of time
    #[command(after_help = "\
Examples:
  pgmill schedule calendar                # a day back and a day ahead
  pgmill schedule calendar --from today --to 2027-04-01 --limit 5")]
    Calendar(ScheduleCalendar),
    /// Enable a schedule: it fires again from now on
    #[command(after_help = "Examples:\n  pgmill schedule enable nightly")]
    Enable(ScheduleName),
    /// Disable a schedule: it no longer fires; a run in progress continues
    #[command(after_help = "Examples:\n  pgmill schedule disable nightly --dry-run")]
    Disable(ScheduleName),
    /// Override settings of a schedule, or define a schedule
    #[command(after_help = SET_HELP)]
    Set(ScheduleSet),
    /// Remove a schedule that was declared in a file or by a call such as `schedule set`; its
    /// history is kept. It is deleted when its runs are no longer in history, after 30 days at the
    /// earliest (mill.settings.schedule_log_retention)
    #[command(after_help = "Examples:\n  pgmill schedule remove purge --dry-run")]
    Remove(ScheduleName),
    /// Synchronize schedules with the annotations in the comments of procedures
    #[command(after_help = SYNC_HELP)]
    Sync(DryRun),
    /// Start a run now; the regular timing does not change
    #[command(after_help = "\
Examples:
  pgmill schedule run-now nightly
  pgmill schedule run-now nightly --force     even if a run is in progress
  pgmill schedule run-now nightly --param full=true --at '2026-12-01 03:00'
  pgmill run cancel 12 --kill                 cancels the run and its running tasks")]
    RunNow(ScheduleRunNow),
    /// Run a schedule for each instant of a period in the past
    #[command(after_help = BACKFILL_HELP)]
    Backfill(BackfillStart),
    /// List backfills with their progress, newest first
    #[command(
        after_help = "Examples:\n  pgmill schedule backfills\n  pgmill schedule backfills nightly"
    )]
    Backfills(BackfillList),
    /// Pause a backfill: it starts no more runs; runs in progress continue
    #[command(after_help = "Examples:\n  pgmill schedule pause-backfill 3")]
    PauseBackfill(BackfillId),
    /// Resume a paused backfill at its next instant
    #[command(after_help = "Examples:\n  pgmill schedule resume-backfill 3")]
    ResumeBackfill(BackfillId),
    /// End a backfill: it starts no more runs; runs in progress continue
    #[command(after_help = "\
Examples:
  pgmill schedule cancel-backfill 3
  pgmill run list --backfill 3 --state running --json | jq '.[].id'
  pgmill run cancel 12                        cancels a run of the backfill")]
    CancelBackfill(BackfillId),
    /// Cancel the runs of a schedule that are in progress; later fires are not affected
    #[command(after_help = "\
Examples:
  pgmill schedule cancel nightly              running tasks finish
  pgmill schedule cancel nightly --kill       running tasks are cancelled as well")]
    Cancel(ScheduleCancel),
    /// Show whether a schedule would fire now, and why or why not; fires nothing
    #[command(after_help = "\
Examples:
  pgmill schedule test staging_orders
  pgmill schedule test staging_orders --json | jq .would_fire

Applies the rules of the scheduler in a read-only transaction. This command probes a trigger with
your privileges; workers probe with the privileges of the login that tasks run as.")]
    Test(ScheduleOf),
    /// List runs fired by schedules, newest first
    #[command(after_help = "\
Examples:
  pgmill schedule history
  pgmill schedule history nightly --state failed --since '30 days'
  pgmill schedule history --job public.nightly
  pgmill schedule history nightly --from 2026-11-01 --to yesterday
  pgmill schedule history nightly --at '2026-11-21 03:00'
  pgmill schedule history --limit 50 --before 4711     next page")]
    History(ScheduleHistory),
    /// List events of schedules, newest first
    #[command(after_help = "\
Examples:
  pgmill schedule log
  pgmill schedule log nightly --event skipped
  pgmill schedule log --since '2 days'
  pgmill schedule log --limit 50 --before 4711         next page")]
    Log(ScheduleLog),
}

impl ScheduleVerb {
    /// The role to grant to a login that lacks the privilege for this command.
    pub(crate) fn role(&self) -> &'static str {
        match self {
            Self::List(_)
            | Self::Show(_)
            | Self::Next(_)
            | Self::Calendar(_)
            | Self::Test(_)
            | Self::History(_)
            | Self::Log(_)
            | Self::Backfills(_) => "mill_viewer",
            Self::Enable(_)
            | Self::Disable(_)
            | Self::Set(_)
            | Self::Remove(_)
            | Self::Sync(_)
            | Self::RunNow(_)
            | Self::Backfill(_)
            | Self::PauseBackfill(_)
            | Self::ResumeBackfill(_)
            | Self::CancelBackfill(_)
            | Self::Cancel(_) => "mill_operator",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleList {
    /// Show also schedules whose declaration was removed
    #[arg(long, help_heading = FILTERS)]
    pub(crate) removed: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleOf {
    /// Schedule name
    #[arg(value_parser = label)]
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleName {
    /// Schedule name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).args(["name", "timing"]))]
pub(crate) struct ScheduleNext {
    /// Schedule name
    #[arg(value_parser = label)]
    pub(crate) name: Option<String>,
    /// Timing expression, for example daily(03:15)
    #[arg(long)]
    pub(crate) timing: Option<String>,
    /// Number of fires
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) count: u16,
    /// Show the fires after this time: tomorrow, 2027-03-28, "2027-03-28 03:00" (local), RFC 3339
    /// [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<PeriodBound>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleCalendar {
    /// Begin at this time: today, 2027-03-28, "2027-03-28 03:00" (local), RFC 3339 [default: a day
    /// ago]
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<PeriodBound>,
    /// End before this time [default: in a day]
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<PeriodBound>,
    /// Maximum number of past fires, and of coming fires, of each schedule
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) limit: u16,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args([
    "max_attempts", "max_retries", "retry_interval", "jitter", "timing", "statement", "mode", "jobs", "overlap", "catch_up",
    "max_lateness", "expected_duration", "deadline", "run_timeout", "description",
]))]
pub(crate) struct ScheduleSet {
    /// Schedule name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Maximum number of attempts of each task; declared: remove the override
    #[arg(long, alias = "attempts", value_name = "N|declared", value_parser = or_declared(max_attempts))]
    #[arg(help_heading = OVERRIDES)]
    pub(crate) max_attempts: Option<OrDeclared<u16>>,
    /// Maximum number of attempts after the first one
    #[arg(long, hide = true, value_name = "N", conflicts_with = "max_attempts")]
    #[arg(value_parser = or_declared(max_retries))]
    pub(crate) max_retries: Option<OrDeclared<u16>>,
    /// Wait before the second attempt; declared: remove the override
    #[arg(long, value_name = "DURATION|declared", value_parser = or_declared(duration))]
    #[arg(help_heading = OVERRIDES)]
    pub(crate) retry_interval: Option<OrDeclared<Duration>>,
    /// Maximum random delay of a fire; declared: remove the override
    #[arg(long, value_name = "DURATION|declared", value_parser = or_declared(jitter))]
    #[arg(help_heading = OVERRIDES)]
    pub(crate) jitter: Option<OrDeclared<Duration>>,
    /// Timing expression: manual, a timing such as daily(03:15), or trigger(…)
    #[arg(long, help_heading = DEFINITION)]
    pub(crate) timing: Option<String>,
    /// Statement to run
    #[arg(long, value_name = "SQL", conflicts_with = "jobs", help_heading = DEFINITION)]
    pub(crate) statement: Option<String>,
    /// Mode of the statement
    #[arg(long, value_parser = enum_value::<Mode>(Mode::ALL.iter().map(|it| it.as_str())))]
    #[arg(conflicts_with = "jobs", help_heading = DEFINITION)]
    pub(crate) mode: Option<Mode>,
    /// Jobs to run, separated by commas
    #[arg(long = "job", value_name = "NAMES", value_delimiter = ',', help_heading = DEFINITION)]
    pub(crate) jobs: Option<Vec<String>>,
    /// Skip, queue or allow a fire while a run of the schedule is in progress
    #[arg(long, value_parser = enum_value::<Overlap>(Overlap::ALL.iter().map(|it| it.as_str())))]
    #[arg(help_heading = DEFINITION)]
    pub(crate) overlap: Option<Overlap>,
    /// Maximum number of missed fires that are started late
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    #[arg(help_heading = DEFINITION)]
    pub(crate) catch_up: Option<u16>,
    /// Skip a missed fire that is late by more than this duration
    #[arg(long, value_name = "DURATION", value_parser = max_lateness)]
    #[arg(help_heading = DEFINITION)]
    pub(crate) max_lateness: Option<Duration>,
    /// Duration after which a run is slower than expected
    #[arg(long, value_name = "DURATION", value_parser = max_lateness)]
    #[arg(help_heading = DEFINITION)]
    pub(crate) expected_duration: Option<Duration>,
    /// Time after its fire at which a run is late
    #[arg(long, value_name = "DURATION", value_parser = max_lateness)]
    #[arg(help_heading = DEFINITION)]
    pub(crate) deadline: Option<Duration>,
    /// Time after its start at which a run is cancelled with its running tasks
    #[arg(long, value_name = "DURATION", value_parser = max_lateness)]
    #[arg(help_heading = DEFINITION)]
    pub(crate) run_timeout: Option<Duration>,
    /// Free-text description
    #[arg(long, help_heading = DEFINITION)]
    pub(crate) description: Option<String>,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleRunNow {
    /// Schedule name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Parameter of the run, in addition to those of the schedule; may be repeated. A VALUE that is
    /// not JSON is a string
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = param)]
    pub(crate) params: Vec<(String, Value)>,
    /// Instant for which to run, the fire_at of the run: yesterday, 2026-11-21, "2026-11-21 03:00"
    /// (local), RFC 3339 [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<PeriodBound>,
    /// Start a run even if a run of the schedule is in progress, or the instant has a run already
    #[arg(long)]
    pub(crate) force: bool,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleCancel {
    /// Schedule name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Cancel running tasks as well
    #[arg(long)]
    pub(crate) kill: bool,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleHistory {
    /// Schedule name [default: all schedules]
    #[arg(value_parser = label)]
    pub(crate) name: Option<String>,
    /// Show only runs of this job, such as the procedure whose comment declares schedules
    #[arg(long, value_name = "NAME", value_parser = label, help_heading = FILTERS)]
    pub(crate) job: Option<String>,
    /// Show only runs in this state
    #[arg(long, value_parser = enum_value::<RunState>(RunState::ALL.iter().map(|it| it.as_str())))]
    #[arg(help_heading = FILTERS)]
    pub(crate) state: Option<RunState>,
    /// Show only runs for this instant, whenever they started: "2026-11-21 03:00" (local), RFC 3339
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) at: Option<PeriodBound>,
    /// Show only runs that started in the last DURATION: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "from")]
    #[arg(help_heading = FILTERS)]
    pub(crate) since: Option<Duration>,
    /// Show only runs that started at this time or later: yesterday, 2026-11-21, "2026-11-21 03:00"
    /// (local), RFC 3339
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) from: Option<PeriodBound>,
    /// Show only runs that started before this time
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) to: Option<PeriodBound>,
    /// Show only runs older than this run, for the next page
    #[arg(long, value_name = "RUN", help_heading = FILTERS)]
    pub(crate) before: Option<i64>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleLog {
    /// Schedule name [default: all schedules]
    #[arg(value_parser = label)]
    pub(crate) name: Option<String>,
    /// Show only events of this kind
    #[arg(long, value_parser = enum_value::<Event>(Event::ALL.iter().map(|it| it.as_str())))]
    #[arg(help_heading = FILTERS)]
    pub(crate) event: Option<Event>,
    /// Show only events of the last DURATION: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "from")]
    #[arg(help_heading = FILTERS)]
    pub(crate) since: Option<Duration>,
    /// Show only events at this time or later: yesterday, 2026-11-21, "2026-11-21 03:00" (local),
    /// RFC 3339
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) from: Option<PeriodBound>,
    /// Show only events before this time
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) to: Option<PeriodBound>,
    /// Show only events older than this event, for the next page
    #[arg(long, value_name = "ID", help_heading = FILTERS)]
    pub(crate) before: Option<i64>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

/// The value of an override, or its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrDeclared<T> {
    Own(T),
    Declared,
}

impl<T> OrDeclared<T> {
    /// The value of the override. `None`: the declared value applies.
    pub(crate) fn own(&self) -> Option<&T> {
        match self {
            Self::Own(value) => Some(value),
            Self::Declared => None,
        }
    }
}

fn or_declared<T: Clone + Send + Sync + 'static, E: Into<String> + 'static>(
    parse: fn(&str) -> Result<T, E>,
) -> impl Fn(&str) -> Result<OrDeclared<T>, String> + Clone + Send + Sync + 'static {
    move |text| match text {
        "declared" => Ok(OrDeclared::Declared),
        _ => parse(text).map(OrDeclared::Own).map_err(Into::into),
    }
}

/// Parses the jitter of a schedule: at most one day, as in the schema.
pub(crate) fn jitter(text: &str) -> Result<Duration, String> {
    let found = Some(duration(text)?).filter(|span| *span <= Duration::from_secs(86_400));
    found.ok_or_else(|| "must be at most 1 day".to_owned())
}

fn max_lateness(text: &str) -> Result<Duration, String> {
    let found = Some(duration(text)?).filter(|span| *span <= Duration::from_secs(365 * 86_400));
    found.ok_or_else(|| "must be at most 365 days".to_owned())
}

/// Parses a number of retries. Returns the number of attempts, which is one more.
fn max_retries(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (0..10_000).contains(number));
    let retries =
        number.ok_or_else(|| "expected a number from 0 to 9999, or \"declared\"".to_owned());
    retries.map(|retries: u16| retries + 1)
}

fn max_attempts(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=10_000).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 10000, or \"declared\"".to_owned())
}
