//! Times of day at which a cadence fires, on the wall clock of its zone.

use std::fmt;

use crate::error::ValidationError;
use crate::timing::vocabulary::{DAY, TimeOfDay};

/// The times of day of a cadence; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// These times, in ascending order.
    At(Vec<TimeOfDay>),
    /// Midnight and each step after it.
    Every(Step),
    /// All combinations of these values.
    Fields { hours: Vec<u16>, minutes: Vec<u16>, seconds: Vec<u16> },
}

impl Clock {
    /// Returns the first time at or after this second of the day.
    pub fn first(&self, from: u32) -> Option<u32> {
        match self {
            Self::At(times) => {
                times.get(times.partition_point(|time| time.0 < from)).map(|time| time.0)
            }
            Self::Every(step) => {
                let time = from.div_ceil(step.seconds()) * step.seconds();
                (time < DAY).then_some(time)
            }
            Self::Fields { hours, minutes, seconds } => {
                first_of_fields([hours, minutes, seconds], from)
            }
        }
    }
}

fn first_of_fields([hours, minutes, seconds]: [&[u16]; 3], from: u32) -> Option<u32> {
    let (mut hour, mut minute, mut second) = (from / 3600, from / 60 % 60, from % 60);
    loop {
        let found = first_of(hours, hour)?;
        if found > hour {
            (hour, minute, second) = (found, 0, 0);
        }
        let Some(found) = first_of(minutes, minute) else {
            (hour, minute, second) = (hour + 1, 0, 0);
            continue;
        };
        if found > minute {
            (minute, second) = (found, 0);
        }
        match first_of(seconds, second) {
            Some(second) => return Some(hour * 3600 + minute * 60 + second),
            None => (minute, second) = (minute + 1, 0),
        }
    }
}

/// Returns the smallest value that is not below `from`.
fn first_of(values: &[u16], from: u32) -> Option<u32> {
    values.iter().map(|value| u32::from(*value)).find(|value| *value >= from)
}

/// The step of `every(…)`, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    count: u32,
    unit: &'static Unit,
}

#[derive(Debug, PartialEq, Eq)]
struct Unit {
    one: &'static str,
    words: &'static [&'static str],
    seconds: u32,
}

const UNITS: &[Unit] = &[
    Unit { one: "second", words: &["s", "sec", "second", "seconds"], seconds: 1 },
    Unit { one: "minute", words: &["m", "min", "minute", "minutes"], seconds: 60 },
    Unit { one: "hour", words: &["h", "hour", "hours"], seconds: 3600 },
];

impl Step {
    /// Parses `5 minutes`.
    ///
    /// # Errors
    /// Fails if the text is not a number with a unit, or exceeds 24 hours.
    pub fn read(text: &str, at: usize) -> Result<Self, ValidationError> {
        let hint = "write a number and a unit, from 1 second to 24 hours, such as 5 minutes";
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let word = text[digits..].trim().to_lowercase();
        let unit = UNITS.iter().find(|unit| unit.words.contains(&word.as_str()));
        let (Ok(count), Some(unit)) = (text[..digits].parse::<u32>(), unit) else {
            let message = "every requires a number of seconds, minutes or hours";
            let days = text[..digits].parse::<u16>().ok();
            let days = days.filter(|_| ["d", "day", "days"].contains(&word.as_str()));
            return Err(ValidationError::new(at, message).hint(match days {
                Some(1) => "for days, write daily with a time of day: daily(00:00)".to_owned(),
                Some(days) => format!("for days, write daily: daily(00:00, every: {days})"),
                None => hint.to_owned(),
            }));
        };
        if count == 0 || u64::from(count) * u64::from(unit.seconds) > u64::from(DAY) {
            return Err(ValidationError::new(at, "the step is out of range").hint(hint));
        }
        Ok(Self { count, unit })
    }

    pub fn seconds(self) -> u32 {
        self.count * self.unit.seconds
    }

    /// Returns "5 minutes", or "minute" for a single one.
    pub fn described(self) -> String {
        if self.count == 1 { self.unit.one.to_owned() } else { self.to_string() }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.count == 1 { "" } else { "s" };
        write!(f, "{} {}{plural}", self.count, self.unit.one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_are_counted_from_midnight() {
        let times = |text| {
            let clock = Clock::Every(Step::read(text, 0).unwrap());
            let mut found = Vec::new();
            while let Some(time) = clock.first(found.last().map_or(0, |last| last + 1)) {
                found.push(time);
            }
            found
        };
        assert_eq!(times("7 hours"), [0, 7 * 3600, 14 * 3600, 21 * 3600]);
        assert_eq!(times("24h"), [0]);
        assert_eq!(times("86400 s"), [0]);
        assert_eq!(times("1 second").len(), 86_400);
        assert_eq!(Step::read("90 MIN", 0).unwrap().to_string(), "90 minutes");
        assert_eq!(Step::read("1 h", 0).unwrap().described(), "hour");
        for wrong in ["", "5", "minutes", "0 s", "25 hours", "99999999999 s", "1.5 h", "5 days"] {
            assert!(Step::read(wrong, 0).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn the_first_of_all_combinations_is_found(
            hours in prop::collection::btree_set(0_u16..24, 1..4),
            minutes in prop::collection::btree_set(0_u16..60, 1..4),
            seconds in prop::collection::btree_set(0_u16..60, 1..4),
            from in 0..DAY,
        ) {
            let all = |values: std::collections::BTreeSet<u16>| values.into_iter().collect();
            let (hours, minutes, seconds): (Vec<u16>, Vec<u16>, Vec<u16>) =
                (all(hours), all(minutes), all(seconds));
            let first = (from..DAY).find(|time| {
                let matches = |values: &[u16], value: u32| values.iter().any(|v| u32::from(*v) == value);
                matches(&hours, time / 3600) && matches(&minutes, time / 60 % 60) && matches(&seconds, time % 60)
            });
            let clock = Clock::Fields { hours, minutes, seconds };
            prop_assert_eq!(clock.first(from), first);
        }
    }
}
