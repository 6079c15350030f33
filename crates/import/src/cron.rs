//! Cron expressions, by the rules of the systems that evaluate them.
//!
//! Systems differ in two points. cron and `pg_cron` combine day of month and day of week by OR,
//! unless one of the fields begins with `*`; `pg_timetable` always combines them by AND. And a text
//! such as `MON#2` or a sixth field means something else to each parser, or nothing. So an import
//! does not pass expressions on: this module reads them by the rule of their system, and writes an
//! expression that means the same to pgmill, where a `+` before the day of week stands for AND.

use super::conversion::{Differences, LeftOut, valid_timing};

/// How day of month and day of week are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Days {
    /// By OR, unless one of the fields begins with `*`.
    Either,
    /// By AND.
    Both,
}

/// The rules of a system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    pub(crate) days: Days,
    /// `5/15` starts at 5; otherwise a step needs `*` or a range before it.
    pub(crate) step_from_number: bool,
    /// Names of months and days, such as `mon`, are allowed.
    pub(crate) names: bool,
    /// `$` is the last day of the month.
    pub(crate) last_day: bool,
}

/// A field of an expression: its name and the limits of its values.
struct Field {
    name: &'static str,
    first: u32,
    last: u32,
    names: &'static [&'static str],
}

const MINUTE: Field = Field { name: "minute", first: 0, last: 59, names: &[] };
const HOUR: Field = Field { name: "hour", first: 0, last: 23, names: &[] };
const DAY: Field = Field { name: "day of month", first: 1, last: 31, names: &[] };
const MONTH: Field = Field {
    name: "month",
    first: 1,
    last: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAY: Field = Field {
    name: "day of week",
    first: 0,
    last: 7,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

/// A part of a list: values from `from` to `to`, `step` apart.
struct Part {
    star: bool,
    from: u32,
    to: u32,
    step: u32,
}

/// Returns the timing of an expression with five fields.
///
/// # Errors
/// Returns why the expression cannot be imported.
pub(crate) fn timing(text: &str, zone: &str, dialect: Dialect) -> Result<String, LeftOut> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let wrong = |reason: String| {
        LeftOut::new(format!("schedule \"{text}\": {reason}"), "Correct the schedule.")
    };
    let [minute, hour, day, month, weekday] = fields[..] else {
        return Err(wrong(match text.starts_with('@') {
            true => "unknown word".to_owned(),
            false => format!("{} fields, expected 5", fields.len()),
        }));
    };
    let read = |field: &Field, text| parts(field, text, dialect).map_err(wrong);
    let minutes = read(&MINUTE, minute)?;
    let hours = read(&HOUR, hour)?;
    let last_day = dialect.last_day && day == "$";
    let days = if last_day { Vec::new() } else { read(&DAY, day)? };
    let months = read(&MONTH, month)?;
    let weekdays = read(&WEEKDAY, weekday)?;
    let both = dialect.days == Days::Both || day.starts_with('*') || weekday.starts_with('*');
    let day = if last_day { "L".to_owned() } else { written(&DAY, &days) };
    let weekday = weekdays_written(&weekdays, both, day == "*");
    let [minute, hour, month] =
        [written(&MINUTE, &minutes), written(&HOUR, &hours), written(&MONTH, &months)];
    let expression = format!("{minute} {hour} {day} {month} {weekday}");
    valid_timing(&format!("cron(\"{expression}\"{})", zone_argument(zone)), text)
}

/// Returns the expression that a word such as `@daily` stands for.
pub(crate) fn expression_of_word(word: &str) -> Option<&'static str> {
    match word {
        "@yearly" | "@annually" => Some("0 0 1 1 *"),
        "@monthly" => Some("0 0 1 * *"),
        "@weekly" => Some("0 0 * * 0"),
        "@daily" | "@midnight" => Some("0 0 * * *"),
        "@hourly" => Some("0 * * * *"),
        _ => None,
    }
}

/// Returns the argument of a timing that sets its zone; empty for UTC.
pub(crate) fn zone_argument(zone: &str) -> String {
    if always_utc(zone) { String::new() } else { format!(", zone: {zone}") }
}

/// Returns whether this is a name of UTC.
pub(crate) fn always_utc(zone: &str) -> bool {
    ["UTC", "GMT", "Etc/UTC", "Etc/GMT", "Zulu", "UCT"].contains(&zone)
}

