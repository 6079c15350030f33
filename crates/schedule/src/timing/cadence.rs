//! Cadences: schedules that fire by the clock.
//!
//! A cadence combines a set of dates (its rule, restricted by an interval and by filters) with a
//! set of times of day (its clock, within a window), both on the wall clock of one time zone.
//! `zone.rs` contains the two rules for clock changes. `every(…)` follows the wall clock, and so
//! does a cron expression whose second, minute or hour field begins with `*`. In all other cadences
//! each time fires once.

use std::fmt;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::timing::call::quoted;
use crate::timing::clock::Clock;
use crate::timing::filter::{Filter, Window};
use crate::timing::rule::{Interval, Rule};
use crate::timing::vocabulary::{DAY, MONTH, ORDINAL, WEEKDAY};
use crate::timing::zone::{Times, first_once, first_shown};

/// A schedule that fires by the clock.
///
/// A local time that does not exist, because the clock is put forward, fires at the first instant
/// after the gap. A local time that exists twice fires once, the first time. `every(…)` differs,
/// and so does a cron expression whose second, minute or hour field begins with `*`. These follow
/// the wall clock: a time that does not exist is skipped, and a time that exists twice fires twice.
/// All fires are at whole seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cadence {
    pub(crate) rule: Rule,
    pub(crate) clock: Clock,
    pub(crate) interval: Option<Interval>,
    pub(crate) filter: Filter,
    pub(crate) zone: TimeZone,
    pub(crate) key: Option<String>,
}

/// Number of years after which the calendar repeats itself, including weekdays.
const SEARCHED_YEARS: i64 = 400;

impl Cadence {
    /// Returns the first fire after an instant, at a whole second. Returns `None` if there is no
    /// fire within 400 years, or before the calendar ends with the year 9999.
    #[must_use]
    pub fn next_fire(&self, after: Timestamp) -> Option<Timestamp> {
        let far = SignedDuration::from_hours(SEARCHED_YEARS * 366 * 24);
        let limit = match self.rule {
            Rule::Once(_) => Timestamp::MAX,
            _ => after.checked_add(far).unwrap_or(Timestamp::MAX),
        };
        self.next_fire_until(after, limit)
    }

    /// Returns the first fire after `after` that is not after `limit`.
    pub(crate) fn next_fire_until(&self, after: Timestamp, limit: Timestamp) -> Option<Timestamp> {
        let (after, limit) = self.within_dates(after, limit)?;
        if self.follows_wall_clock() {
            first_shown(self, &self.zone, after, limit)
        } else {
            first_once(self, &self.zone, after, limit)
        }
    }

