//! `pgmill schedule list|show|next|test`.

use std::fmt::Write as _;

use jiff::Timestamp;
use queue::{QueueError, exit};
use schedule::queries::{self, AnnotationError, RunHistoryFilter, ScheduleStatus, TestResult};
use schedule::{Cadence, Timing, describe_timing};
use serde_json::json;
use terminal::{print_stderr, visible};
use tokio_postgres::Client;

use crate::args::{ScheduleNext, ScheduleVerb};
use crate::failure::Failure;
use crate::format::{local_time, one_line, relative_time, span};
use crate::output::{Field, Output, Tone};
use crate::{schedule_actions, schedule_log};

const HEADINGS: [&str; 7] =
    ["schedule", "status", "when", "next fire", "last fire", "last run", "last success"];

/// Number of rows of history and log that `show` prints.
const LATEST: i64 = 5;

/// Runs a subcommand of `pgmill schedule`.
pub(crate) async fn run(
    client: &mut Client,
    out: &Output,
    verb: &ScheduleVerb,
) -> Result<u8, Failure> {
    match verb {
        ScheduleVerb::List => list(client, out).await,
        ScheduleVerb::Show(args) => show_one(client, out, &args.name).await,
        ScheduleVerb::Next(args) => next(client, out, args).await,
        ScheduleVerb::Test(args) => test(client, out, &args.name).await,
        ScheduleVerb::History(args) => schedule_log::history(client, out, args).await,
        ScheduleVerb::Log(args) => schedule_log::log(client, out, args).await,
        ScheduleVerb::Enable(args) => schedule_actions::enable(client, out, args, true).await,
        ScheduleVerb::Disable(args) => schedule_actions::enable(client, out, args, false).await,
        ScheduleVerb::Set(args) => schedule_actions::set(client, out, args).await,
        ScheduleVerb::Remove(args) => schedule_actions::remove(client, out, args).await,
        ScheduleVerb::Sync(args) => schedule_actions::sync(client, out, args).await,
        ScheduleVerb::RunNow(args) => schedule_actions::run_now(client, out, args).await,
    }
}

async fn list(client: &Client, out: &Output) -> Result<u8, Failure> {
    let schedules = queries::status(client, None).await?;
    let declaration_errors = queries::annotation_errors(client).await?;
    if out.json {
        out.document(&json!({ "schedules": schedules, "declaration_errors": declaration_errors }))?;
        return Ok(exit::OK);
    }
    if schedules.is_empty() {
        print_stderr("there are no schedules");
    } else {
        let now = queue::task_queries::now(client).await?;
        let rows = schedules.iter().map(|it| row(it, now)).collect();
        out.text(&out.table(&HEADINGS, rows))?;
    }
    declaration_errors.iter().for_each(print_declaration_error);
    Ok(exit::OK)
}

/// Prints an error in a comment to standard error.
pub(crate) fn print_declaration_error(error: &AnnotationError) {
    let AnnotationError { declared_as, place, message, hint } = error;
    let hint = hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    print_stderr(visible(&format!(
        "error in the comment of {declared_as}, {place}: {message}{hint}"
    )));
}

fn row(it: &ScheduleStatus, now: Timestamp) -> Vec<Field> {
    let tone = match it.status.as_str() {
        "error" => Tone::Error,
        "disabled" | "removed" => Tone::Warning,
        "running" => Tone::Success,
        _ => Tone::Plain,
    };
    let last_tone = match it.last_state.as_deref() {
        Some("succeeded") => Tone::Success,
        Some("failed") => Tone::Error,
        Some(_) => Tone::Warning,
        None => Tone::Plain,
    };
    vec![
        Field::new(&it.name),
        Field::new(&it.status).tone(tone),
        Field::new(one_line(&describe_timing(&it.timing), 80)),
        Field::or_blank(it.next_fire_at.map(|at| relative_time(at, now))),
        Field::or_blank(it.last_fire_at.map(|at| relative_time(at, now))),
        Field::or_blank(it.last_state.as_deref()).tone(last_tone),
        Field::or_blank(it.last_success_at.map(|at| relative_time(at, now))),
    ]
}

