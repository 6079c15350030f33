//! `pgmill schedule next|test`: the fires of a schedule, without firing it.

use cli::{Exit, Failure};
use conninfo::{Client, GenericClient};
use jiff::Timestamp;
use queue::QueueError;
use schedule::queries::{self, TestResult};
use schedule::zone_data::zone_data;
use schedule::{Cadence, Timing};
use serde_json::json;
use terminal::visible;

use crate::args::{ScheduleNext, instant};
use crate::output::format::{local_time, relative_time, span};
use crate::output::{Output, Row, Tone};
use crate::schedules::list::{find, missing};

/// Formats fires in the time zone of the cadence, in UTC and relative to now.
pub(super) fn table_of_fires(
    out: &Output,
    cadence: &Cadence,
    fires: &[Timestamp],
    now: Timestamp,
) -> String {
    let row = |at: &Timestamp| {
        let there = at.to_zoned(cadence.zone().clone());
        Row::of("fire", there.strftime("%a %F %T %Z"))
            .text("utc", at)
            .text("relative", relative_time(*at, now))
    };
    out.table(fires.iter().map(row).collect())
}

/// Prints the next fires of a schedule or a timing.
///
/// # Errors
/// Fails if there is no such schedule, or if the timing is invalid or does not fire at fixed times.
pub(super) async fn next(client: &Client, out: &Output, args: &ScheduleNext) -> Exit {
    let timing = match (&args.timing, &args.name) {
        (Some(timing), _) => timing.clone(),
        (None, Some(name)) => find(client, name).await?.timing,
        (None, None) => return Err(Failure::usage("expected a schedule or --timing")),
    };
    let parsed = parse(&timing)?;
    let Some(cadence) = parsed.cadence() else {
        let message = format!("this timing does not fire at fixed times: {}", parsed.describe());
        return Err(Failure::usage(message));
    };
    let now = queue::task_queries::now(client).await?;
    let from = instant("--from", args.from.as_ref(), now)?.unwrap_or(now);
    let next: Vec<Timestamp> = cadence.fires(from).take(args.count.into()).collect();
    if out.json {
        return out.document(&json!({
            "timing": timing, "timing_description": parsed.describe(), "fires": next,
            "zone_data": zone_data(),
        }));
    }
    let code = out.text(&visible(&parsed.describe()))?;
    if next.is_empty() {
        out.note("no more fires");
        return Ok(code);
    }
    out.text(&table_of_fires(out, cadence, &next, now))
}

/// Parses a timing.
///
/// # Errors
/// Returns a usage error with a caret below the position of the error.
pub(super) fn parse(timing: &str) -> Result<Timing, Failure> {
    Timing::parse(timing).map_err(|error| {
        let caret = format!("{timing}\n{}^", " ".repeat(error.at));
        let message = format!("timing: {}\n{caret}", error.message);
        Failure::usage(message).maybe_hint(error.hint)
    })
}

/// The probe runs with the rights of the login that tests it.
const UNREADABLE: &str = "Test the schedule as a role that may read what its trigger reads.";

/// Evaluates a schedule as a tick would do now.
///
/// # Errors
/// Fails if there is no such schedule, and with the errors of its probe.
pub(crate) async fn test_schedule(
    client: &mut Client,
    name: &str,
) -> Result<Option<TestResult>, Failure> {
    // A probe is user-defined SQL, so it runs read-only.
    let transaction = client.transaction().await.map_err(QueueError::from)?;
    transaction.batch_execute("SET TRANSACTION READ ONLY").await.map_err(QueueError::from)?;
    let found = queries::test(&transaction, name).await;
    transaction.rollback().await.map_err(QueueError::from)?;
    found.map_err(|error| Failure::from(error).hint_if_unprivileged(UNREADABLE))
}

/// Prints whether a schedule would fire now, and why or why not.
///
/// # Errors
/// As [`test_schedule`].
pub(super) async fn test(client: &mut Client, out: &Output, name: &str) -> Exit {
    let it = test_schedule(client, name).await?.ok_or_else(|| missing(name))?;
    let (word, tone) =
        if it.would_fire { ("would fire", Tone::Success) } else { ("would not fire", Tone::Plain) };
    let lines = [
        Some(format!("{}: {}", out.paint(word, tone), visible(&it.reason))),
        it.pending_rows.map(|rows| format!("pending rows: {rows}")),
        it.oldest_row_age_seconds.map(|seconds| format!("oldest row: {} old", span(seconds))),
        it.next_fire_at.map(|at| format!("next fire: {}", local_time(at))),
    ];
    out.shown(&it, || lines.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}
