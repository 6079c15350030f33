//! Minutes as units of the history: the start of a minute, and the minutes before a time.

use jiff::{SignedDuration, Timestamp};

/// Minutes of "the last hour" on a screen.
pub(crate) const HOUR_MINUTES: i64 = 60;

/// Returns the start of the minute that contains `at`.
pub(crate) fn minute_of(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second().div_euclid(60) * 60).unwrap_or(at)
}

/// Returns `at` plus `minutes`.
pub(crate) fn later(at: Timestamp, minutes: i64) -> Timestamp {
    at + SignedDuration::from_mins(minutes)
}

/// Returns the starts of the last `minutes` minutes, the current minute last.
pub(crate) fn last_minutes(now: Timestamp, minutes: i64) -> impl Iterator<Item = Timestamp> {
    let current = minute_of(now);
    (0..minutes).rev().map(move |back| later(current, -back))
}