/// Returns the status of a schedule.
///
/// # Errors
/// Fails if there is no such schedule.
pub(crate) async fn find(client: &Client, name: &str) -> Result<ScheduleStatus, Failure> {
    let found = queries::status(client, Some(name)).await?.into_iter().next();
    found.ok_or_else(|| missing(name))
}

/// The error for an unknown schedule name.
pub(crate) fn missing(name: &str) -> Failure {
    Failure::not_found(format!("there is no schedule \"{name}\"")).hint("pgmill schedule list")
}

async fn show_one(client: &Client, out: &Output, name: &str) -> Result<u8, Failure> {
    let it = find(client, name).await?;
    let now = queue::task_queries::now(client).await?;
    let cadence = match Timing::parse(&it.timing) {
        Ok(Timing::Scheduled(cadence)) => Some(cadence),
        _ => None,
    };
    let next = cadence.iter().flat_map(|it| it.fires(now).take(5)).collect::<Vec<_>>();
    let wanted = RunHistoryFilter {
        schedule: Some(name.to_owned()),
        limit: LATEST,
        ..RunHistoryFilter::default()
    };
    let history = queries::history(client, &wanted).await?;
    let log = queries::log(client, Some(name), None, None, LATEST).await?.unwrap_or_default();
    if out.json {
        out.document(&json!({
            "schedule": it, "timing_description": describe_timing(&it.timing), "next": next, "history": history, "log": log,
        }))?;
        return Ok(exit::OK);
    }
    out.text(&heading(&it))?;
    if let Some(cadence) = cadence.filter(|_| !next.is_empty()) {
        out.text(&format!("\n{}", table_of_fires(out, &cadence, &next, now)))?;
    }
    if !history.is_empty() {
        out.text(&format!("\n{}", schedule_log::runs(out, &history)))?;
    }
    if !log.is_empty() {
        out.text(&format!("\n{}", schedule_log::events(out, &log)))?;
    }
    Ok(exit::OK)
}

fn heading(it: &ScheduleStatus) -> String {
    let mut text = format!("schedule {}: {}, {}", it.name, it.status, describe_timing(&it.timing));
    let declared = match (&it.declared_as, it.declared_in.as_str()) {
        (Some(procedure), _) => format!("in the comment of {procedure}"),
        (None, "file") => "in a file".to_owned(),
        (None, _) => "by a call".to_owned(),
    };
    let _ = write!(text, "\ntiming {}, declared {declared}", it.timing);
    let _ = write!(
        text,
        "\nruns {}, overlap {}, catch up {}",
        it.jobs.join(", "),
        it.overlap,
        it.catch_up
    );
    if let Some(seconds) = it.max_lateness_seconds {
        let _ = write!(text, " no later than {}", span(seconds));
    }
    if it.jitter_seconds > 0.0 {
        let _ = write!(text, ", jitter {}", span(it.jitter_seconds));
    }
    if let Some(max_attempts) = it.max_attempts {
        let _ = write!(text, ", max attempts {max_attempts}");
    }
    if let Some(seconds) = it.retry_interval_seconds {
        let _ = write!(text, ", retry interval {}", span(seconds));
    }
    let _ = write!(
        text,
        "\nversion {}, changed {} by {}",
        it.version,
        local_time(it.changed_at),
        it.changed_by
    );
    for (word, at) in [
        ("next fire", it.next_fire_at),
        ("last fire", it.last_fire_at),
        ("last success", it.last_success_at),
        ("queued until the run finishes: fire of", it.queued_fire_at),
        ("removed", it.removed_at),
    ] {
        if let Some(at) = at {
            let _ = write!(text, "\n{word} {}", local_time(at));
        }
    }
    if let Some(run) = it.running_run_id {
        let _ = write!(text, "\nrun {run} is in progress: pgmill run show {run}");
    }
    if let Some(error) = &it.error {
        let _ = write!(text, "\nerror: {error}");
    }
    text.lines().map(visible).collect::<Vec<_>>().join("\n")
}

