//! Durations in readable notation: `90s`, `1h 30m`, `1.5h`, `PT90S`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;

/// The longest duration. No setting needs more; larger values are typing errors.
pub const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A non-negative duration of at most [`MAX_DURATION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span: SignedDuration = text
            .parse()
            .map_err(|_| format!("invalid duration \"{text}\"; use 500ms, 90s, 15m or 1h 30m"))?;
        let span = Duration::try_from(span)
            .map_err(|_| format!("duration \"{text}\" must not be negative"))?;
        if span > MAX_DURATION {
            return Err(format!("duration \"{text}\" must not exceed a year"));
        }
        Ok(Self(span))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
