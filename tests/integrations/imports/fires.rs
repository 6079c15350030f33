//! An imported schedule fires when its original does.
//!
//! The rules of the originals are implemented here a second time, as functions that decide for one
//! minute: by the sets of values that `pg_cron` and `pg_timetable` build from an expression. They share
//! no code with the import and none with the timings of schedules.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan, Zoned};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use schedule::Timing;
use serde_json::{Value, json};

use crate::harness::{Database, Program, amount};
use crate::runs::apply::Folder;

/// Start of most comparisons. The fires after it are compared.
const FROM: &str = "2026-01-01T00:00:00Z";

/// Returns the number of fires that are compared.
fn count() -> usize {
    amount(20, 100)
}

/// The system whose rule applies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    PgCron,
    PgTimetable,
}

/// Values of the five fields.
struct Sets {
    rule: Rule,
    minutes: Vec<i64>,
    hours: Vec<i64>,
    days: Vec<i64>,
    months: Vec<i64>,
    weekdays: Vec<i64>,
    last_day: bool,
    /// A day field begins with a star.
    star: bool,
}

impl Sets {
    fn read(text: &str, rule: Rule) -> Self {
        let text = match text {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let values = |field: usize, first: i64, last: i64| -> Vec<i64> {
            fields[field].split(',').flat_map(|part| range(part, field, first, last)).collect()
        };
        Self {
            rule,
            minutes: values(0, 0, 59),
            hours: values(1, 0, 23),
            days: if fields[2] == "$" { Vec::new() } else { values(2, 1, 31) },
            months: values(3, 1, 12),
            weekdays: values(4, 0, 7),
            last_day: fields[2] == "$",
            star: fields[2].starts_with('*') || fields[4].starts_with('*'),
        }
    }

    fn fires_on(&self, day: &Zoned) -> bool {
        let has = |values: &[i64], value: i8| values.contains(&i64::from(value));
        let sunday = day.weekday().to_sunday_zero_offset();
        let iso = day.weekday().to_monday_one_offset();
        let weekday = has(&self.weekdays, sunday) || has(&self.weekdays, iso);
        let last = day.day() == day.days_in_month();
        let date = has(&self.days, day.day()) || self.last_day && last;
        let days = match self.rule {
            Rule::PgCron if !self.star => date || weekday,
            _ => date && weekday,
        };
        has(&self.months, day.month()) && days
    }

    fn fires_at(&self, minute: &Zoned) -> bool {
        let has = |values: &[i64], value: i8| values.contains(&i64::from(value));
        has(&self.hours, minute.hour())
            && has(&self.minutes, minute.minute())
            && self.fires_on(minute)
    }

    /// Returns the next instants: looks at each minute of each day that can have one.
    fn next(&self, zone: &str, from: &str, count: usize) -> Vec<Timestamp> {
        let zone = TimeZone::get(zone).unwrap();
        let from: Timestamp = from.parse().unwrap();
        let mut found = Vec::new();
        let mut day = from.to_zoned(zone).start_of_day().unwrap();
        while found.len() < count {
            let next = day.checked_add(1.day()).unwrap().start_of_day().unwrap();
            if self.fires_on(&day) {
                let mut minute = day.clone();
                while minute < next {
                    if minute.timestamp() > from && self.fires_at(&minute) {
                        found.push(minute.timestamp());
                    }
                    minute = minute.checked_add(SignedDuration::from_mins(1)).unwrap();
                }
            }
            day = next;
        }
        found.truncate(count);
        found
    }
}

fn range(part: &str, field: usize, first: i64, last: i64) -> Vec<i64> {
    const MONTHS: &str = "jan feb mar apr may jun jul aug sep oct nov dec";
    const DAYS: &str = "sun mon tue wed thu fri sat";
    let number = |text: &str| {
        let names = [("", 0), ("", 0), ("", 0), (MONTHS, 1), (DAYS, 0)][field];
        let named = names.0.split(' ').position(|name| name == text.to_lowercase());
        named.map_or_else(|| text.parse().unwrap(), |at| i64::try_from(at).unwrap() + names.1)
    };
    let (span, step) = part.split_once('/').unwrap_or((part, "1"));
    let (from, to) = match span.split_once('-') {
        _ if span == "*" => (first, last),
        Some((from, to)) => (number(from), number(to)),
        None if part.contains('/') => (number(span), last),
        None => (number(span), number(span)),
    };
    (from..=to).step_by(step.parse().unwrap()).collect()
}

const PG_CRON: &[&str] = &[
    "* * * * *",
    "*/5 * * * *",
    "*/7 2-4 * * *",
    "0 * * * *",
    "30 3 * * 6",
    "0 10 * * *",
    "0 0 * * 1-5",
    "0 1 * * 0",
    "0 1 * * 7",
    "0 13 2 6 *",
    "15 14 1 * *",
    "0 22 * * mon-FRI",
    "5 4 * * sun",
    "0 0 13 * 5",
    "0 0 */2 * 1",
    "0 0 */10 * */3",
    "0 0 13 * */2",
    "0 0 13 * 0-6",
    "0 0 * * 5-7",
    "0 0 1-31 * 3",
    "0 0 $ * *",
    "0 12 $ 2,6 *",
    "0 0 $ * 1",
    "10-40/15,59 0,12 1,15 jan,JUL *",
    "0 0 31 * *",
    "@hourly",
    "@daily",
    "@midnight",
    "@weekly",
    "@monthly",
];

const PG_TIMETABLE: &[&str] = &[
    "* * * * *",
    "*/15 * * * *",
    "5/20 * * * *",
    "0 3/7 * * *",
    "0 0 13 * 5",
    "0 0 1 * 1",
    "0 0 1-7 * 1",
    "0 8 * * 0",
    "0 8 * * 7",
    "0 8 * * 0-7",
    "0 8 * * */2",
    "0 8 * * 1/2",
    "30 4 1,15 * *",
    "0 0 */2 * 1",
    "0 12 * 6-8 1,3,5",
    "59 23 31 12 *",
];

/// Imports definitions, and returns the text of their schedules' timings, in their order.
async fn imported(
    database: &Database,
    definitions: &[&str],
    rule: Rule,
    flags: &[&str],
) -> Vec<String> {
    let file = export(definitions, rule);
    let folder = Folder::new(&[("export.json", &file.to_string())]);
    let source = if rule == Rule::PgCron { "pg-cron" } else { "pg-timetable" };
    let path = format!("{}/export.json", folder.path());
    let arguments = [&["import", source, &path], flags].concat();
    let (code, stdout, stderr) = Program::pgmill(database, &arguments).run().await;
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(!stderr.contains("left out"), "{stderr}");
    let timing = |n: usize| {
        let sql = format!("SELECT timing FROM mill.schedules WHERE name = 'definition {n}'");
        async move { database.value::<String>(&sql).await }
    };
    let mut timings = Vec::new();
    for n in 0..definitions.len() {
        timings.push(timing(n).await);
    }
    timings
}

fn export(definitions: &[&str], rule: Rule) -> Value {
    let each = definitions.iter().enumerate();
    if rule == Rule::PgCron {
        let row = |(n, text): (usize, &&str)| {
            json!({"jobid": n, "jobname": format!("definition {n}"), "schedule": text,
                "command": "SELECT 1", "database": "app", "username": "etl", "active": true})
        };
        return each.map(row).collect();
    }
    let chain = |(n, text): (usize, &&str)| json!({"chain_id": n, "chain_name": format!("definition {n}"), "run_at": text, "live": true});
    let task =
        |n: usize| json!({"task_id": n, "chain_id": n, "task_order": 1, "command": "SELECT 1"});
    json!({"chains": each.map(chain).collect::<Vec<_>>(), "parameters": [],
        "tasks": (0..definitions.len()).map(task).collect::<Vec<_>>()})
}

fn instants(timing: &str, from: &str, count: usize) -> Vec<Timestamp> {
    let timing = Timing::parse(timing).unwrap();
    timing.cadence().unwrap().fires(from.parse().unwrap()).take(count).collect()
}

#[tokio::test]
async fn the_next_fires_are_those_of_the_original() {
    let mut compared = 0;
    for (rule, definitions) in [(Rule::PgCron, PG_CRON), (Rule::PgTimetable, PG_TIMETABLE)] {
        let database = Database::new().await;
        // Neither India nor UTC changes its clocks, so each minute exists once.
        for zone in ["UTC", "Asia/Kolkata"] {
            let timings = imported(&database, definitions, rule, &["--zone", zone]).await;
            for (definition, timing) in definitions.iter().zip(timings) {
                let expected = Sets::read(definition, rule).next(zone, FROM, count());
                let found = instants(&timing, FROM, count());
                assert_eq!(found, expected, "{rule:?} {definition}: {timing}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 2 * (PG_CRON.len() + PG_TIMETABLE.len()));
}

/// Expressions whose minute or hour begins with a star follow the clock of their zone, as in the
/// originals. The others fire once for each local time, which the import reports.
#[tokio::test]
async fn stars_follow_the_clock_when_it_changes() {
    let definitions = ["*/20 * * * *", "0 */2 29,30 3 *", "*/30 2 * 3,10 0"];
    for rule in [Rule::PgCron, Rule::PgTimetable] {
        let database = Database::new().await;
        let timings = imported(&database, &definitions, rule, &["--zone", "Europe/Berlin"]).await;
        for (definition, timing) in definitions.iter().zip(timings) {
            // The clock changes on the last Sundays of March and October. 1,000 fires are two
            // weeks.
            let starts = match definition.starts_with("*/20") {
                true => vec![("2026-03-25T00:00:00Z", 1000), ("2026-10-20T00:00:00Z", 1000)],
                false => vec![(FROM, count())],
            };
            for (from, count) in starts {
                let expected = Sets::read(definition, rule).next("Europe/Berlin", from, count);
                let found = instants(&timing, from, count);
                assert_eq!(found, expected, "{rule:?} {definition}: {timing}");
            }
        }
    }
}

#[tokio::test]
async fn both_days_have_to_match_if_pg_cron_is_set_so() {
    let database = Database::new().await;
    let timings = imported(&database, &["0 0 13 * 5"], Rule::PgCron, &["--dom-dow-and"]).await;
    let expected = Sets::read("0 0 13 * 5", Rule::PgTimetable).next("UTC", FROM, count());
    assert_eq!(instants(&timings[0], FROM, count()), expected);
}

/// Any field of an expression.
fn field(first: u32, last: u32) -> impl Strategy<Value = String> {
    let value = first..=last;
    let part = prop_oneof![
        3 => Just("*".to_owned()),
        2 => value.clone().prop_map(|it| it.to_string()),
        1 => (1..=last).prop_map(|step| format!("*/{step}")),
        2 => (value.clone(), value.clone(), 1..=last).prop_map(|(a, b, step)| {
            let (from, to) = (a.min(b), a.max(b));
            if step == 1 { format!("{from}-{to}") } else { format!("{from}-{to}/{step}") }
        }),
    ];
    prop::collection::vec(part, 1..3).prop_map(|parts| parts.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn any_expression_keeps_its_meaning() {
    let mut runner = TestRunner::new(Config::default());
    let fields = (field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 7));
    let any = fields.prop_map(|(a, b, c, d, e)| format!("{a} {b} {c} {d} {e}"));
    let texts: Vec<String> =
        (0..amount(60, 300)).map(|_| any.new_tree(&mut runner).unwrap().current()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for rule in [Rule::PgCron, Rule::PgTimetable] {
        let database = Database::new().await;
        let timings = imported(&database, &texts, rule, &["--zone", "UTC"]).await;
        for (text, timing) in texts.iter().zip(timings) {
            let expected = Sets::read(text, rule).next("UTC", FROM, 5);
            assert_eq!(instants(&timing, FROM, 5), expected, "{rule:?} {text}: {timing}");
        }
    }
}
