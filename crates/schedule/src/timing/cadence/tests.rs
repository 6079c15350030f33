use jiff::ToSpan;
use jiff::tz::{Offset, TimeZone};
use proptest::prelude::*;

use super::*;
use crate::timing::Timing;

fn cadence(text: &str) -> Cadence {
    Timing::parse(text).unwrap().cadence().unwrap().clone()
}

fn fires(text: &str, after: &str, count: usize) -> Vec<String> {
    let cadence = cadence(text);
    let after = cadence.next_fire(after.parse().unwrap());
    let fires = std::iter::successors(after, |fire| cadence.next_fire(*fire));
    let local = |fire: Timestamp| cadence.zone.to_offset(fire).to_datetime(fire);
    fires.take(count).map(|fire| local(fire).strftime("%m-%d %H:%M").to_string()).collect()
}

#[test]
fn a_time_in_a_gap_fires_at_the_end_of_the_gap() {
    let berlin = "zone: Europe/Berlin";
    let fires = |text: &str| fires(&format!("{text}, {berlin})"), "2026-03-28T12:00:00Z", 3);
    assert_eq!(fires("daily(02:30"), ["03-29 03:00", "03-30 02:30", "03-31 02:30"]);
    assert_eq!(fires("daily(02:00, 02:30, 03:00"), ["03-29 03:00", "03-30 02:00", "03-30 02:30"]);
    assert_eq!(fires("cron(\"15,45 2 * * *\""), ["03-29 03:00", "03-30 02:15", "03-30 02:45"]);
    assert_eq!(
        fires("every(30 minutes, between: 01:30-03:30"),
        ["03-29 01:30", "03-29 03:00", "03-30 01:30"]
    );
    assert_eq!(fires("cron(\"*/30 2 * * *\""), ["03-30 02:00", "03-30 02:30", "03-31 02:00"]);
    assert_eq!(fires("once(2026-03-29 02:30"), ["03-29 03:00"]);
}

#[test]
fn a_repeated_time_fires_once_or_as_the_clock_shows() {
    let berlin = "zone: Europe/Berlin";
    let fires = |text: &str| fires(&format!("{text}, {berlin})"), "2026-10-24T22:00:00Z", 5);
    assert_eq!(
        fires("daily(02:00, 02:30"),
        ["10-25 02:00", "10-25 02:30", "10-26 02:00", "10-26 02:30", "10-27 02:00"]
    );
    assert_eq!(
        fires("every(30 minutes, between: 02:00-03:00"),
        ["10-25 02:00", "10-25 02:30", "10-25 02:00", "10-25 02:30", "10-26 02:00"]
    );
    assert_eq!(
        fires("cron(\"0 */2 * * *\""),
        ["10-25 02:00", "10-25 02:00", "10-25 04:00", "10-25 06:00", "10-25 08:00"]
    );
    assert_eq!(
        fires("cron(\"0 2 * * *\""),
        ["10-25 02:00", "10-26 02:00", "10-27 02:00", "10-28 02:00", "10-29 02:00"]
    );
}

#[test]
fn a_day_that_a_zone_skipped_fires_at_the_start_of_the_next() {
    let apia = fires("daily(09:00, zone: Pacific/Apia)", "2011-12-29T00:00:00Z", 4);
    assert_eq!(apia, ["12-29 09:00", "12-31 00:00", "12-31 09:00", "01-01 09:00"]);
    let apia = fires("every(12 hours, zone: Pacific/Apia)", "2011-12-29T12:00:00Z", 4);
    assert_eq!(apia, ["12-29 12:00", "12-31 00:00", "12-31 12:00", "01-01 00:00"]);
}

#[test]
fn rare_dates_are_found() {
    let text = "monthly(29, 06:00, months: feb, days: mon)";
    let years = |text: &str, after: &str| {
        let cadence = cadence(text);
        let mut years = Vec::new();
        let mut last: Timestamp = after.parse().unwrap();
        while let Some(fire) = cadence.next_fire(last).filter(|_| years.len() < 4) {
            years.push(Offset::UTC.to_datetime(fire).year());
            last = fire;
        }
        years
    };
    assert_eq!(years(text, "2025-01-01T00:00:00Z"), [2044, 2072, 2112, 2140]);
    assert_eq!(years("once(9999-12-30 09:00)", "2026-01-01T00:00:00Z"), [9999]);
    assert_eq!(years("once(0001-01-01 09:00)", "2026-01-01T00:00:00Z"), [] as [i16; 0]);
    assert_eq!(years("once(0001-01-01 09:00)", "0000-06-01T00:00:00Z"), [1]);
}

