//! The dynamic configuration of Patroni: deploy/patroni/patroni.yml, and what a trial changes.

use std::time::Duration;

use crate::catalog::Mode;

const SHIPPED: &str = include_str!("../../../deploy/patroni/patroni.yml");

/// The smallest TTL that Patroni accepts, with a `retry_timeout` that fits: `loop_wait` plus twice
/// `retry_timeout` must not exceed the TTL.
const SHORTEST: [(&str, &str); 2] = [("ttl", "20"), ("retry_timeout", "7")];

const ASYNCHRONOUS: [(&str, &str); 2] =
    [("synchronous_mode", "false"), ("synchronous_mode_strict", "false")];

/// A configuration file with top-level settings.
pub(crate) struct Settings {
    text: String,
    /// Settings with another value than in the shipped file.
    pub(crate) changed: Vec<String>,
}

impl Settings {
    /// Returns the shipped file, or a version that fails over as fast as possible.
    pub(crate) fn shipped(fast: bool) -> Self {
        let shipped = Self { text: SHIPPED.to_owned(), changed: Vec::new() };
        if fast { shipped.with(&SHORTEST) } else { shipped }
    }

    /// Returns the file for a mode.
    pub(crate) fn of_mode(&self, mode: Mode) -> String {
        match mode {
            Mode::Synchronous => self.text.clone(),
            Mode::Asynchronous => self.with(&ASYNCHRONOUS).text,
        }
    }

    /// Returns the file as the value of `bootstrap.dcs`.
    pub(crate) fn indented(&self) -> String {
        self.text.lines().map(|line| format!("    {line}\n")).collect()
    }

    /// Returns a number of seconds.
    pub(crate) fn seconds(&self, name: &str) -> Duration {
        let value = self.text.lines().find_map(|line| value_of(line, name));
        Duration::from_secs(value.and_then(|value| value.parse().ok()).unwrap_or(0))
    }

    fn with(&self, values: &[(&str, &str)]) -> Self {
        let mut changed = self.changed.clone();
        let mut text = String::new();
        for line in self.text.lines() {
            let new = values.iter().find(|(name, _)| value_of(line, name).is_some());
            match new {
                Some((name, value)) => {
                    text += &format!("{name}: {value}\n");
                    changed.push(format!("{name}: {value}"));
                }
                None => text += &format!("{line}\n"),
            }
        }
        Self { text, changed }
    }
}

/// Returns the value if the line sets this top-level setting.
fn value_of<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.strip_prefix(name)?.strip_prefix(':').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_setting_replaces_the_shipped_one() {
        let shipped = Settings::shipped(false);
        assert!(shipped.changed.is_empty());
        assert_eq!(shipped.seconds("ttl"), Duration::from_secs(30));
        let fast = Settings::shipped(true);
        assert_eq!(fast.seconds("ttl"), Duration::from_secs(20));
        assert_eq!(fast.changed, ["ttl: 20", "retry_timeout: 7"]);
        let file = fast.of_mode(Mode::Asynchronous);
        assert!(file.contains("\nsynchronous_mode: false\nsynchronous_mode_strict: false\n"));
        assert!(!file.contains("synchronous_mode: true"), "{file}");
        assert_eq!(file.lines().count(), SHIPPED.lines().count());
    }
}
