//! Parses times and durations of the command line.
//!
//! Pure: the current time is an argument, which comes from the database clock.

use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

use crate::duration::{DurationError, parse_limited};

const FORMS: &str = "expected \"2026-12-01 03:00\" (local time, or with a zone or offset), \
                     \"03:00\", \"tomorrow 03:00\" or RFC 3339";

/// The reason why a text is not a valid time or duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the message of each variant describes it")]
pub enum TimeError {
    #[error("not a time; {FORMS}")]
    NotATime,
    #[error("a duration, not a time; use --in \"{0}\"")]
    DurationForTime(String),
    #[error(
        "a duration, not a time; expected \"yesterday\", \"2026-12-01\" or \"2026-12-01 03:00\""
    )]
    DurationForBound,
    #[error("a time, not a duration; use --at \"{0}\"")]
    TimeForDuration(String),
    #[error("missing time of day; expected for example \"{0} 03:00\"")]
    NoTimeOfDay(String),
    #[error("unknown time zone \"{0}\"; expected a name such as Europe/Berlin, or an offset")]
    UnknownZone(String),
    #[error("must be greater than zero")]
    Zero,
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("{at} is in the past; the database's clock shows {now}")]
    Past { at: String, now: String },
    #[error("outside the range of the calendar")]
    OutOfRange,
}

/// A time as written on the command line. The clock and the time zone determine the instant.
#[derive(Clone, Debug, PartialEq)]
pub enum Moment {
    /// A time with a zone or an offset.
    Instant(Timestamp),
    /// A local date and time of day.
    Local(DateTime),
    /// The next occurrence of a local time of day.
    Next(Time),
    /// A local time of day, yesterday, today or tomorrow.
    Day {
        /// Number of days from today: -1, 0 or 1.
        ahead: i8,
        /// Time of that day.
        time: Time,
    },
}

impl std::str::FromStr for Moment {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        let text = text.trim();
        let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if let Some(ahead) = relative_day(first) {
            if rest.trim().is_empty() {
                return Err(TimeError::NoTimeOfDay(first.to_owned()));
            }
            let time = time_of_day(rest).ok_or(TimeError::NotATime)?;
            return Ok(Self::Day { ahead, time });
        }
        if let Some(time) = time_of_day(text) {
            return Ok(Self::Next(time));
        }
        if let Ok(zoned) = text.parse::<Zoned>() {
            return Ok(Self::Instant(zoned.timestamp()));
        }
        if let Ok(instant) = text.parse::<Timestamp>() {
            return Ok(Self::Instant(instant));
        }
        if let Some(local) = date_and_time(text) {
            return Ok(Self::Local(local));
        }
        if text.parse::<Date>().is_ok() {
            return Err(TimeError::NoTimeOfDay(text.to_owned()));
        }
        if text.parse::<Span>().is_ok() {
            return Err(TimeError::DurationForTime(text.to_owned()));
        }
        with_trailing_zone(text)
    }
}

/// Returns the number of days from today to the named day.
fn relative_day(name: &str) -> Option<i8> {
    match name.to_ascii_lowercase().as_str() {
        "yesterday" => Some(-1),
        "today" => Some(0),
        "tomorrow" => Some(1),
        _ => None,
    }
}

/// Parses `2026-12-01 03:00 Europe/Berlin`, `… +01:00`, `… UTC`.
fn with_trailing_zone(text: &str) -> Result<Moment, TimeError> {
    let (front, zone) = text.rsplit_once(char::is_whitespace).ok_or(TimeError::NotATime)?;
    let local = date_and_time(front.trim_end()).ok_or(TimeError::NotATime)?;
    if let Ok(instant) = format!("{local}{zone}").parse::<Timestamp>() {
        return Ok(Moment::Instant(instant));
    }
    let zone = TimeZone::get(zone).map_err(|_| TimeError::UnknownZone(zone.to_owned()))?;
    let instant = zone.to_timestamp(local).map_err(|_| TimeError::OutOfRange)?;
    Ok(Moment::Instant(instant))
}

/// Parses a date with a time of day. A date alone is refused, because it would mean midnight, which
/// is rarely intended.
fn date_and_time(text: &str) -> Option<DateTime> {
    let (date, time) = text.split_once(['T', 't']).or_else(|| text.split_once(' '))?;
    Some(date.parse::<Date>().ok()?.to_datetime(time_of_day(time)?))
}

