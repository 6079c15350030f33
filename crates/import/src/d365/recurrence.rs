//! Recurrence and active period of a batch job.

use cli::duration;
use jiff::civil::DateTime;
use serde_json::Value as Json;

use super::super::conversion::{Differences, LeftOut, valid_timing};
use super::super::cron::{self, zone_argument};
use super::super::rows::Row;
use super::{Fields, invalid, unknown_fields};

const RECURRENCE_FIELDS: &str =
    "pattern count days_of_week day_of_month ordinal weekday end_by end_after";

const PERIOD_FIELDS: &str = "name from to time_zone";

const OWN_GROUP: &str = "For tasks that wait until the period begins, set it on their group: pgmill group set NAME --active.";

/// Returns the timing of a batch job.
///
/// # Errors
/// Returns why its recurrence has no equal.
pub(super) fn timing(
    job: &Row,
    zone: &str,
    differences: &mut Differences,
) -> Result<String, LeftOut> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_+-".contains(c);
    if !zone.chars().all(plain) {
        return Err(invalid("time_zone is not a name such as Europe/Berlin"));
    }
    let start = start(job)?;
    let Some(recurrence) = job.get("recurrence") else {
        differences.add(
            "the batch job has no recurrence; the schedule is manual",
            "Start it with pgmill schedule run-now, or set the timing once(…).",
        );
        return Ok("manual".to_owned());
    };
    let fields = Fields::read("recurrence", recurrence, RECURRENCE_FIELDS).map_err(invalid)?;
    unknown_fields(&fields.unknown, differences);
    let row = fields.row;
    let start = start.ok_or_else(|| invalid("a recurrence needs scheduled_start"))?;
    let pattern = row.name("pattern").unwrap_or_default().to_lowercase();
    let count = row.whole("count").map_err(invalid)?.unwrap_or(1);
    let count = u32::try_from(count).ok().filter(|it| (1..=1000).contains(it));
    let count = count.ok_or_else(|| invalid("count must be from 1 to 1000"))?;
    let between = between(job, zone, differences)?;
    let mut named = String::new();
    if let Some(end) = row.name("end_by") {
        named.push_str(&format!(", until: {}", date(&end).map_err(invalid)?));
    }
    if let Some(count) = row.text("end_after") {
        differences.add(
            format!("the recurrence ends after {count} runs; the schedule does not end"),
            "Disable it then, or give the last date as end_by.",
        );
    }
    named.push_str(&between);
    named.push_str(&zone_argument(zone));
    let begin = start.date();
    let time = start.strftime(if start.second() == 0 { "%H:%M" } else { "%H:%M:%S" }).to_string();
    let periods = |unit: u32| match count * unit {
        1 => format!(", from: {begin}{named}"),
        every => format!(", every: {every}, from: {begin}{named}"),
    };
    let timing = match pattern.trim_end_matches('s') {
        "minute" | "hour" => {
            let unit = if pattern.starts_with('m') { "minutes" } else { "hours" };
            count_from_midnight(&start, count, unit, differences);
            format!("every({count} {unit}, from: {begin}{named})")
        }
        "day" => format!("daily({time}{})", periods(1)),
        "week" => format!("weekly({}, {time}{})", weekdays(&row)?, periods(1)),
        "month" => format!("{}{time}{})", month_day(&row, &start)?, periods(1)),
        "year" => format!("{}{time}{})", month_day(&row, &start)?, periods(12)),
        _ => return Err(invalid(format!("\"{pattern}\" is not a recurrence pattern"))),
    };
    valid_timing(&timing, &timing)
}

