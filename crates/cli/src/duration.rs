//! Durations on a command line or in a file: `90s`, `1h 30m`, `2 days`, `1.5h`, `PT90S`.
//!
//! Durations in schedules have a grammar of their own, in `crates/schedule/src/timing/duration.rs`,
//! because their texts are stored, compared as texts, and exact to the millisecond. Durations in
//! output are formatted by `terminal::span` and `terminal::exact_span`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// The longest duration that the schema accepts.
pub const MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The reason why a text is not a valid duration.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the message of each variant describes it")]
pub enum DurationError {
    #[error("not a duration; expected \"90s\", \"1h 30m\" or \"2 days\"")]
    NotADuration,
    #[error("missing unit; expected \"{0}s\", \"{0}m\", \"{0}h\" or \"{0} days\"")]
    NoUnit(String),
    #[error("months and years vary in length; expected days")]
    Calendar,
    #[error("must not be negative")]
    Negative,
    #[error("must be at most 365 days")]
    TooLong,
    #[error("must be at least {0:?}")]
    TooShort(Duration),
    #[error("must be between {0:?} and {1:?}")]
    OutOfRange(Duration, Duration),
}

impl From<DurationError> for String {
    fn from(error: DurationError) -> Self {
        error.to_string()
    }
}

/// Parses a duration of any length. A day has 24 hours.
///
/// # Errors
/// Returns an error that names the expected forms, if the text has none of them.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let text = text.trim();
    if text.parse::<f64>().is_ok() {
        return Err(DurationError::NoUnit(text.to_owned()));
    }
    let span: Span = text.parse().map_err(|_| DurationError::NotADuration)?;
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err(DurationError::Calendar);
    }
    let signed = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| DurationError::TooLong)?;
    Duration::try_from(signed).map_err(|_| DurationError::Negative)
}

/// Parses a duration of at most [`MAX`].
///
/// # Errors
/// Returns the errors of [`parse`], and an error for a longer duration.
pub fn parse_limited(text: &str) -> Result<Duration, DurationError> {
    parse(text).and_then(|given| if given > MAX { Err(DurationError::TooLong) } else { Ok(given) })
}

/// Returns a parser of durations in this range, for `value_parser`. If the range ends at [`MAX`],
/// errors do not mention that end.
pub fn within(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<HumanDuration, DurationError> + Clone + Send + Sync + 'static {
    move |text| {
        let given = parse_limited(text)?;
        match (*range.start(), *range.end()) {
            _ if range.contains(&given) => Ok(HumanDuration(given)),
            (min, MAX) => Err(DurationError::TooShort(min)),
            (min, max) => Err(DurationError::OutOfRange(min, max)),
        }
    }
}

/// A duration of at most [`MAX`]. As the value of an option, it is shown in the help as the
/// default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

impl FromStr for HumanDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        parse_limited(text).map(Self)
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_forms_of_a_duration_are_parsed() {
        for (text, seconds) in [
            ("90s", 90.0),
            ("1h 30m", 5400.0),
            ("1h30m", 5400.0),
            ("2 days", 172_800.0),
            ("1w", 604_800.0),
            ("1.5h", 5400.0),
            ("250ms", 0.25),
            ("PT1H", 3600.0),
            ("P2D", 172_800.0),
            ("0s", 0.0),
            ("365 days", 31_536_000.0),
        ] {
            assert_eq!(parse_limited(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        assert_eq!(parse("400 days"), Ok(Duration::from_secs(400 * 86_400)));
    }

    #[test]
    fn an_invalid_duration_names_the_expected_form() {
        use DurationError::{Calendar, Negative, NoUnit, NotADuration, TooLong};
        for (text, expected) in [
            ("", NotADuration),
            ("soon", NotADuration),
            ("90", NoUnit("90".into())),
            ("-5s", Negative),
            ("1 month", Calendar),
            ("366 days", TooLong),
            ("9999999 h", TooLong),
        ] {
            assert_eq!(parse_limited(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn a_range_is_named_in_its_error() {
        let ms = Duration::from_millis;
        let message = |range, text| within(range)(text).unwrap_err().to_string();
        assert_eq!(within(ms(10)..=ms(20))("20ms"), Ok(HumanDuration(ms(20))));
        assert_eq!(message(ms(10)..=ms(20), "21ms"), "must be between 10ms and 20ms");
        assert_eq!(message(ms(10)..=MAX, "9ms"), "must be at least 10ms");
        assert_eq!(message(ms(10)..=MAX, "366 days"), "must be at most 365 days");
    }

    proptest! {
        #[test]
        fn a_formatted_duration_parses_back(milliseconds in 0_u64..31_536_000_000) {
            let expected = Duration::from_millis(milliseconds);
            let written = format!("{:#}", jiff::SignedDuration::try_from(expected).unwrap());
            prop_assert_eq!(parse_limited(&written), Ok(expected));
            let shown = HumanDuration(expected);
            prop_assert_eq!(shown.to_string().parse(), Ok(shown));
        }
    }
}
