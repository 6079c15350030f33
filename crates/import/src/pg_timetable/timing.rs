//! `run_at` and `max_instances` of a chain.

use super::super::conversion::LeftOut;
use super::super::cron::{self, Days, Dialect};
use super::super::rows::Row;
use crate::args::PgTimetableArgs;

/// `pg_timetable` checks an expression against the current minute, and combines day of month and
/// day of week by AND.
const DIALECT: Dialect =
    Dialect { days: Days::Both, step_from_number: true, names: false, last_day: false };

/// The timing of a chain.
pub(super) struct ChainTiming {
    pub(super) text: String,
    /// Whether the interval counts from the end of a run.
    after_end: bool,
    pub(super) differences: Vec<(String, &'static str)>,
}

/// Converts `run_at`. Without it, a chain runs each minute.
pub(super) fn timing(row: &Row, args: &PgTimetableArgs) -> Result<ChainTiming, LeftOut> {
    let run_at = row.text("run_at").unwrap_or_else(|| "* * * * *".to_owned());
    let zone = args.zone.as_deref().unwrap_or("UTC");
    let text = run_at.trim();
    if text == "@reboot" {
        let differences = vec![(
            "@reboot has no counterpart; the schedule is manual".to_owned(),
            "Start it with pgmill schedule run-now.",
        )];
        return Ok(ChainTiming { text: "manual".to_owned(), after_end: false, differences });
    }
    let every = text.strip_prefix("@every").map(|length| (length, false));
    if let Some((length, after_end)) =
        every.or_else(|| text.strip_prefix("@after").map(|length| (length, true)))
    {
        return interval(length, after_end, zone, text);
    }
    let text = cron::timing(text, zone, DIALECT)?;
    let mut differences = Vec::new();
    if args.zone.is_none() && !text.starts_with("cron(\"* * * * *\"") {
        differences.push((
            "the times are read as UTC, because pg_timetable uses the TimeZone of its session"
                .to_owned(),
            "Give the zone with --zone.",
        ));
    }
    let fixed = !run_at.split_ascii_whitespace().take(2).any(|field| field.starts_with('*'));
    if fixed && !cron::always_utc(zone) {
        differences.push((
            "when clocks change, pg_timetable skips times that do not exist and repeats times that \
             exist twice; pgmill fires once for each"
                .to_owned(),
            "",
        ));
    }
    Ok(ChainTiming { text, after_end: false, differences })
}

fn interval(
    length: &str,
    after_end: bool,
    zone: &str,
    run_at: &str,
) -> Result<ChainTiming, LeftOut> {
    let seconds = cli::duration::parse(length).map(|length| length.as_secs()).map_err(|error| {
        LeftOut::new(
            format!("schedule \"{run_at}\": {error}"),
            "Write an interval such as 5 minutes.",
        )
    })?;
    let (text, even) = cron::every(seconds, zone, run_at)?;
    let mut differences = Vec::new();
    if after_end {
        differences.push((
            "@after counts from the end of a run; every(…) counts from midnight, and skips a fire while a \
             run is in progress"
                .to_owned(),
            "",
        ));
    } else {
        differences.push((
            "@every counts from the start of pg_timetable; every(…) counts from midnight"
                .to_owned(),
            "",
        ));
    }
    if !even {
        differences.push((
            "the interval is counted from midnight, so the last one of a day is shorter".to_owned(),
            "Choose an interval of which a day is a multiple.",
        ));
    }
    Ok(ChainTiming { text, after_end, differences })
}

/// Returns the overlap for `max_instances`. Without it, 16 runs may be in progress.
pub(super) fn overlap(row: &Row, timing: &ChainTiming) -> Result<&'static str, String> {
    let one = row.whole("max_instances")? == Some(1);
    Ok(if one || timing.after_end { "skip" } else { "allow" })
}
