//! Values and options that several commands share.

use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
pub(crate) use cli::duration::parse as duration;
use queue::{RunId, TaskId};
use serde_json::Value;

/// Help heading of options that select rows.
pub(super) const FILTERS: &str = "Filters";

/// Default of `--since`: history has one partition per day, and reading all of them may take long.
pub(crate) const DEFAULT_SINCE: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, clap::Args)]
pub(crate) struct DryRun {
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

pub(super) fn enum_value<T>(
    words: impl Iterator<Item = &'static str>,
) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
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