#[test]
fn the_calendar_has_two_ends() {
    for text in ["daily(03:00)", "every(1 s)", "once(2026-01-01 00:00)", "cron(* * * * *)"] {
        for zone in ["UTC", "Asia/Tokyo", "America/New_York"] {
            let text = format!("{}, zone: {zone})", text.trim_end_matches(')'));
            let cadence = cadence(&text);
            assert!(cadence.next_fire(Timestamp::MIN).is_some(), "{text}");
            assert_eq!(cadence.next_fire(Timestamp::MAX), None, "{text}");
        }
    }
}

#[test]
fn a_timing_begins_and_ends_with_its_dates_in_its_zone() {
    for zone in ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"] {
        let dates = format!("from: 2027-02-01, until: 2027-02-02, zone: {zone}");
        for (timing, expected) in [
            ("daily(00:00", &["02-01 00:00", "02-02 00:00"][..]),
            ("daily(23:59", &["02-01 23:59", "02-02 23:59"]),
            ("every(12 hours", &["02-01 00:00", "02-01 12:00", "02-02 00:00", "02-02 12:00"]),
            ("cron(\"0 6 * * *\"", &["02-01 06:00", "02-02 06:00"]),
            ("weekly(mon, 09:00, every: 2", &["02-01 09:00"]),
        ] {
            let text = format!("{timing}, {dates})");
            assert_eq!(fires(&text, "2026-01-01T00:00:00Z", 9), expected, "{text}");
        }
    }
}

#[test]
fn a_limit_is_inclusive() {
    for text in ["daily(03:00)", "every(3 hours)"] {
        let (after, fire) = ("2026-01-01T01:00:00Z", "2026-01-01T03:00:00Z".parse().unwrap());
        let next = |limit| cadence(text).next_fire_until(after.parse().unwrap(), limit);
        assert_eq!(next(fire), Some(fire), "{text}");
        assert_eq!(next(fire - 1.second()), None, "{text}");
    }
}

/// Returns whether a cadence fires at an instant, computed from this instant alone.
fn fires_at(cadence: &Cadence, instant: Timestamp) -> bool {
    let zone = &cadence.zone;
    let meant = |time: DateTime| {
        let second = second_of_day(time.time());
        cadence.holds(time.date()) && cadence.first_time(second) == Some(second)
    };
    let local = zone.to_datetime(instant);
    if cadence.follows_wall_clock() {
        return meant(local);
    }
    let first = zone.to_ambiguous_timestamp(local).earlier().unwrap() == instant;
    let before = instant - 1.second();
    let mut left_out = zone.to_datetime(before) + 1.second();
    while left_out < local {
        if meant(left_out) {
            return true;
        }
        left_out += 1.second();
    }
    first && meant(local)
}

/// Texts of cadences that fire mostly at night, when clocks change.
fn text() -> impl Strategy<Value = String> {
    let time = (0..4_u8, 0..60_u8).prop_map(|(hour, minute)| format!("{hour:02}:{minute:02}"));
    let times = prop::collection::vec(time, 1..4).prop_map(|times| times.join(", "));
    let days = prop::sample::subsequence(vec!["mon", "wed", "sat", "sun"], 1..4);
    let days = days.prop_map(|days| days.join(", "));
    let cron = "(\\*|\\*/7|[0-5][0-9]|0-29,45) (\\*|\\*/2|[0-3]|1-3) (\\*|1-9|L) \\* (\\*|0|6)";
    let kinds = prop_oneof![
        times.clone().prop_map(|times| format!("daily({times}")),
        (1..200_u32).prop_map(|count| format!("every({count} minutes")),
        (days.clone(), times.clone()).prop_map(|(days, times)| format!("weekly({days}, {times}")),
        times.clone().prop_map(|times| format!("monthly(1, 28, last, {times}")),
        (days, times).prop_map(|(days, times)| format!("nth(first, last, {days}, {times}")),
        cron.prop_map(|cron| format!("cron(\"{cron}\"")),
    ];
    let filters = vec![
        "days: sat-mon",
        "months: oct-mar",
        "weeks: first fifth last",
        "between: 01:15-03:15",
        "between: 22:00-02:30",
    ];
    let filters = prop::sample::subsequence(filters, 0..3);
    let every = prop::option::of(2..4_u8);
    (kinds, filters, every).prop_map(|(kind, filters, every)| {
        let repeats = !kind.starts_with("every") && !kind.starts_with("cron");
        let every = every.filter(|_| repeats).map_or(String::new(), |n| format!(", every: {n}"));
        let filters = filters.into_iter().map(|filter| format!(", {filter}")).collect::<String>();
        format!("{kind}{every}{filters}")
    })
}