/// Reports that clock changes skip or repeat the times of an expression, if its times are fixed.
pub(crate) fn clock_changes(
    system: &str,
    expression: &str,
    zone: &str,
    differences: &mut Differences,
) {
    let stars = expression.split_ascii_whitespace().take(2).any(|field| field.starts_with('*'));
    if !stars && !always_utc(zone) {
        differences.add(
            format!(
                "when clocks change, {system} skips times that do not exist and repeats times that \
                 exist twice; pgmill fires once for each"
            ),
            "",
        );
    }
}

/// Returns the timing that fires each `seconds`. The steps of pgmill are counted from midnight, so
/// they differ in length unless a day is a multiple of them.
///
/// # Errors
/// Fails for an interval that pgmill does not have: zero, or longer than a day.
pub(crate) fn every(
    seconds: u64,
    zone: &str,
    original: &str,
    differences: &mut Differences,
) -> Result<String, LeftOut> {
    const DAY: u64 = 24 * 60 * 60;
    let wrong = |message: &str| {
        LeftOut::new(format!("schedule \"{original}\": {message}"), "Write a daily(…) timing.")
    };
    if seconds == 0 {
        return Err(wrong("the interval is zero"));
    } else if seconds > DAY {
        return Err(wrong("the interval is longer than a day"));
    }
    let (count, unit) = match seconds {
        _ if seconds.is_multiple_of(3600) => (seconds / 3600, "hours"),
        _ if seconds.is_multiple_of(60) => (seconds / 60, "minutes"),
        _ => (seconds, "seconds"),
    };
    let timing = format!("every({count} {unit}{})", zone_argument(zone));
    if !DAY.is_multiple_of(seconds) {
        differences.add(
            "the interval is counted from midnight, so the last one of a day is shorter",
            "Choose an interval of which a day is a multiple.",
        );
    }
    valid_timing(&timing, original)
}

/// Parses a field.
///
/// # Errors
/// Returns the part that the system would refuse, or would read in a way that surprises its author.
fn parts(field: &Field, text: &str, dialect: Dialect) -> Result<Vec<Part>, String> {
    let whole = text;
    let not_valid = || format!("\"{whole}\" is not a valid {}", field.name);
    let number = |text: &str| {
        let named = field.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        if let Some(place) = named.filter(|_| dialect.names) {
            return u32::try_from(place).ok().map(|place| place + field.first);
        }
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|value| digits && (field.first..=field.last).contains(value))
    };
    let part = |text: &str| {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (text, None),
        };
        let star = range == "*";
        let (from, to) = match range.split_once('-') {
            _ if star => (field.first, field.last),
            Some((from, to)) => {
                (number(from).ok_or_else(not_valid)?, number(to).ok_or_else(not_valid)?)
            }
            None => {
                let from = number(range).ok_or_else(not_valid)?;
                match step {
                    Some(_) if dialect.step_from_number => (from, field.last),
                    Some(_) => return Err(not_valid()),
                    None => (from, from),
                }
            }
        };
        let step = match step {
            None => 1,
            Some(step) if step.bytes().all(|byte| byte.is_ascii_digit()) => {
                step.parse::<u32>().ok().filter(|step| *step > 0).ok_or_else(not_valid)?
            }
            Some(_) => return Err(not_valid()),
        };
        if from > to {
            return Err(format!("the {} \"{whole}\" is an empty range", field.name));
        }
        Ok(Part { star, from, to, step })
    };
    text.split(',').map(part).collect()
}

