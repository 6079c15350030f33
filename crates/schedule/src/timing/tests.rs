use proptest::prelude::*;

use super::*;

fn error_of(text: &str) -> (usize, String) {
    let error_of = Timing::parse(text).unwrap_err();
    (error_of.at, error_of.message)
}

#[test]
fn the_canonical_text_is_in_one_order() {
    for (text, canonical) in [
        ("MANUAL()", "manual"),
        ("daily(17:00,09:00:00)", "daily(09:00, 17:00)"),
        ("every(5m, zone: europe/berlin)", "every(5 minutes, zone: Europe/Berlin)"),
        ("weekly(09:00, fri, mon-thu)", "weekly(mon-fri, 09:00)"),
        ("weekly(weekend, 09:00)", "weekly(sat, sun, 09:00)"),
        ("monthly(09:00, last, 3)", "monthly(3, last, 09:00)"),
        ("nth(mon, 09:00, last, first)", "nth(first, last, mon, 09:00)"),
        ("once(2026-06-01T09:00:30)", "once(2026-06-01 09:00:30)"),
        ("cron(30  2 * * 1-5)", "cron(\"30 2 * * 1-5\")"),
        (
            "daily(09:00, key: K, zone: UTC, between: 08:00 - 10:00, weeks: last first, \
             months: Mar jan feb, days: weekdays, from: 2026-01-05, every: 2)",
            "daily(09:00, every: 2, from: 2026-01-05, days: mon-fri, months: jan-mar, \
             weeks: first last, between: 08:00-10:00, key: k)",
        ),
        ("trigger(rows:1,table:a)", "trigger(table: a, rows: 1)"),
    ] {
        assert_eq!(Timing::parse(text).unwrap().to_string(), canonical);
    }
}

#[test]
fn a_near_miss_names_the_timing() {
    for (text, hint) in [
        ("0 3 * * *", "did you mean cron(\"0 3 * * *\")?"),
        (" '*/5  8-18 * * 1,3' ", "did you mean cron(\"*/5 8-18 * * 1,3\")?"),
        ("every 5 minutes", "did you mean every(5 minutes)?"),
        ("Daily 03:15", "did you mean daily(03:15)?"),
        ("weekly mon, 09:00", "did you mean weekly(mon, 09:00)?"),
        ("every(1 day)", "for days, write daily with a time of day: daily(00:00)"),
        ("every(2 days)", "for days, write daily: daily(00:00, every: 2)"),
        ("weekly(mon wed)", "separate them with commas: mon, wed"),
        ("weekly(Mon thu, 09:00)", "separate them with commas: Mon, thu"),
        ("nth(first mon, 09:00)", "separate them with commas: first, mon"),
        ("daily(03:15, tz: Europe/Berlin)", "did you mean zone?"),
        ("daily(03:15, timezone: Europe/Berlin)", "did you mean zone?"),
        ("daily(03:15, zone: Berlin)", "did you mean Europe/Berlin?"),
        ("daily(03:15, zone: new york)", "did you mean America/New_York?"),
        ("daily(03:15, zone: Europe/Berln)", "did you mean Europe/Berlin?"),
        (
            "daily(03:15, zone: Mars/Olympus)",
            "write a name of the IANA time zone database, such as Europe/Berlin",
        ),
        // A text that is nothing of the kind keeps its own hint.
        ("0 3 * *", "a timing begins with a word, such as daily(03:15)"),
        ("daily 25:00", "a timing is word(argument, name: value), such as daily(03:15, days: mon)"),
    ] {
        assert_eq!(Timing::parse(text).unwrap_err().hint.as_deref(), Some(hint), "{text}");
    }
}