const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Africa/Casablanca",
    "Africa/Monrovia",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
];

/// Returns an instant shortly before a clock change, if there is one.
fn before_a_change(zone: &TimeZone, second: i64) -> Timestamp {
    let some = Timestamp::from_second(second).unwrap();
    let change = zone.following(some).next().map_or(some, |change| change.timestamp());
    change - 30.hours() + (second % 3600).seconds() + (second % 1000).milliseconds()
}

/// Compares the fires in 60 hours with those that follow from each instant alone.
fn every_fire_is_found(cadence: &Cadence, after: Timestamp) -> Result<(), TestCaseError> {
    let end = after + 60.hours();
    let mut found = Vec::new();
    let mut last = after;
    while let Some(fire) = cadence.next_fire(last).filter(|fire| *fire <= end) {
        prop_assert!(fire > last, "{}: {} after {}", cadence, fire, last);
        prop_assert_eq!(fire.subsec_nanosecond(), 0);
        found.push(fire);
        last = fire;
    }
    // Every minute of a wall clock and every clock change is at a whole or a half minute.
    let mut expected = Vec::new();
    let mut instant = Timestamp::from_second(after.as_second().div_euclid(30) * 30).unwrap();
    while instant <= end {
        if instant > after && fires_at(cadence, instant) {
            expected.push(instant);
        }
        instant += 30.seconds();
    }
    prop_assert_eq!(found, expected, "{}", cadence);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_fire_is_missing_and_none_is_extra(
        text in text(),
        zone in prop::sample::select(ZONES),
        second in 0_i64..2_000_000_000,
    ) {
        let text = format!("{text}, zone: {zone})");
        let Ok(timing) = Timing::parse(&text) else { return Ok(()) };
        let cadence = timing.cadence().unwrap();
        every_fire_is_found(cadence, before_a_change(&cadence.zone, second))?;
    }

    #[test]
    fn dates_limit_the_fires_and_change_no_other(
        text in text(),
        zone in prop::sample::select(ZONES),
        second in 0_i64..2_000_000_000,
        from in 0_i8..3,
        days in 0_i8..2,
    ) {
        let Ok(timing) = Timing::parse(&format!("{text}, zone: {zone})")) else { return Ok(()) };
        let zone_of = timing.cadence().unwrap().zone.clone();
        let after = before_a_change(&zone_of, second);
        let from = zone_of.to_datetime(after).date() + i64::from(from).days();
        let until = from + i64::from(days).days();
        let text = format!("{text}, from: {from}, until: {until}, zone: {zone})");
        let Ok(timing) = Timing::parse(&text) else { return Ok(()) };
        every_fire_is_found(timing.cadence().unwrap(), after)?;
    }

    #[test]
    fn the_canonical_text_parses_as_an_equal_cadence(text in text(), zone in prop::sample::select(ZONES)) {
        let Ok(timing) = Timing::parse(&format!("{text}, zone: {zone})")) else { return Ok(()) };
        prop_assert_eq!(Timing::parse(&timing.to_string()), Ok(timing));
    }

    #[test]
    fn every_second_is_checked_in_cadences_with_seconds(
        hours in "(\\*|\\*/2|[0-3]|1-3)",
        minutes in "(\\*|\\*/20|59|0|30)",
        seconds in "(\\*/7|[0-5][0-9]|\\*)",
        zone in prop::sample::select(ZONES),
        second in 0_i64..2_000_000_000,
    ) {
        let cadence = cadence(&format!("cron({seconds} {minutes} {hours} * * *, zone: {zone})"));
        let after = before_a_change(&cadence.zone, second) + 28.hours();
        let mut last = after;
        for instant in (1..10_800).map(|second| after + second.seconds()) {
            let instant = Timestamp::from_second(instant.as_second()).unwrap();
            let next = cadence.next_fire(last);
            prop_assert_eq!(next == Some(instant), fires_at(&cadence, instant), "{}", instant);
            if next == Some(instant) {
                last = instant;
            }
        }
    }
}
