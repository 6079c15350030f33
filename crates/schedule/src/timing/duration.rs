//! Durations in schedules: `10 min`, `1h 30min`, `0.5s`.

use std::time::Duration;

use crate::error::{ValidationError, truncated};

/// Each unit with its names and its length in milliseconds.
const UNITS: &[(&[&str], u128)] = &[
    (&["ms", "millisecond", "milliseconds"], 1),
    (&["s", "sec", "secs", "second", "seconds"], 1_000),
    (&["m", "min", "mins", "minute", "minutes"], 60_000),
    (&["h", "hour", "hours"], 3_600_000),
    (&["d", "day", "days"], 86_400_000),
];

/// Maximum duration in a schedule in milliseconds, about 27 years.
const MAX_MS: u128 = 10_000 * 86_400_000;

/// Parses numbers with units. The result is exact to the millisecond.
///
/// # Errors
/// Fails on a number without unit, an unknown unit, or more than 10,000 days.
pub(crate) fn parse(text: &str, at: usize) -> Result<Duration, ValidationError> {
    let form = || {
        let message = format!("\"{}\" is not a duration", truncated(text));
        ValidationError::new(at, message)
            .hint("write a number and a unit (ms, s, min, h, days), such as 10min")
    };
    let mut left = text.trim();
    let mut total = 0_u128;
    if left.is_empty() {
        return Err(form());
    }
    while !left.is_empty() {
        let end = left.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(left.len());
        let (number, rest) = left.split_at(end);
        let rest = rest.trim_start();
        let end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        let unit = unit_ms(word).ok_or_else(form)?;
        total += milliseconds(number, unit).ok_or_else(form)?;
        left = rest.trim_start();
        if total > MAX_MS {
            return Err(ValidationError::new(at, "the duration exceeds 10,000 days"));
        }
    }
    u64::try_from(total).map(Duration::from_millis).map_err(|_| form())
}

fn unit_ms(word: &str) -> Option<u128> {
    let word = word.to_lowercase();
    UNITS.iter().find(|(words, _)| words.contains(&word.as_str())).map(|(_, ms)| *ms)
}

/// Returns the milliseconds of `number` times `unit`; `None` if this is not a whole number.
fn milliseconds(number: &str, unit: u128) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || whole.len() > 15 || part.is_empty() || part.len() > 9 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let parts = part.parse::<u128>().ok()? * unit;
    let whole = whole.parse::<u128>().ok()? * unit;
    parts.is_multiple_of(scale).then_some(whole + parts / scale)
}

/// Formats the duration in one unit. This is the largest unit of which the duration has at least
/// two, so that short durations keep the unit in which people usually give them: `60 s`, `10 min`,
/// `24 h`.
pub(crate) fn format(span: Duration) -> String {
    let ms = span.as_millis();
    let fits =
        |unit: u128| ms.is_multiple_of(unit) && (ms >= 2 * unit || unit <= 1_000 && ms >= unit);
    let units = [("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)];
    match units.into_iter().find(|(_, unit)| fits(*unit)) {
        Some((word, unit)) => format!("{} {word}", ms / unit),
        None if ms == 0 => "0 s".to_owned(),
        None => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_have_units() {
        let ms = |text| parse(text, 0).unwrap().as_millis();
        assert_eq!(ms("10 min"), 600_000);
        assert_eq!(ms("1h 30min"), 5_400_000);
        assert_eq!(ms("1h30m"), 5_400_000);
        assert_eq!(ms("2 DAYS"), 172_800_000);
        assert_eq!(ms("0.5 s"), 500);
        assert_eq!(ms("1.5h"), 5_400_000);
        assert_eq!(ms("0s"), 0);
        for wrong in ["", "10", "min", "10 mon", "1.0001 s", "-1 s", "1..5 s", ".5 s", "9999999 d"]
        {
            assert!(parse(wrong, 0).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_is_formatted_in_one_unit() {
        let format = |ms| format(Duration::from_millis(ms));
        assert_eq!(format(60_000), "60 s");
        assert_eq!(format(600_000), "10 min");
        assert_eq!(format(3_600_000), "60 min");
        assert_eq!(format(5_400_000), "90 min");
        assert_eq!(format(172_800_000), "2 days");
        assert_eq!(format(1_000), "1 s");
        assert_eq!(format(1_500), "1500 ms");
        assert_eq!(format(0), "0 s");
    }

    proptest! {
        #[test]
        fn formatted_durations_round_trip(ms in 0_u64..900_000_000_000, step in 0_usize..5) {
            let unit = [1, 1_000, 60_000, 3_600_000, 86_400_000][step];
            let span = Duration::from_millis(ms / unit * unit % 864_000_000_000);
            prop_assert_eq!(parse(&format(span), 0).unwrap(), span);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9. a-zµ-]{0,20}") {
            let _ = parse(&text, 0);
        }
    }
}