/// Parses `3:00`, `03:00` or `03:00:15`.
fn time_of_day(text: &str) -> Option<Time> {
    let mut numbers = [0_i8; 3];
    let mut parts = 0;
    for part in text.trim().split(':') {
        let valid = (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        *numbers.get_mut(parts).filter(|_| valid)? = part.parse().ok()?;
        parts += 1;
    }
    (parts >= 2).then(|| Time::new(numbers[0], numbers[1], numbers[2], 0).ok()).flatten()
}

impl Moment {
    /// Returns the instant, which is never before `now`. The zone of `now` is the local zone. A
    /// local time inside a gap becomes the time after the gap. Of a local time that occurs twice,
    /// the first occurrence counts.
    ///
    /// # Errors
    /// Returns an error for a time in the past or outside the range of the calendar.
    pub fn resolve(&self, now: &Zoned) -> Result<Timestamp, TimeError> {
        let at = self.on_clock(now)?;
        if at < *now {
            return Err(TimeError::Past { at: local_text(&at), now: local_text(now) });
        }
        Ok(at.timestamp())
    }

    /// Returns the time in the zone of `now`, also if it is in the past.
    fn on_clock(&self, now: &Zoned) -> Result<Zoned, TimeError> {
        let zone = now.time_zone();
        let on = |date: Date, time: Time| {
            zone.to_zoned(date.to_datetime(time)).map_err(|_| TimeError::OutOfRange)
        };
        let day = |ahead: i8| {
            now.date().checked_add(Span::new().days(ahead)).map_err(|_| TimeError::OutOfRange)
        };
        Ok(match self {
            Self::Instant(instant) => instant.to_zoned(zone.clone()),
            Self::Local(local) => on(local.date(), local.time())?,
            Self::Day { ahead, time } => on(day(*ahead)?, *time)?,
            Self::Next(time) => {
                let twice = zone.to_ambiguous_zoned(now.date().to_datetime(*time));
                let second = twice.later().map_err(|_| TimeError::OutOfRange)?;
                [on(now.date(), *time)?, second]
                    .into_iter()
                    .find(|today| today > now)
                    .map_or_else(|| on(day(1)?, *time), Ok)?
            }
        })
    }
}

/// The start or end of a period, as written on the command line. It has the forms of a [`Moment`];
/// a day alone means the start of this day, and a time of day alone means today.
#[derive(Clone, Debug, PartialEq)]
pub struct PeriodBound(Moment);

impl std::str::FromStr for PeriodBound {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        let text = text.trim();
        match text.parse() {
            Ok(Moment::Next(time)) => Ok(Self(Moment::Day { ahead: 0, time })),
            Ok(moment) => Ok(Self(moment)),
            Err(TimeError::NoTimeOfDay(_)) => match (relative_day(text), text.parse::<Date>()) {
                (Some(ahead), _) => Ok(Self(Moment::Day { ahead, time: Time::midnight() })),
                (None, Ok(date)) => Ok(Self(Moment::Local(date.to_datetime(Time::midnight())))),
                (None, Err(_)) => Err(TimeError::NotATime),
            },
            Err(TimeError::DurationForTime(_)) => Err(TimeError::DurationForBound),
            Err(error) => Err(error),
        }
    }
}

impl PeriodBound {
    /// Returns the instant. The zone of `now` is the local zone. Clock changes count as in
    /// [`Moment::resolve`].
    ///
    /// # Errors
    /// Returns an error for a time outside the range of the calendar.
    pub fn resolve(&self, now: &Zoned) -> Result<Timestamp, TimeError> {
        self.0.on_clock(now).map(|at| at.timestamp())
    }
}

/// Formats a time to the second, with the name and the offset of its zone.
pub fn local_text(at: &Zoned) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S %Z (%:z)").to_string()
}

/// Parses a duration of at most 365 days. A day has 24 hours.
///
/// # Errors
/// Returns an error that names the expected forms, if the text has none of them.
pub fn duration(text: &str) -> Result<Duration, TimeError> {
    parse_limited(text).map_err(|error| match error {
        DurationError::NotADuration if text.parse::<Moment>().is_ok() => {
            TimeError::TimeForDuration(text.trim().to_owned())
        }
        other => TimeError::Duration(other),
    })
}

/// Parses a duration like [`duration`]. It must be at least a microsecond, the resolution of the
/// database.
///
/// # Errors
/// Returns the errors of [`duration`], and an error for a shorter duration.
pub fn positive_duration(text: &str) -> Result<Duration, TimeError> {
    match duration(text)? {
        span if span < Duration::from_micros(1) => Err(TimeError::Zero),
        span => Ok(span),
    }
}

#[cfg(test)]
mod tests;
