//! Maps the wall clock of a zone to instants, by one of two rules for clock changes.
//!
//! A cadence is a set of dates and times on a wall clock. When the clock is put forward, some of
//! these times do not exist; when it is put back, some exist twice.
//!
//! - **Once** ([`first_once`]) is the rule for cadences at given times of day. A time that does not
//!   exist fires at the first instant after the gap, and a time that exists twice fires the first
//!   time. A nightly task must run each night, and only once.
//! - **As the clock shows** ([`first_shown`]) is the rule for cadences that count steps, which must
//!   keep their interval. A time that does not exist is skipped, and a time that exists twice fires
//!   twice.
//!
//! Both rules produce a strictly increasing sequence of instants.

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use crate::error::{ValidationError, nearest, truncated};
use crate::zone_data::zone_data;

/// Returns the zone of this name in the IANA database.
pub(crate) fn read(name: &str, at: usize) -> Result<TimeZone, ValidationError> {
    let unknown = || {
        let message = format!("unknown time zone \"{}\"", truncated(name));
        ValidationError::new(at, message).hint(match similar_zone(name) {
            Some(zone) => format!("did you mean {zone}?"),
            None => "write a name of the IANA time zone database, such as Europe/Berlin".to_owned(),
        })
    };
    zone_data().zone(name).ok_or_else(unknown)
}

/// Returns the zone whose city has this name, or else the zone with the most similar name. `None` if
/// there is no such zone.
#[must_use]
pub fn similar_zone(name: &str) -> Option<String> {
    let zones = zone_data().names();
    let city = name.replace(' ', "_");
    let of_city = |zone: &&String| {
        zone.rsplit_once('/').is_some_and(|(_, last)| last.eq_ignore_ascii_case(&city))
    };
    let names: Vec<&str> = zones.iter().map(String::as_str).collect();
    zones.iter().find(of_city).cloned().or_else(|| nearest(name, &names).map(str::to_owned))
}

/// Times of a wall clock, in ascending order.
pub(crate) trait Times {
    /// Returns the first of these times that is not before `from`, and before `until`.
    fn first(&self, from: DateTime, until: DateTime) -> Option<DateTime>;
}

/// Returns the first instant after `after` and not later than `limit`, by the rule "once".
pub(crate) fn first_once(
    times: &impl Times,
    zone: &TimeZone,
    after: Timestamp,
    limit: Timestamp,
) -> Option<Timestamp> {
    let second = SignedDuration::from_secs(1);
    // Times before the time that the clock shows map to instants at or before the present one,
    // because a later time never maps to an earlier instant.
    let mut from = zone.to_datetime(whole_second(after)?).checked_add(second).ok()?;
    let until = zone.to_datetime(limit).checked_add(second).ok()?;
    loop {
        let time = times.first(from, until)?;
        let instant = instant(time, zone)?;
        // When the clock shows a repeated range for the second time, the times of that range are in
        // the past.
        if instant > after {
            return (instant <= limit).then_some(instant);
        }
        from = time.checked_add(second).ok()?;
    }
}

/// Returns the instant of a time. This is the first of two instants, or the end of the gap if the
/// time is in a gap. Returns `None` at the end of the calendar.
fn instant(time: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(time).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(time).ok(),
        AmbiguousOffset::Gap { after, .. } => {
            // Computed with the offset after the gap, a time in the gap is before the gap.
            let mut changes = zone.following(after.to_timestamp(time).ok()?);
            changes.find(|change| change.offset() == after).map(|change| change.timestamp())
        }
    }
}

/// Returns the first instant after `after` and not later than `limit`, by the rule "as the clock
/// shows".
pub(crate) fn first_shown(
    times: &impl Times,
    zone: &TimeZone,
    after: Timestamp,
    limit: Timestamp,
) -> Option<Timestamp> {
    let second = SignedDuration::from_secs(1);
    let mut from = whole_second(after)?.checked_add(second).ok()?;
    // Between two clock changes, the clock shows every time once.
    while from <= limit {
        let offset: Offset = zone.to_offset(from);
        let change = next_change(zone, from).filter(|change| *change <= limit);
        let end = match change {
            Some(change) => offset.to_datetime(change),
            None => offset.to_datetime(limit).checked_add(second).ok()?,
        };
        if let Some(time) = times.first(offset.to_datetime(from), end) {
            return offset.to_timestamp(time).ok();
        }
        from = change?;
    }
    None
}

fn next_change(zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    zone.following(after).map(|change| change.timestamp()).find(|change| *change > after)
}

/// Returns the second that contains an instant.
fn whole_second(instant: Timestamp) -> Option<Timestamp> {
    let before = i64::from(instant.subsec_nanosecond() < 0);
    Timestamp::from_second(instant.as_second() - before).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_found_by_name() {
        let name = |name| read(name, 3).map(|zone| zone.iana_name().unwrap().to_owned());
        assert_eq!(name("europe/BERLIN").unwrap(), "Europe/Berlin");
        assert_eq!(name("utc").unwrap(), "UTC");
        assert_eq!(read("utc", 0).unwrap(), TimeZone::UTC);
        assert_eq!(name("Etc/UTC").unwrap(), "Etc/UTC");
        for wrong in ["", "Mars", "Etc/Unknown", "CET-1CEST", "+02:00", "../x", "Europe/"] {
            assert_eq!(name(wrong).unwrap_err().at, 3, "{wrong}");
        }
    }

    #[test]
    fn each_gap_of_each_zone_ends_where_the_clock_continues() {
        let mut gaps = 0;
        for name in zone_data().names() {
            let zone = zone_data().zone(&name).unwrap();
            let start = Timestamp::from_second(-3_000_000_000).unwrap();
            let end = Timestamp::from_second(4_000_000_000).unwrap();
            let changes = zone.following(start).take_while(|change| change.timestamp() < end);
            for change in changes.map(|change| change.timestamp()) {
                let second = SignedDuration::from_secs(1);
                let (last, next) = (change - second, zone.to_datetime(change));
                let skipped = zone.to_datetime(last).checked_add(second).unwrap();
                if skipped >= next {
                    continue;
                }
                gaps += 1;
                for time in [skipped, next.checked_sub(second).unwrap(), next] {
                    assert_eq!(instant(time, &zone), Some(change), "{name:?} {time}");
                }
            }
        }
        assert!(gaps > 10_000, "only {gaps}");
    }
}
