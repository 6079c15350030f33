//! Timings. A timing says what makes a schedule fire.
//!
//! | task | file |
//! |---|---|
//! | text → call: a word with its arguments | `call` |
//! | named arguments of a call: durations, numbers, words, labels | `arguments` |
//! | durations such as `1h 30min`: parser and canonical text | `duration` |
//! | days of the week, months, ordinals and times of day | `vocabulary` |
//! | call → cadence, with checks of its arguments | `parse` |
//! | cadence: dates and times of day in a zone, and its next fires | `cadence` |
//! | dates on which a cadence fires, and intervals between them | `rule` |
//! | times of day at which a cadence fires, steps of `every(…)` | `clock` |
//! | dates and times of day of a cron expression | `cron` |
//! | filters: days, weeks, months, first and last date, window | `filter` |
//! | wall clock → instants, by two rules for clock changes | `zone` |
//! | triggers: fires because of rows of a table or a probe | `trigger` |
//! | key under which the settings of a schedule are stored | `key` |
//! | description of a timing in English | `describe` |

pub(crate) mod arguments;
pub(crate) mod cadence;
pub(crate) mod call;
pub(crate) mod clock;
pub(crate) mod cron;
pub(crate) mod describe;
pub(crate) mod duration;
pub(crate) mod filter;
pub(crate) mod key;
pub(crate) mod parse;
pub(crate) mod rule;
pub(crate) mod trigger;
pub(crate) mod vocabulary;
pub(crate) mod zone;

use std::fmt;

use crate::error::ValidationError;
use crate::timing::cadence::Cadence;
use crate::timing::call::Call;
use crate::timing::parse::{CADENCES, cadence};
use crate::timing::trigger::Trigger;

/// What makes a schedule fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Only a user, who starts a run manually.
    Manual,
    /// The clock.
    Scheduled(Cadence),
    /// The rows of a table, or the result of a probe.
    Triggered(Trigger),
}

impl Timing {
    /// Parses a timing, such as `daily(03:15)`.
    ///
    /// # Errors
    /// Fails at the first part of the text that cannot be parsed or is invalid.
    pub fn parse(text: &str) -> Result<Self, ValidationError> {
        Self::parse_call(text).map_err(|error| match near_miss(text) {
            Some(timing) => error.hint(format!("did you mean {timing}?")),
            None => error,
        })
    }

    fn parse_call(text: &str) -> Result<Self, ValidationError> {
        let call = call::parse(text)?;
        Self::read(&call).unwrap_or_else(|| {
            Err(ValidationError::unknown(call.at, "timing", &call.word, &Self::words()))
        })
    }

    /// Converts a call to a timing. Returns `None` if the word of the call is not that of a timing.
    pub(crate) fn read(call: &Call) -> Option<Result<Self, ValidationError>> {
        match call.word.as_str() {
            "manual" => Some(match call.args.first() {
                None => Ok(Self::Manual),
                Some(arg) => Err(ValidationError::new(arg.at, "manual takes no argument")),
            }),
            "trigger" => Some(Trigger::read(call).map(Self::Triggered)),
            word if CADENCES.contains(&word) => Some(cadence(call).map(Self::Scheduled)),
            _ => None,
        }
    }

    pub(crate) fn words() -> Vec<&'static str> {
        [CADENCES, &["trigger", "manual"]].concat()
    }

    /// Returns the cadence of a scheduled timing.
    #[must_use]
    pub fn cadence(&self) -> Option<&Cadence> {
        match self {
            Self::Scheduled(cadence) => Some(cadence),
            _ => None,
        }
    }

    /// Returns the trigger of a triggered timing.
    #[must_use]
    pub fn trigger(&self) -> Option<&Trigger> {
        match self {
            Self::Triggered(trigger) => Some(trigger),
            _ => None,
        }
    }
}

/// Returns the timing that a text without parentheses probably stands for: a cron expression, such
/// as `0 3 * * *`, or a word and its arguments, such as `every 5 minutes`.
fn near_miss(text: &str) -> Option<String> {
    const MAX_BYTES: usize = 100;
    let text = text.trim().trim_matches(['"', '\'']).trim();
    if text.len() > MAX_BYTES || text.contains(['(', '"']) {
        return None;
    }
    if text.starts_with(|c: char| c.is_ascii_digit() || c == '*') {
        let fields: Vec<&str> = text.split_whitespace().collect();
        return (5..=6).contains(&fields.len()).then(|| format!("cron(\"{}\")", fields.join(" ")));
    }
    let (word, arguments) = text.split_once(char::is_whitespace)?;
    let call = format!("{}({})", word.to_lowercase(), arguments.trim());
    Timing::parse_call(&call).is_ok().then_some(call)
}

/// Prints the canonical text, which parses as an equal timing.
impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manual => f.write_str("manual"),
            Self::Scheduled(cadence) => cadence.fmt(f),
            Self::Triggered(trigger) => trigger.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