/// Steps of minutes and hours count from the scheduled start.
fn count_from_midnight(start: &DateTime, count: u32, unit: &str, differences: &mut Differences) {
    let length = duration::parse(&format!("{count} {unit}")).map_or(0, |it| it.as_secs());
    let [hour, minute, second] =
        [start.hour(), start.minute(), start.second()].map(i8::unsigned_abs);
    let begins = u64::from(hour) * 3600 + u64::from(minute) * 60 + u64::from(second);
    let mut uneven = Differences::default();
    let valid = cron::every(length, "UTC", unit, &mut uneven).is_ok();
    if !valid || !uneven.0.is_empty() || length == 0 || !begins.is_multiple_of(length) {
        differences.add(
            "the recurrence counts from the scheduled start; every(…) counts from midnight",
            "Use a cron(…) timing if the minute matters.",
        );
    }
}

/// Returns the part of `monthly(…)` or `nth(…)` before the time.
fn month_day(row: &Row, start: &DateTime) -> Result<String, LeftOut> {
    match (row.name("ordinal"), row.name("weekday")) {
        (Some(ordinal), Some(weekday)) => {
            Ok(format!("nth({}, {}, ", word(&ordinal)?, word(&weekday)?))
        }
        (None, None) => {
            let day = row.name("day_of_month").unwrap_or_else(|| start.day().to_string());
            Ok(format!("monthly({}, ", word(&day)?))
        }
        _ => Err(invalid("ordinal and weekday belong together")),
    }
}

fn weekdays(row: &Row) -> Result<String, LeftOut> {
    let days = row.get("days_of_week").and_then(Json::as_array);
    let days = days.into_iter().flatten().filter_map(Json::as_str).map(word);
    let days: Vec<String> = days.collect::<Result<_, _>>()?;
    if days.is_empty() {
        return Err(invalid("a weekly recurrence needs days_of_week"));
    }
    Ok(days.join(", "))
}

/// Returns a word in lower case, without the rest of the name of a day: `Monday` is `mon`.
fn word(text: &str) -> Result<String, LeftOut> {
    let word = text.trim().to_lowercase();
    if word.is_empty() || !word.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(invalid(format!("\"{text}\" is not a day")));
    }
    Ok(if word.ends_with("day") { word[..3].to_owned() } else { word })
}

/// Returns the filter for the active period. Runs start only in the period.
fn between(job: &Row, zone: &str, differences: &mut Differences) -> Result<String, LeftOut> {
    let Some(period) = job.get("active_period") else { return Ok(String::new()) };
    let fields = Fields::read("active_period", period, PERIOD_FIELDS).map_err(invalid)?;
    unknown_fields(&fields.unknown, differences);
    let row = fields.row;
    let (Some(from), Some(to)) = (row.name("from"), row.name("to")) else {
        return Err(invalid("active_period needs from and to"));
    };
    let clock =
        |text: &str| text.len() == 5 && text.chars().all(|c| c.is_ascii_digit() || c == ':');
    if !clock(&from) || !clock(&to) {
        return Err(invalid("active_period: from and to are times such as 22:00"));
    }
    differences.add("the active period applies to the starts of runs only", OWN_GROUP);
    if row.name("time_zone").is_some_and(|it| it != zone) {
        return Err(LeftOut::new(
            "the active period has another time zone than the recurrence",
            "Leave the active period out, and set it on the group of the tasks.",
        ));
    }
    Ok(format!(", between: {from}-{to}"))
}

/// Reads the scheduled start, a date and a time without a zone.
fn start(job: &Row) -> Result<Option<DateTime>, LeftOut> {
    let Some(text) = job.name("scheduled_start") else { return Ok(None) };
    let parsed = text.trim().parse::<DateTime>().map(Some);
    parsed.map_err(|_| {
        let message = format!("scheduled_start: \"{text}\" is not a date and a time");
        LeftOut::new(message, "Write it as 2026-12-01 02:00, in the time zone of the batch job.")
    })
}

fn date(text: &str) -> Result<String, String> {
    let date = text.trim().parse::<jiff::civil::Date>();
    date.map(|date| date.to_string()).map_err(|_| format!("end_by: \"{text}\" is not a date"))
}