    /// Narrows the search to the dates from `from` to `until`, with a day on both sides for the
    /// offset of the zone; `None` if nothing is left.
    fn within_dates(&self, after: Timestamp, limit: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let midnight = |date: Date| jiff::tz::Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).ok();
        let first = self.filter.from.and_then(|from| midnight(from.yesterday().ok()?));
        let last = self
            .filter
            .until
            .and_then(|until| midnight(until.checked_add(jiff::Span::new().days(2)).ok()?));
        let after = first.map_or(after, |first| after.max(first));
        let limit = last.map_or(limit, |last| limit.min(last));
        (after <= limit).then_some((after, limit))
    }

    /// Returns the fires after this instant, in order.
    pub fn fires(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next_fire(after), |at| self.next_fire(*at))
    }

    /// Returns the name of the cadence's time zone.
    #[must_use]
    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Returns the time zone of the cadence, from the zones that are compiled in.
    #[must_use]
    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }

    fn follows_wall_clock(&self) -> bool {
        match &self.rule {
            Rule::Every => true,
            Rule::Cron(cron) => cron.follows_wall_clock(),
            _ => false,
        }
    }

    fn holds(&self, date: Date) -> bool {
        self.filter.holds(date)
            && self.rule.holds(date)
            && self.interval.is_none_or(|interval| interval.holds(&self.rule, date))
    }

    /// Returns the first time of day at or after this second of the day.
    fn first_time(&self, from: u32) -> Option<u32> {
        let Some(window) = self.filter.between else { return self.clock.first(from) };
        let mut from = from;
        loop {
            let time = self.clock.first(window.first(from)?)?;
            if window.first(time) == Some(time) {
                return Some(time);
            }
            from = time;
        }
    }

    /// Returns the positional arguments, sorted.
    fn positional(&self) -> Vec<String> {
        let mut words = match &self.rule {
            Rule::Daily | Rule::Every => Vec::new(),
            Rule::Weekly(days) => WEEKDAY.listed(*days),
            Rule::Monthly(days) => days.words(),
            Rule::Nth { ordinals, weekdays } => {
                [ORDINAL.listed(*ordinals), WEEKDAY.listed(*weekdays)].concat()
            }
            Rule::Once(date) => {
                let time = self.times().concat();
                return vec![format!("{date} {time}")];
            }
            Rule::Cron(cron) => return vec![format!("\"{}\"", cron.text())],
        };
        words.extend(self.times());
        words
    }

    /// Returns the times of day as text; empty for cron.
    pub(crate) fn times(&self) -> Vec<String> {
        match &self.clock {
            Clock::At(times) => times.iter().map(ToString::to_string).collect(),
            Clock::Every(step) => vec![step.to_string()],
            Clock::Fields { .. } => Vec::new(),
        }
    }

    fn named(&self) -> Vec<(&'static str, String)> {
        let filter = &self.filter;
        let list = |words: Vec<String>| words.join(" ");
        let zone = self.zone_name();
        let all = [
            ("every", self.interval.map(|interval| interval.count.to_string())),
            ("from", filter.from.map(|date| date.to_string())),
            ("until", filter.until.map(|date| date.to_string())),
            ("days", filter.days.map(|days| list(WEEKDAY.listed(days)))),
            ("months", filter.months.map(|months| list(MONTH.listed(months)))),
            ("weeks", filter.weeks.map(|weeks| list(ORDINAL.listed(weeks)))),
            ("between", filter.between.as_ref().map(Window::to_string)),
            ("zone", (zone != "UTC").then(|| zone.to_owned())),
            ("key", self.key.clone()),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Returns the word with which the text of the cadence begins.
    pub(crate) fn word(&self) -> &'static str {
        match self.rule {
            Rule::Daily => "daily",
            Rule::Every => "every",
            Rule::Weekly(_) => "weekly",
            Rule::Monthly(_) => "monthly",
            Rule::Nth { .. } => "nth",
            Rule::Once(_) => "once",
            Rule::Cron(_) => "cron",
        }
    }
}

impl Times for Cadence {
    fn first(&self, from: DateTime, until: DateTime) -> Option<DateTime> {
        let mut date = from.date();
        let mut second = second_of_day(from.time());
        if let Rule::Once(once) = self.rule
            && once > date
        {
            (date, second) = (once, 0);
        }
        while date <= until.date() {
            if self.holds(date)
                && let Some(time) = self.first_time(second)
            {
                let time = date.to_datetime(time_at(time)?);
                return (time < until).then_some(time);
            }
            if matches!(self.rule, Rule::Once(once) if once <= date) {
                return None;
            }
            (date, second) = (date.tomorrow().ok()?, 0);
        }
        None
    }
}

fn second_of_day(time: Time) -> u32 {
    let part = |part: i8| u32::from(part.unsigned_abs());
    part(time.hour()) * 3600 + part(time.minute()) * 60 + part(time.second())
}

fn time_at(second: u32) -> Option<Time> {
    debug_assert!(second < DAY);
    let part = |part: u32| i8::try_from(part).ok();
    Time::new(part(second / 3600)?, part(second / 60 % 60)?, part(second % 60)?, 0).ok()
}

/// Prints the canonical text, which parses as an equal cadence.
impl fmt::Display for Cadence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named().into_iter().map(|(name, value)| (name, quoted(&value)));
        let named = named.map(|(name, value)| format!("{name}: {value}"));
        let args: Vec<String> = self.positional().into_iter().chain(named).collect();
        write!(f, "{}({})", self.word(), args.join(", "))
    }
}

#[cfg(test)]
mod tests;
