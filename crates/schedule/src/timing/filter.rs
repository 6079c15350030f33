//! Filters on a cadence. All filters of a cadence must match the date and time of the wall clock as
//! written, before a clock change moves that time.

use std::fmt;

use jiff::civil::Date;

use crate::error::ValidationError;
use crate::timing::vocabulary::{LAST, TimeOfDay, WordSet};

/// The conditions of a filter. A condition that is `None` always matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub days: Option<WordSet>,
    pub months: Option<WordSet>,
    /// Weeks of the month: the first is days 1–7, the second days 8–14, and so on; the last is the
    /// last 7 days.
    pub weeks: Option<WordSet>,
    pub between: Option<Window>,
    /// First date.
    pub from: Option<Date>,
    /// Last date.
    pub until: Option<Date>,
}

impl Filter {
    pub fn holds(&self, date: Date) -> bool {
        self.months.is_none_or(|months| months.holds(date.month().unsigned_abs() - 1))
            && self.days.is_none_or(|days| days.holds(weekday(date)))
            && self.weeks.is_none_or(|weeks| holds_week(weeks, date))
            && self.from.is_none_or(|from| date >= from)
            && self.until.is_none_or(|until| date <= until)
    }
}

/// Returns the number of the weekday; Monday is 0.
pub(crate) fn weekday(date: Date) -> u8 {
    date.weekday().to_monday_zero_offset().unsigned_abs()
}

/// Returns whether the date is in one of these weeks of its month. Weeks are counted in steps of
/// seven days from the start or the end of the month. For a weekday this is the same as "the nth of
/// the month".
pub(crate) fn holds_week(weeks: WordSet, date: Date) -> bool {
    let day = date.day().unsigned_abs();
    weeks.holds((day - 1) / 7) || weeks.holds(LAST) && day + 7 > date.days_in_month().unsigned_abs()
}

/// The time of day from the first time inclusive to the second exclusive. The window spans midnight
/// if the second time is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub from: TimeOfDay,
    pub to: TimeOfDay,
}

impl Window {
    /// Parses `09:00-17:00`.
    pub fn read(text: &str, at: usize) -> Result<Self, ValidationError> {
        let Some((from, to)) = text.split_once('-') else {
            return Err(
                ValidationError::new(at, "expected two times of day").hint("such as 09:00-17:00")
            );
        };
        let from = TimeOfDay::read(from.trim(), at)?;
        let to = TimeOfDay::read(to.trim(), at).map_err(|error| match to.trim() {
            "24:00" => error.hint("use 00:00 for the end of the day"),
            _ => error,
        })?;
        if from == to {
            return Err(ValidationError::new(at, "the two times are equal")
                .hint("omit between for the whole day"));
        }
        Ok(Self { from, to })
    }

    fn holds(self, time: u32) -> bool {
        let (after_from, before_to) = (self.from.0 <= time, time < self.to.0);
        if self.from < self.to { after_from && before_to } else { after_from || before_to }
    }

    /// Returns the first second of the same day inside the window, at or after `time`.
    pub fn first(self, time: u32) -> Option<u32> {
        if self.holds(time) {
            return Some(time);
        }
        (time < self.from.0).then_some(self.from.0)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::vocabulary::ORDINAL;
    use jiff::civil::date;

    #[test]
    fn weeks_are_sevens_of_days() {
        let days = |text, year, month| -> Vec<i8> {
            let weeks = ORDINAL.read_list(text, 0).unwrap();
            let first = date(year, month, 1);
            let matches = |day: &i8| holds_week(weeks, first.with().day(*day).build().unwrap());
            (1..=first.days_in_month()).filter(matches).collect()
        };
        assert_eq!(days("first", 2026, 3), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(days("fifth", 2026, 3), [29, 30, 31]);
        assert_eq!(days("fifth", 2026, 2), [] as [i8; 0]);
        assert_eq!(days("fifth", 2028, 2), [29]);
        assert_eq!(days("last", 2026, 4), [24, 25, 26, 27, 28, 29, 30]);
        assert_eq!(days("fourth last", 2026, 2), [22, 23, 24, 25, 26, 27, 28]);
    }

    #[test]
    fn a_window_may_span_midnight() {
        let window = |text| Window::read(text, 0).unwrap();
        let first = |text, hour: u32| window(text).first(hour * 3600).map(|time| time / 3600);
        let day = "09:00-17:00";
        assert_eq!(
            (first(day, 0), first(day, 9), first(day, 16), first(day, 17)),
            (Some(9), Some(9), Some(16), None)
        );
        let night = "22:00-06:00";
        assert_eq!(
            (first(night, 0), first(night, 5), first(night, 6), first(night, 22)),
            (Some(0), Some(5), Some(22), Some(22))
        );
        let evening = "17:00-00:00";
        assert_eq!((first(evening, 0), first(evening, 23)), (Some(17), Some(23)));
        for wrong in ["09:00", "09:00-09:00", "09:00-24:00", "-", "09:00-10:00-11:00"] {
            assert!(Window::read(wrong, 0).is_err(), "{wrong}");
        }
    }
}
