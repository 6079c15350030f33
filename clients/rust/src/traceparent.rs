//! The header `traceparent` of W3C Trace Context, as an option of a task.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Numbers of digits of version, trace id, parent id and flags.
const LENGTHS: [usize; 4] = [2, 32, 16, 2];

/// Trace context of a caller: a trace id, the id of the caller's span, and flags. The schema accepts
/// the same texts (`mill.check_traceparent`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", schema(value_type = String, example = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))]
pub struct Traceparent(String);

impl Traceparent {
    /// Returns the trace id: 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.0[3..35]
    }

    /// Returns the id of the caller's span: 16 hexadecimal digits.
    #[must_use]
    pub fn parent_id(&self) -> &str {
        &self.0[36..52]
    }

    /// Returns whether the caller records the trace.
    #[must_use]
    pub fn sampled(&self) -> bool {
        u8::from_str_radix(&self.0[53..], 16).is_ok_and(|flags| flags & 1 == 1)
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Traceparent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('-').collect();
        let lengths = parts.iter().map(|part| part.len());
        let hexadecimal = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        let zero = |part: &str| part.chars().all(|c| c == '0');
        if !lengths.eq(LENGTHS)
            || !parts.iter().all(|part| part.chars().all(hexadecimal))
            || parts[0] == "ff"
            || zero(parts[1])
            || zero(parts[2])
        {
            return Err(format!(
                "invalid traceparent \"{}\"; expected a version, a trace id, a parent id and flags, \
                 as lower-case hexadecimal digits: \
                 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                text.chars().take(100).collect::<String>()
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Traceparent {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Traceparent> for String {
    fn from(traceparent: Traceparent) -> Self {
        traceparent.0
    }
}

impl Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_taken_apart() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let traceparent: Traceparent = text.parse().unwrap();
        assert_eq!(traceparent.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(traceparent.parent_id(), "b7ad6b7169203331");
        assert!(traceparent.sampled());
        let sampled = |flags: &str| {
            let other: Traceparent = format!("{}{flags}", &text[..53]).parse().unwrap();
            other.sampled()
        };
        assert!(sampled("03") && !sampled("00") && !sampled("02"));
    }

    #[test]
    fn a_malformed_traceparent_is_an_error() {
        for text in [
            "",
            "x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c8031é-b7ad6b7169203331-01",
        ] {
            let error = text.parse::<Traceparent>().unwrap_err();
            assert!(error.starts_with(&format!("invalid traceparent \"{text}\"; ")), "{error}");
        }
    }
}
