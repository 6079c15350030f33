//! Values and options that several commands share.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use cli::Failure;
pub(crate) use cli::duration::parse as duration;
use cli::time::PeriodBound;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use queue::{RunId, TaskId};
use serde::Serialize;
use serde_json::Value;
use terminal::label;

/// Help heading of options that select rows.
pub(super) const FILTERS: &str = "Filters";

/// Default of `--since`: history has one partition per day, and reading all of them may take long.
pub(crate) const DEFAULT_SINCE: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the instant of a time on the command line, in the local time zone.
///
/// # Errors
/// Fails for a time outside the range of the calendar; the error names the option.
pub(crate) fn instant(
    option: &str,
    bound: Option<&PeriodBound>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Failure> {
    let now = now.to_zoned(TimeZone::system());
    let resolved = bound.map(|bound| bound.resolve(&now)).transpose();
    resolved.map_err(|error| Failure::usage(format!("{option}: {error}")))
}

/// Whether a command only shows what it would change.
#[derive(Clone, Copy, Debug, Default, clap::Args, Serialize)]
#[serde(transparent)]
pub(crate) struct DryRun {
    /// Show what would change, without changing it
    #[arg(long)]
    dry_run: bool,
}

impl DryRun {
    pub(crate) fn is_set(self) -> bool {
        self.dry_run
    }

    /// Returns the words for what would be done, or else for what was done.
    pub(crate) fn or<'a>(self, would: &'a str, done: &'a str) -> &'a str {
        if self.dry_run { would } else { done }
    }
}

impl From<bool> for DryRun {
    fn from(dry_run: bool) -> Self {
        Self { dry_run }
    }
}

/// The name of an object. A command states the kind of the object in the help of this argument.
#[derive(Debug, clap::Args)]
pub(crate) struct ObjectName {
    /// Name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

/// The period that a list shows.
#[derive(Debug, clap::Args)]
pub(crate) struct Period {
    /// Show only the last DURATION: 90s, "1h 30m", "2 days"
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "from")]
    #[arg(help_heading = FILTERS)]
    since: Option<Duration>,
    /// Start of the period: yesterday, 2026-11-21, "2026-11-21 03:00" (local), RFC 3339
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    from: Option<PeriodBound>,
    /// End of the period
    #[arg(long, value_name = "TIME", help_heading = FILTERS)]
    to: Option<PeriodBound>,
}

impl Period {
    /// Returns the bounds of the period. `now` is the time of the database clock.
    ///
    /// # Errors
    /// Fails for a time outside the range of the calendar.
    pub(crate) fn bounds(
        &self,
        now: Timestamp,
    ) -> Result<(Option<Timestamp>, Option<Timestamp>), Failure> {
        let ago = |since| SignedDuration::try_from(since).unwrap_or(SignedDuration::MAX);
        let from = match self.since {
            Some(since) => now.checked_sub(ago(since)).ok(),
            None => instant("--from", self.from.as_ref(), now)?,
        };
        Ok((from, instant("--to", self.to.as_ref(), now)?))
    }
}

/// Filters on tasks that several commands have.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TaskMatch {
    /// Only tasks of this queue
    #[arg(long, help_heading = FILTERS)]
    pub(crate) queue: Option<String>,
    /// Only tasks whose name matches: * stands for any characters, ? for a single one
    #[arg(long, value_name = "PATTERN", help_heading = FILTERS)]
    pub(crate) name: Option<String>,
    /// Only tasks with this tag
    #[arg(long, value_name = "TAG", help_heading = FILTERS)]
    pub(crate) tag: Option<String>,
}

/// Accepts the words of an enum.
pub(super) fn one_of<T>(all: &[T]) -> impl TypedValueParser<Value = T> + use<T>
where
    T: Display + FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(T::to_string)).try_map(|word| word.parse::<T>())
}

pub(super) fn limit() -> clap::builder::RangedI64ValueParser<i64> {
    clap::value_parser!(i64).range(1..=1_000_000)
}

/// Returns the help text of a `--since` option: `meaning`, examples, and the default with the
/// condition under which it applies.
pub(super) fn since_help(meaning: &str, condition: &str) -> String {
    let hours = DEFAULT_SINCE.as_secs() / 3600;
    format!("{meaning}: 90s, \"1h 30m\", \"2 days\" [default{condition}: {hours}h]")
}

/// Parses `NAME=VALUE`. A value that is not JSON is a string.
pub(super) fn param(text: &str) -> Result<(String, Value), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            Ok((name.to_owned(), value))
        }
        _ => Err("expected NAME=VALUE"),
    }
}

pub(super) fn run_id(text: &str) -> Result<RunId, &'static str> {
    text.parse().map(RunId).map_err(|_| "a run id is an integer")
}

pub(super) fn task_id(text: &str) -> Result<TaskId, &'static str> {
    text.parse().map(TaskId).map_err(|_| "a task id is an integer")
}
