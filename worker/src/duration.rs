//! Durations as people write them: `90s`, `1h 30m`, `1.5h`, `PT90S`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;

/// A time span that is not negative.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct HumanDuration(pub Duration);

impl HumanDuration {
    /// So many.
    pub(crate) fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span: SignedDuration = text
            .parse()
            .map_err(|_| format!("\"{text}\" is no duration; write 500ms, 90s, 15m or 1h 30m"))?;
        let span = Duration::try_from(span).map_err(|_| format!("\"{text}\" is negative"))?;
        // A year is longer than anything that is meant.
        if span > Duration::from_secs(366 * 24 * 60 * 60) {
            return Err(format!("\"{text}\" is longer than a year"));
        }
        Ok(Self(span))
    }
}

impl TryFrom<String> for HumanDuration {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
