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

use super::capacity::{OrOff, or_word};
use super::value::{DryRun, FILTERS, ObjectName, Period, duration, limit, one_of, param};
pub(crate) use backfill::*;

const OVERRIDES: &str = "Overrides";
const DEFINITION: &str = "Definition";

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleVerb {
    /// List schedules with their next fire and the outcome of their last run
    List(ScheduleList),
    /// Show one schedule: its timing in words, next fires, last runs and events
    Show(ScheduleOf),
    /// Show the next fires of a schedule, or of a timing expression not yet in use
    Next(ScheduleNext),
    /// List past and coming fires of all schedules, in the order of time
    Calendar(ScheduleCalendar),
    /// Enable a schedule: it fires again from now on
    #[command(mut_arg("name", |it| it.help("Schedule name")))]
    Enable(ObjectName),
    /// Disable a schedule: it no longer fires; a run in progress continues
    #[command(mut_arg("name", |it| it.help("Schedule name")))]
    Disable(ObjectName),
    /// Override settings of a schedule, or define a schedule
    Set(ScheduleSet),
    /// Remove a schedule that was declared in a file or by a call such as `schedule set`; its
    /// history is kept. It is deleted when its runs are no longer in history, after 30 days at the
    /// earliest (mill.settings.schedule_log_retention)
    #[command(mut_arg("name", |it| it.help("Schedule name")))]
    Remove(ObjectName),
    /// Synchronize schedules with the annotations in the comments of procedures
    Sync(DryRun),
    /// Start a run now; the regular timing does not change
    RunNow(ScheduleRunNow),
    /// Run a schedule for each instant of a period in the past
    #[command(mut_arg("dry_run", |it| it.help("Show the instants, without starting runs")))]
    Backfill(BackfillStart),
    /// List backfills with their progress, newest first
    Backfills(BackfillList),
    /// Pause a backfill: it starts no more runs; runs in progress continue
    PauseBackfill(BackfillId),
    /// Resume a paused backfill at its next instant
    ResumeBackfill(BackfillId),
    /// End a backfill: it starts no more runs; runs in progress continue
    CancelBackfill(BackfillId),
    /// Cancel the runs of a schedule that are in progress; later fires are not affected
    Cancel(ScheduleCancel),
    /// Show whether a schedule would fire now, and why or why not; fires nothing
    Test(ScheduleOf),
    /// List runs fired by schedules, newest first
    History(ScheduleHistory),
    /// List events of schedules, newest first
    Log(ScheduleLog),
}

impl ScheduleVerb {
    /// Returns whether the command changes nothing in the database.
    pub(super) fn is_query(&self) -> bool {
        matches!(
            self,
            Self::List(_)
                | Self::Show(_)
                | Self::Next(_)
                | Self::Calendar(_)
                | Self::Test(_)
                | Self::History(_)
                | Self::Log(_)
                | Self::Backfills(_)
        )
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
    #[arg(long, alias = "attempts", value_name = "N|declared", value_parser = or_word("declared", max_attempts))]
    #[arg(help_heading = OVERRIDES)]
    pub(crate) max_attempts: Option<OrOff<u16>>,
    /// Maximum number of attempts after the first one
    #[arg(long, hide = true, value_name = "N", conflicts_with = "max_attempts")]
    #[arg(value_parser = or_word("declared", max_retries))]
    pub(crate) max_retries: Option<OrOff<u16>>,
    /// Wait before the second attempt; declared: remove the override
    #[arg(long, value_name = "DURATION|declared", value_parser = or_word("declared", duration))]
    #[arg(help_heading = OVERRIDES)]
    pub(crate) retry_interval: Option<OrOff<Duration>>,
    /// Maximum random delay of a fire; declared: remove the override
    #[arg(long, value_name = "DURATION|declared", value_parser = or_word("declared", jitter))]
    #[arg(help_heading = OVERRIDES)]
    pub(crate) jitter: Option<OrOff<Duration>>,
    /// Timing expression: manual, a timing such as daily(03:15), or trigger(…)
    #[arg(long, help_heading = DEFINITION)]
    pub(crate) timing: Option<String>,
    /// Statement to run
    #[arg(long, value_name = "SQL", conflicts_with = "jobs", help_heading = DEFINITION)]
    pub(crate) statement: Option<String>,
    /// Mode of the statement
    #[arg(long, value_parser = one_of(Mode::ALL), conflicts_with = "jobs", help_heading = DEFINITION)]
    pub(crate) mode: Option<Mode>,
    /// Jobs to run, separated by commas
    #[arg(long = "job", value_name = "NAMES", value_delimiter = ',', help_heading = DEFINITION)]
    pub(crate) jobs: Option<Vec<String>>,
    /// Skip, queue or allow a fire while a run of the schedule is in progress
    #[arg(long, value_parser = one_of(Overlap::ALL), help_heading = DEFINITION)]
    pub(crate) overlap: Option<Overlap>,
    /// Maximum number of missed fires that are started late
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    #[arg(help_heading = DEFINITION)]
    pub(crate) catch_up: Option<u16>,
    /// Skip a missed fire that is late by more than this duration
    #[arg(long, value_name = "DURATION", value_parser = max_lateness, help_heading = DEFINITION)]
    pub(crate) max_lateness: Option<Duration>,
    /// Duration after which a run is slower than expected
    #[arg(long, value_name = "DURATION", value_parser = max_lateness, help_heading = DEFINITION)]
    pub(crate) expected_duration: Option<Duration>,
    /// Time after its fire at which a run is late
    #[arg(long, value_name = "DURATION", value_parser = max_lateness, help_heading = DEFINITION)]
    pub(crate) deadline: Option<Duration>,
    /// Time after its start at which a run is cancelled with its running tasks
    #[arg(long, value_name = "DURATION", value_parser = max_lateness, help_heading = DEFINITION)]
    pub(crate) run_timeout: Option<Duration>,
    /// Free-text description
    #[arg(long, help_heading = DEFINITION)]
    pub(crate) description: Option<String>,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
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
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleCancel {
    /// Schedule name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Cancel running tasks as well
    #[arg(long)]
    pub(crate) kill: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
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
    #[arg(long, value_parser = one_of(RunState::ALL), help_heading = FILTERS)]
    pub(crate) state: Option<RunState>,
    /// Show only runs for this instant, whenever they started: "2026-11-21 03:00" (local), RFC 3339
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    pub(crate) at: Option<PeriodBound>,
    #[command(flatten)]
    pub(crate) period: Period,
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
    #[arg(long, value_parser = one_of(Event::ALL), help_heading = FILTERS)]
    pub(crate) event: Option<Event>,
    #[command(flatten)]
    pub(crate) period: Period,
    /// Show only events older than this event, for the next page
    #[arg(long, value_name = "ID", help_heading = FILTERS)]
    pub(crate) before: Option<i64>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit())]
    pub(crate) limit: i64,
}

/// Parses the jitter of a schedule: at most one day, as in the schema.
pub(crate) fn jitter(text: &str) -> Result<Duration, String> {
    at_most(text, 1, "day")
}

fn max_lateness(text: &str) -> Result<Duration, String> {
    at_most(text, 365, "days")
}

fn at_most(text: &str, days: u64, unit: &str) -> Result<Duration, String> {
    let found = Some(duration(text)?).filter(|span| *span <= Duration::from_secs(days * 86_400));
    found.ok_or_else(|| format!("must be at most {days} {unit}"))
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
