//! Values and options that several commands share.

use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::{Span, SpanRelativeTo};
use queue::TaskId;

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

/// Help of a `--since` option: the examples, and the default where the caller applies one.
pub(super) fn since_help(meaning: &str, condition: &str) -> String {
    let hours = DEFAULT_SINCE.as_secs() / 3600;
    format!("{meaning}: 90s, \"1h 30m\", \"2 days\" [default{condition}: {hours}h]")
}

pub(super) fn task_id(text: &str) -> Result<TaskId, &'static str> {
    text.parse().map(TaskId).map_err(|_| "a task id is an integer")
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const FORMS: &str = "expected \"90s\", \"1h 30m\" or \"2 days\"";
    let span: Span = text.parse().map_err(|_| format!("not a duration; {FORMS}"))?;
    let exact = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| "months and years vary in length; expected days".to_owned())?;
    Duration::try_from(exact).map_err(|_| "must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_friendly_forms() {
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("2 days"), Ok(Duration::from_secs(172_800)));
        assert!(duration("10").unwrap_err().contains("90s"));
        assert!(duration("1 month").unwrap_err().contains("expected days"));
        assert!(duration("-5s").is_err());
    }
}