#[test]
fn errors_have_a_message_and_a_position() {
    for (text, at, message) in [
        ("dayly(09:00)", 0, "unknown timing \"dayly\""),
        ("manual(1)", 7, "manual takes no argument"),
        ("daily", 0, "daily needs a time of day"),
        ("daily(days: mon)", 0, "daily needs a time of day"),
        ("daily(09:00, days: mon, wed)", 24, "\"wed\" follows days: and has no name itself"),
        ("weekly(mon, 09:00, days: mon, fri)", 30, "\"fri\" follows days: and has no name itself"),
        ("daily(09:00, days: mon zon)", 19, "unknown day of the week \"zon\""),
        ("daily(09:00, day: mon)", 18, "unknown argument of daily \"day\""),
        ("daily(09:00, from: 2026-03-01, until: 2026-02-01)", 38, "until is before from"),
        ("once(2026-03-01 09:00, from: 2026-03-01)", 29, "unknown argument of once \"from\""),
        ("daily(09:00, every: 0)", 20, "every must be a number from 1 to 1000"),
        ("daily(09:00, every: 2, from: 2026-02-30)", 29, "\"2026-02-30\" is not a date"),
        ("daily(09:00, zone: Mars)", 19, "unknown time zone \"Mars\""),
        ("daily(09:00, zone: \"\")", 19, "unknown time zone \"\""),
        ("daily(09:00, between: 09:00-09:00)", 22, "the two times are equal"),
        ("weekly(09:00)", 0, "weekly needs a day of the week"),
        ("weekly(mon)", 0, "weekly needs a time of day"),
        ("weekly(mon thu, 09:00)", 7, "unknown day of the week \"mon thu\""),
        ("monthly(09:00)", 0, "monthly needs a day of the month"),
        ("monthly(32, 09:00)", 8, "\"32\" is not a day of the month"),
        ("nth(mon, 09:00)", 0, "nth needs first to fifth or last"),
        ("nth(first, 09:00)", 0, "nth needs a day of the week"),
        ("nth(frist, mon, 09:00)", 4, "unknown ordinal or weekday \"frist\""),
        ("once(2026-06-01)", 5, "\"2026-06-01\" is not a date and a time of day"),
        ("once(2026-06-01 09:00, every: 2)", 30, "unknown argument of once \"every\""),
        ("every(5 minutes, 6 minutes)", 17, "every(…) takes exactly one argument, without a name"),
        ("cron(0,30 2 * * *)", 7, "cron(…) takes exactly one argument, without a name"),
        ("monthly(31, 09:00, months: feb)", 0, "this timing never fires"),
        ("daily(08:00, between: 09:00-10:00)", 0, "this timing never fires"),
        ("once(2026-06-01 09:00, days: tue)", 0, "this timing never fires"),
        ("cron(\"0 0 30 2 *\")", 0, "this timing never fires"),
        ("cron(\"0 0 * * L\")", 0, "this timing never fires"),
        // On this day of each year, the clock skips this hour.
        (
            "every(30 min, between: 02:00-03:00, days: sun, weeks: last, months: mar, \
             zone: Europe/Paris)",
            0,
            "this timing never fires",
        ),
    ] {
        assert_eq!(error_of(text), (at, message.to_owned()), "{text}");
    }
    assert!(Timing::parse("once(1999-06-01 09:00)").is_ok());
}

/// Texts that are similar to timings.
fn nearly() -> impl Strategy<Value = String> {
    let words = vec![
        "daily",
        "every",
        "weekly",
        "monthly",
        "nth",
        "once",
        "cron",
        "trigger",
        "manual",
        "(",
        ")",
        "(",
        ")",
        ", ",
        ",",
        " ",
        ": ",
        "every: ",
        "from: ",
        "days: ",
        "months: ",
        "weeks: ",
        "key: ",
        "between: ",
        "zone: ",
        "table: ",
        "probe: ",
        "rows: ",
        "idle: ",
        "new_rows: true",
        "age: ",
        "mon",
        "fri",
        "-",
        "jan",
        "first",
        "last",
        "09:00",
        "17:00",
        "2026-06-01",
        "T",
        "5",
        "31",
        "minutes",
        "* * * * *",
        "\"",
        "a.b",
        "Europe/Berlin",
        "é",
        "#",
        "L",
        "W",
        "/",
        "@daily",
    ];
    prop::collection::vec(prop::sample::select(words), 0..14).prop_map(|words| words.concat())
}

fn check(text: &str) -> Result<(), TestCaseError> {
    match Timing::parse(text) {
        Ok(timing) => {
            let canonical = timing.to_string();
            prop_assert_eq!(&Timing::parse(&canonical).unwrap(), &timing, "{}", canonical);
            let key = timing.key();
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            prop_assert!(key.bytes().all(plain) && (1..=100).contains(&key.len()), "{}", key);
            prop_assert!(!timing.describe().is_empty());
        }
        Err(error_of) => {
            prop_assert!(error_of.at <= text.chars().count());
            prop_assert!(error_of.message.starts_with(|c: char| !c.is_uppercase()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_text_similar_to_a_timing_is_parsed_or_refused(text in nearly()) {
        check(&text)?;
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,60}", word in prop::sample::select(Timing::words())) {
        check(&text)?;
        check(&format!("{word}({text})"))?;
    }
}
