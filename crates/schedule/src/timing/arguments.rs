//! Parses the named arguments of a call, according to the types of their values.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{ValidationError, truncated};
use crate::timing::call::Call;
use crate::timing::duration;

/// Number of seconds of a day.
pub(crate) const DAY_SECS: u64 = 86_400;

impl Call {
    /// Returns a duration that must be within a range.
    pub fn length(
        &self,
        name: &str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>, ValidationError> {
        let Some(arg) = self.named(name) else { return Ok(None) };
        let length = duration::parse(&arg.value, arg.at)?;
        if range.contains(&length) {
            return Ok(Some(length));
        }
        let range = format!(
            "expected a duration from {} to {}",
            duration::format(*range.start()),
            duration::format(*range.end())
        );
        Err(ValidationError::new(arg.at, format!("{name} is out of range")).hint(range))
    }

    /// Returns an integer that must be within a range.
    pub fn number(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ValidationError> {
        let Some(arg) = self.named(name) else { return Ok(None) };
        let digits = arg.value.bytes().all(|b| b.is_ascii_digit());
        let number = arg.value.parse::<u64>().ok();
        number.filter(|number| digits && range.contains(number)).map(Some).ok_or_else(|| {
            let message = format!("{name} is not an integer in the allowed range");
            ValidationError::new(arg.at, message).hint(format!(
                "expected an integer from {} to {}",
                range.start(),
                range.end()
            ))
        })
    }

    /// Returns a value that must be `true` or `false`.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ValidationError> {
        let truth = self.one_of(name, &["true", "false"])?;
        Ok(truth.map(|word| word == "true"))
    }

    /// Returns a value that must be one of the given words, in lower case.
    pub fn one_of(&self, name: &str, words: &[&str]) -> Result<Option<String>, ValidationError> {
        let Some(arg) = self.named(name) else { return Ok(None) };
        let word = arg.value.to_ascii_lowercase();
        if words.contains(&word.as_str()) {
            Ok(Some(word))
        } else {
            Err(ValidationError::unknown(arg.at, name, &arg.value, words))
        }
    }

    /// Returns a text, which must have 1 to 512 bytes.
    pub fn label(&self, name: &str) -> Result<Option<String>, ValidationError> {
        let Some(arg) = self.named(name) else { return Ok(None) };
        match arg.value.len() {
            1..=512 => Ok(Some(arg.value.clone())),
            _ => Err(ValidationError::new(arg.at, format!("{name} must have 1 to 512 bytes"))),
        }
    }

    /// Returns an error if an argument has no name.
    pub fn no_positional(&self) -> Result<(), ValidationError> {
        let Some(arg) = self.positional().next() else { return Ok(()) };
        let message = format!("argument \"{}\" has no name", truncated(&arg.value));
        Err(ValidationError::new(arg.at, message).hint("write each argument as name: value"))
    }
}

/// Maximum length of a key, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 100;

/// Parses `key: …`.
///
/// # Errors
/// Fails on characters other than `[a-z0-9_]`, or on more than 100 characters.
pub(crate) fn key(call: &Call) -> Result<Option<String>, ValidationError> {
    let Some(arg) = call.named("key") else { return Ok(None) };
    let key = arg.value.to_ascii_lowercase();
    let fits = key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if fits && (1..=MAX_KEY_BYTES).contains(&key.len()) {
        Ok(Some(key))
    } else {
        Err(ValidationError::new(arg.at, "invalid key")
            .hint("a key has 1 to 100 characters: letters a to z, digits and _"))
    }
}