/// Writes a field. A part with a step that is too long for a second value is its first value.
fn written(field: &Field, parts: &[Part]) -> String {
    let part = |it: &Part| {
        if it.step > it.to - it.from {
            return it.from.to_string();
        }
        let range = match it.star {
            true => "*".to_owned(),
            false => format!("{}-{}", it.from, it.to),
        };
        if it.step == 1 { range } else { format!("{range}/{}", it.step) }
    };
    // A list is not a star, even if its values are all: a star first follows clock changes, and a
    // star alone as the day of month leaves the choice to the day of week.
    if parts.iter().any(|it| it.star && it.step == 1) {
        let star = parts[0].star && (parts.len() == 1 || field.name != DAY.name);
        return if star { "*".to_owned() } else { format!("{}-{}", field.first, field.last) };
    }
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Writes the day of week: its days as numbers from 0, Sunday, to 6. `both`: a date has to match
/// day of month and day of week. `any_day`: the day of month matches each date.
fn weekdays_written(parts: &[Part], both: bool, any_day: bool) -> String {
    let values = parts
        .iter()
        .flat_map(|it| (it.from..=it.to).step_by(usize::try_from(it.step).unwrap_or(usize::MAX)));
    let mut days: Vec<u32> = values.map(|day| day % 7).collect();
    days.sort_unstable();
    days.dedup();
    if days.len() == 7 {
        // With OR, every date matches if the day of week does, whatever the day of month is.
        return if both { "*" } else { "0-6" }.to_owned();
    }
    let runs = days.chunk_by(|one, next| one + 1 == *next);
    let run = |run: &[u32]| match run {
        [first, _, .., last] => format!("{first}-{last}"),
        short => short.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    };
    let days = runs.map(run).collect::<Vec<_>>().join(",");
    if both && !any_day { format!("+{days}") } else { days }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIXIE: Dialect =
        Dialect { days: Days::Either, step_from_number: false, names: true, last_day: true };
    const TIMETABLE: Dialect =
        Dialect { days: Days::Both, step_from_number: true, names: false, last_day: false };

    fn read(text: &str, dialect: Dialect) -> String {
        match timing(text, "GMT", dialect) {
            Ok(timing) => timing,
            Err(left_out) => format!("! {}", left_out.message),
        }
    }

    #[test]
    fn an_expression_keeps_its_meaning() {
        for (text, expected) in [
            ("*/5  * *\t* *", "cron(\"*/5 * * * *\")"),
            ("0 0 * jan-mar,DEC mon-fri", "cron(\"0 0 * 1-3,12 1-5\")"),
            ("0 0 13 * 5", "cron(\"0 0 13 * 5\")"),
            ("0 0 */2 * 1", "cron(\"0 0 */2 * +1\")"),
            ("0 0 13 * */2", "cron(\"0 0 13 * +0,2,4,6\")"),
            ("0 0 13 * 0-6", "cron(\"0 0 13 * 0-6\")"),
            ("0 0 $ * 1", "cron(\"0 0 L * 1\")"),
            ("0 0 * * 5-7", "cron(\"0 0 * * 0,5,6\")"),
            ("0 0 1 * *", "cron(\"0 0 1 * *\")"),
            ("3,* *,4 *,5 *,6 *", "cron(\"0-59 * 1-31 * *\")"),
            ("10-20/7,59 4 * * *", "cron(\"10-20/7,59 4 * * *\")"),
        ] {
            assert_eq!(read(text, VIXIE), expected, "{text}");
        }
        for (text, expected) in [
            ("0 0 13 * 5", "cron(\"0 0 13 * +5\")"),
            ("5/15 0 * * *", "cron(\"5-59/15 0 * * *\")"),
            ("0 0 13 * 0-7", "cron(\"0 0 13 * *\")"),
            ("0 50/20 1 1 1", "! schedule \"0 50/20 1 1 1\": \"50/20\" is not a valid hour"),
        ] {
            assert_eq!(read(text, TIMETABLE), expected, "{text}");
        }
    }

    #[test]
    fn a_text_with_another_meaning_elsewhere_is_refused() {
        for text in [
            "0 0 * * MON#2",
            "0 0 L * *",
            "0 0 15W * *",
            "0 0 ? * *",
            "0 0 * * 5L",
            "5/15 * * * *",
            "0 0 * * 5-1",
            "60 * * * *",
            "* * * * * *",
            "* * * *",
            "",
            "0 0 * * monday",
            "*/0 * * * *",
            "*/ * * * *",
            "+1 * * * *",
            "0 0 30 2 *",
            "1- * * * *",
            ",1 * * * *",
            "0~30 * * * *",
        ] {
            assert!(timing(text, "UTC", VIXIE).is_err(), "{text}");
        }
        assert!(read("0 0 * * MON", TIMETABLE).starts_with('!'));
    }

    #[test]
    fn an_interval_is_counted_from_midnight() {
        let read = |seconds| {
            let mut differences = Differences::default();
            let timing = every(seconds, "Europe/Berlin", "x", &mut differences);
            timing.map(|it| (it, differences.0.is_empty())).map_err(|it| it.message)
        };
        assert_eq!(read(90), Ok(("every(90 seconds, zone: Europe/Berlin)".to_owned(), true)));
        assert_eq!(read(5400), Ok(("every(90 minutes, zone: Europe/Berlin)".to_owned(), true)));
        assert!(!read(7 * 60).unwrap().1);
        assert!(read(0).is_err() && read(86_401).is_err());
    }
}
