//! Dates on which a cadence fires.

use jiff::civil::{Date, date};

use crate::timing::cron::Cron;
use crate::timing::filter::{holds_week, weekday};
use crate::timing::vocabulary::WordSet;

/// The dates of a cadence, before its filters apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Daily,
    /// Every day, as `Daily`. The times of day follow from the step.
    Every,
    Weekly(WordSet),
    Monthly(MonthDays),
    /// The nth of these weekdays of a month.
    Nth {
        ordinals: WordSet,
        weekdays: WordSet,
    },
    Once(Date),
    Cron(Cron),
}

impl Rule {
    pub fn holds(&self, date: Date) -> bool {
        match self {
            Self::Daily | Self::Every => true,
            Self::Weekly(days) => days.holds(weekday(date)),
            Self::Monthly(days) => days.holds(date),
            Self::Nth { ordinals, weekdays } => {
                weekdays.holds(weekday(date)) && holds_week(*ordinals, date)
            }
            Self::Once(day) => *day == date,
            Self::Cron(cron) => cron.holds(date),
        }
    }

    /// Returns the number of days, weeks or months, depending on the rule, between the period that
    /// contains `from` and the period that contains `date`.
    fn periods(&self, from: Date, date: Date) -> i64 {
        let days = |from: Date, date: Date| date.duration_since(from).as_hours() / 24;
        match self {
            Self::Weekly(_) => days(monday(from), monday(date)) / 7,
            Self::Monthly(_) | Self::Nth { .. } => months(date) - months(from),
            _ => days(from, date),
        }
    }
}

fn monday(date: Date) -> Date {
    // Only the very first days of the calendar have no Monday.
    date.checked_sub(jiff::Span::new().days(weekday(date))).unwrap_or(date)
}

fn months(date: Date) -> i64 {
    i64::from(date.year()) * 12 + i64::from(date.month())
}

/// Restricts a rule to every nth day, week or month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    /// The number n, from 1.
    pub count: u16,
    /// A date in the period that has the number 0.
    pub from: Option<Date>,
}

impl Interval {
    pub fn holds(self, rule: &Rule, day: Date) -> bool {
        let from = self.from.unwrap_or(date(1970, 1, 5));
        rule.periods(from, day).rem_euclid(i64::from(self.count)) == 0
    }
}

/// Days of a month by their number, and the last day of the month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MonthDays {
    /// Bit n stands for day n, bit 0 for the last day.
    bits: u32,
}

impl MonthDays {
    /// Adds the day `1` … `31` or `last`. Returns `None` if the word is neither a number nor
    /// `last`.
    pub fn with(self, word: &str) -> Option<Self> {
        let day = match word.parse::<u32>() {
            Ok(day) if !word.starts_with('+') && (1..=31).contains(&day) => day,
            Err(_) if word.eq_ignore_ascii_case("last") => 0,
            _ => return None,
        };
        Some(Self { bits: self.bits | 1 << day })
    }

    pub fn none(self) -> bool {
        self.bits == 0
    }

    fn holds(self, date: Date) -> bool {
        let last = self.bits & 1 != 0 && date.day() == date.days_in_month();
        last || self.bits & 1 << date.day() != 0
    }

    /// Returns the numbers in ascending order, and then `last`.
    pub fn words(self) -> Vec<String> {
        let numbers = (1..=31).filter(|day| self.bits & 1 << day != 0);
        let last = (self.bits & 1 != 0).then(|| "last".to_owned());
        numbers.map(|day: u32| day.to_string()).chain(last).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::vocabulary::{ORDINAL, WEEKDAY};

    fn days_of(rule: &Rule, interval: Option<Interval>, from: Date, days: usize) -> Vec<String> {
        let holds = |day: &Date| {
            rule.holds(*day) && interval.is_none_or(|interval| interval.holds(rule, *day))
        };
        let days = from.series(jiff::Span::new().days(1)).take(days);
        days.filter(holds).map(|day| day.strftime("%m-%d").to_string()).collect()
    }

    fn each(count: u16, from: Date) -> Option<Interval> {
        Some(Interval { count, from: Some(from) })
    }

    #[test]
    fn a_day_that_a_month_lacks_is_skipped() {
        let days = MonthDays::default().with("31").unwrap();
        let from = date(2026, 1, 1);
        assert_eq!(days_of(&Rule::Monthly(days), None, from, 120), ["01-31", "03-31"]);
        let days = days.with("LAST").unwrap().with("1").unwrap();
        assert_eq!(
            days_of(&Rule::Monthly(days), None, from, 90),
            ["01-01", "01-31", "02-01", "02-28", "03-01", "03-31"]
        );
        assert_eq!(days.words(), ["1", "31", "last"]);
        for wrong in ["0", "32", "-1", "first", "", "00", "+1", "99999999999"] {
            assert!(MonthDays::default().with(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn nth_combines_all_ordinals_with_all_weekdays() {
        let rule = Rule::Nth {
            ordinals: ORDINAL.read_list("fifth last", 0).unwrap(),
            weekdays: WEEKDAY.read_list("mon sat", 0).unwrap(),
        };
        let from = date(2026, 1, 1);
        assert_eq!(days_of(&rule, None, from, 59), ["01-26", "01-31", "02-23", "02-28"]);
    }

    #[test]
    fn periods_are_counted_from_the_one_that_contains_from() {
        let from = date(2026, 1, 7);
        let start = date(2025, 12, 29);
        assert_eq!(
            days_of(&Rule::Daily, each(3, from), start, 14),
            ["12-29", "01-01", "01-04", "01-07", "01-10"]
        );
        let monday = Rule::Weekly(WEEKDAY.read_list("mon sun", 0).unwrap());
        assert_eq!(
            days_of(&monday, each(2, from), date(2025, 12, 22), 30),
            ["12-22", "12-28", "01-05", "01-11", "01-19"]
        );
        let first = Rule::Monthly(MonthDays::default().with("1").unwrap());
        assert_eq!(
            days_of(&first, each(5, from), date(2025, 1, 1), 730),
            ["03-01", "08-01", "01-01", "06-01", "11-01"]
        );
        let thursday = Rule::Weekly(WEEKDAY.read_list("thu", 0).unwrap());
        let default = Some(Interval { count: 2, from: None });
        assert_eq!(days_of(&thursday, default, date(1969, 12, 20), 21), ["12-25", "01-08"]);
    }
}
