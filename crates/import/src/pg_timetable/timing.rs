//! `run_at` and `max_instances` of a chain.

use super::super::conversion::{Differences, LeftOut};
use super::super::cron::{self, Days, Dialect};
use super::super::rows::Row;
use crate::args::PgTimetableArgs;

/// The word before an interval that counts from the end of a run.
const AFTER: &str = "@after";

/// `pg_timetable` checks an expression against the current minute, and combines day of month and
/// day of week by AND.
const DIALECT: Dialect =
    Dialect { days: Days::Both, step_from_number: true, names: false, last_day: false };

/// Converts `run_at`. Without it, a chain runs each minute.
pub(super) fn timing(
    row: &Row,
    args: &PgTimetableArgs,
    differences: &mut Differences,
) -> Result<String, LeftOut> {
    let run_at = run_at(row);
    let zone = args.zone.as_deref().unwrap_or("UTC");
    if run_at == "@reboot" {
        differences.manual();
        return Ok("manual".to_owned());
    }
    if let Some(length) = run_at.strip_prefix("@every") {
        differences
            .add("@every counts from the start of pg_timetable; every(…) counts from midnight", "");
        return interval(length, zone, &run_at, differences);
    }
    if let Some(length) = run_at.strip_prefix(AFTER) {
        differences.add(
            "@after counts from the end of a run; every(…) counts from midnight, and skips a fire while a \
             run is in progress",
            "",
        );
        return interval(length, zone, &run_at, differences);
    }
    let text = cron::timing(&run_at, zone, DIALECT)?;
    if args.zone.is_none() && !text.starts_with("cron(\"* * * * *\"") {
        differences.add(
            "the times are read as UTC, because pg_timetable uses the TimeZone of its session",
            "Give the zone with --zone.",
        );
    }
    cron::clock_changes("pg_timetable", &run_at, zone, differences);
    Ok(text)
}

fn run_at(row: &Row) -> String {
    row.text("run_at").map_or_else(|| "* * * * *".to_owned(), |text| text.trim().to_owned())
}

fn interval(
    length: &str,
    zone: &str,
    run_at: &str,
    differences: &mut Differences,
) -> Result<String, LeftOut> {
    let length = cli::duration::parse(length).map_err(|error| {
        let message = format!("schedule \"{run_at}\": {error}");
        LeftOut::new(message, "Write an interval such as 5 minutes.")
    })?;
    cron::every(length.as_secs(), zone, run_at, differences)
}

/// Returns the overlap for `max_instances`. Without it, 16 runs may be in progress.
pub(super) fn overlap(row: &Row) -> Result<&'static str, String> {
    let one = row.whole("max_instances")? == Some(1);
    Ok(if one || run_at(row).starts_with(AFTER) { "skip" } else { "allow" })
}
