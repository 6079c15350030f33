use super::*;

use jiff::tz::TimeZone;
use proptest::prelude::*;

fn berlin(text: &str) -> Zoned {
    text.parse::<DateTime>().unwrap().in_tz("Europe/Berlin").unwrap()
}

fn resolved(text: &str, now: &str) -> Result<String, TimeError> {
    let now = berlin(now);
    let at = text.parse::<Moment>()?.resolve(&now)?;
    Ok(at.to_zoned(now.time_zone().clone()).strftime("%Y-%m-%d %H:%M:%S%:z").to_string())
}

#[test]
fn all_forms_of_a_time_are_parsed() {
    let now = "2026-11-21 10:00";
    for (text, expected) in [
        ("2026-12-01 03:00", "2026-12-01 03:00:00+01:00"),
        ("2026-12-01T03:00", "2026-12-01 03:00:00+01:00"),
        ("2026-12-01 3:00:15", "2026-12-01 03:00:15+01:00"),
        ("2026-12-01T03:00:00Z", "2026-12-01 04:00:00+01:00"),
        ("2026-12-01 03:00Z", "2026-12-01 04:00:00+01:00"),
        ("2026-12-01T03:00:00.5-05:00", "2026-12-01 09:00:00+01:00"),
        ("2026-12-01 03:00-05:00", "2026-12-01 09:00:00+01:00"),
        ("2026-12-01 03:00 -05:00", "2026-12-01 09:00:00+01:00"),
        ("2026-12-01 03:00 -05", "2026-12-01 09:00:00+01:00"),
        ("2026-12-01 03:00 UTC", "2026-12-01 04:00:00+01:00"),
        ("2026-12-01 03:00 America/New_York", "2026-12-01 09:00:00+01:00"),
        ("2026-12-01T03:00[America/New_York]", "2026-12-01 09:00:00+01:00"),
        ("tomorrow 03:00", "2026-11-22 03:00:00+01:00"),
        ("Tomorrow  3:00", "2026-11-22 03:00:00+01:00"),
        ("today 23:59", "2026-11-21 23:59:00+01:00"),
        (" 11:00 ", "2026-11-21 11:00:00+01:00"),
        ("03:00", "2026-11-22 03:00:00+01:00"),
        ("10:00", "2026-11-22 10:00:00+01:00"),
    ] {
        assert_eq!(resolved(text, now).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn an_invalid_time_names_the_expected_form() {
    use TimeError::{DurationForTime, NoTimeOfDay, NotATime, UnknownZone};
    for (text, expected) in [
        ("", NotATime),
        ("soon", NotATime),
        ("25:00", NotATime),
        ("3:0:0:0", NotATime),
        ("2026-02-30 03:00", NotATime),
        ("tomorrow noon", NotATime),
        ("tomorrow", NoTimeOfDay("tomorrow".into())),
        ("2026-12-01", NoTimeOfDay("2026-12-01".into())),
        ("2h", DurationForTime("2h".into())),
        ("2026-12-01 03:00 Europe/Berlinn", UnknownZone("Europe/Berlinn".into())),
    ] {
        assert_eq!(text.parse::<Moment>(), Err(expected), "{text}");
    }
}

#[test]
fn a_bound_of_a_period_may_be_a_day_and_in_the_past() {
    let now = berlin("2026-11-21 10:00");
    for (text, expected) in [
        ("yesterday", "2026-11-20 00:00:00+01:00"),
        ("Today", "2026-11-21 00:00:00+01:00"),
        ("tomorrow", "2026-11-22 00:00:00+01:00"),
        ("yesterday 03:00", "2026-11-20 03:00:00+01:00"),
        ("2026-10-25", "2026-10-25 00:00:00+02:00"),
        ("2026-11-01 3:00", "2026-11-01 03:00:00+01:00"),
        ("2026-11-01T00:00:00Z", "2026-11-01 01:00:00+01:00"),
        ("03:00", "2026-11-21 03:00:00+01:00"),
        ("23:00", "2026-11-21 23:00:00+01:00"),
    ] {
        let at = text.parse::<PeriodBound>().and_then(|bound| bound.resolve(&now)).unwrap();
        let shown = at.to_zoned(now.time_zone().clone()).strftime("%F %T%:z").to_string();
        assert_eq!(shown, expected, "{text}");
    }
    assert_eq!("soon".parse::<PeriodBound>(), Err(TimeError::NotATime));
    assert_eq!("2h".parse::<PeriodBound>(), Err(TimeError::DurationForBound));
    assert_eq!("2026-02-30".parse::<PeriodBound>(), Err(TimeError::NotATime));
}

#[test]
fn the_past_is_refused_with_both_clocks() {
    let error = resolved("2026-11-21 09:59", "2026-11-21 10:00").unwrap_err();
    assert_eq!(
        error.to_string(),
        "2026-11-21 09:59:00 CET (+01:00) is in the past; \
         the database's clock shows 2026-11-21 10:00:00 CET (+01:00)"
    );
    assert!(matches!(resolved("today 09:00", "2026-11-21 10:00"), Err(TimeError::Past { .. })));
    assert!(resolved("2026-11-21 10:00", "2026-11-21 10:00").is_ok());
}

#[test]
fn a_clock_change_loses_no_task() {
    // 02:30 does not exist on 2026-03-29, and occurs twice on 2026-10-25.
    assert_eq!(
        resolved("2026-03-29 02:30", "2026-03-28 10:00").as_deref(),
        Ok("2026-03-29 03:30:00+02:00")
    );
    assert_eq!(resolved("02:30", "2026-10-25 01:00").as_deref(), Ok("2026-10-25 02:30:00+02:00"));
    let between = "2026-10-25 02:45+02:00[Europe/Berlin]".parse::<Zoned>().unwrap();
    let next = "02:30".parse::<Moment>().unwrap().resolve(&between).unwrap();
    assert_eq!(next.duration_since(between.timestamp()).as_secs(), 45 * 60);
}

#[test]
fn a_time_in_place_of_a_duration_names_its_option() {
    let given = TimeError::TimeForDuration("tomorrow 03:00".into());
    assert_eq!(duration("tomorrow 03:00"), Err(given));
    assert_eq!(duration("soon"), Err(TimeError::Duration(DurationError::NotADuration)));
    assert_eq!(positive_duration("0s"), Err(TimeError::Zero));
    assert_eq!(positive_duration("1ns"), Err(TimeError::Zero));
    assert!(positive_duration("1us").is_ok());
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,40}", dense in "[0-9:TtZ+ -]{0,30}") {
        let now = Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        for text in [text, dense] {
            let _ = text.parse::<Moment>().and_then(|moment| moment.resolve(&now));
            let _ = text.parse::<PeriodBound>().and_then(|bound| bound.resolve(&now));
            let _ = duration(&text);
        }
    }

    #[test]
    fn the_next_time_of_day_is_within_a_day_and_matches_the_clock(
        second in 0_i64..2_000_000_000,
        (hour, minute) in (0_i8..24, 0_i8..60),
    ) {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let now = Timestamp::from_second(second).unwrap().to_zoned(zone.clone());
        let next = Moment::Next(Time::new(hour, minute, 0, 0).unwrap()).resolve(&now).unwrap();
        let ahead = next.duration_since(now.timestamp());
        prop_assert!(ahead.is_positive() && ahead.as_hours() <= 25, "{now}: {next}");
        let shown = next.to_zoned(zone);
        // If the local time is in the gap of a clock change in spring, the result is an hour later.
        prop_assert!(shown.minute() == minute && (shown.hour() - hour).abs() <= 1);
    }
}