/// Formats fires in the time zone of the cadence, in UTC and relative to now.
fn table_of_fires(out: &Output, cadence: &Cadence, fires: &[Timestamp], now: Timestamp) -> String {
    let row = |at: &Timestamp| {
        let there = at.to_zoned(cadence.zone().clone());
        vec![
            Field::new(there.strftime("%a %F %T %Z")),
            Field::new(at),
            Field::new(relative_time(*at, now)),
        ]
    };
    out.table(&["fire", "utc", "relative"], fires.iter().map(row).collect())
}

async fn next(client: &Client, out: &Output, args: &ScheduleNext) -> Result<u8, Failure> {
    let timing = match (&args.timing, &args.name) {
        (Some(timing), _) => timing.clone(),
        (None, Some(name)) => find(client, name).await?.timing,
        (None, None) => return Err(Failure::usage("expected a schedule or --timing")),
    };
    let parsed = parse(&timing)?;
    let Some(cadence) = parsed.cadence() else {
        let message = format!("this timing has no cadence: {}", parsed.describe());
        return Err(Failure::usage(message));
    };
    let now = queue::task_queries::now(client).await?;
    let next: Vec<Timestamp> = cadence.fires(now).take(args.count.into()).collect();
    if out.json {
        out.document(
            &json!({ "timing": timing, "timing_description": parsed.describe(), "fires": next }),
        )?;
        return Ok(exit::OK);
    }
    out.text(&visible(&parsed.describe()))?;
    if next.is_empty() {
        print_stderr("no more fires");
    } else {
        out.text(&table_of_fires(out, cadence, &next, now))?;
    }
    Ok(exit::OK)
}

/// Parses a timing.
///
/// # Errors
/// Returns a usage error with a caret below the position of the error.
pub(crate) fn parse(timing: &str) -> Result<Timing, Failure> {
    Timing::parse(timing).map_err(|error| {
        let caret = format!("{timing}\n{}^", " ".repeat(error.at));
        let failure = Failure::usage(format!("timing: {}\n{caret}", error.message));
        match error.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })
}

/// Evaluates a schedule as a tick would do now.
///
/// # Errors
/// Fails if there is no such schedule, and with the errors of its probe.
pub(crate) async fn test_schedule(client: &mut Client, name: &str) -> Result<TestResult, Failure> {
    // A probe is user-defined SQL, so it runs read-only.
    let start = client.build_transaction().read_only(true).start();
    let transaction = start.await.map_err(QueueError::from)?;
    let found = queries::test(&transaction, name).await;
    transaction.rollback().await.map_err(QueueError::from)?;
    found?.ok_or_else(|| missing(name))
}

async fn test(client: &mut Client, out: &Output, name: &str) -> Result<u8, Failure> {
    let it = test_schedule(client, name).await?;
    if out.json {
        out.document(&it)?;
        return Ok(exit::OK);
    }
    let TestResult { would_fire, reason, pending_rows, oldest_row_age_seconds, next_fire_at } = it;
    let (word, tone) =
        if would_fire { ("would fire", Tone::Success) } else { ("would not fire", Tone::Plain) };
    out.text(&format!("{}: {}", out.paint(word, tone), visible(&reason)))?;
    if let Some(rows) = pending_rows {
        out.text(&format!("pending rows: {rows}"))?;
    }
    if let Some(seconds) = oldest_row_age_seconds {
        out.text(&format!("oldest row: {} old", span(seconds)))?;
    }
    if let Some(at) = next_fire_at {
        out.text(&format!("next fire: {}", local_time(at)))?;
    }
    Ok(exit::OK)
}
