//! `pgmill schedule history|log`.

use cli::{Failure, exit};
use conninfo::Client;
use schedule::queries::{self, FiredRun, LogEntry, LogFilter, RunHistoryFilter};

use crate::args::{ScheduleHistory, ScheduleLog};
use crate::output::format::{instant, local_time, one_line, period, span};
use crate::output::{Field, Output, Tone};
use crate::schedules::list::{find, missing};

const RUN_HEADINGS: [&str; 9] =
    ["run", "schedule", "fire", "reason", "state", "duration", "attempts", "worker", "message"];

const EVENT_HEADINGS: [&str; 7] = ["id", "at", "schedule", "event", "run", "reason", "message"];

/// Lists runs fired by schedules.
///
/// # Errors
/// Fails if there is no such schedule.
pub(crate) async fn history(
    client: &Client,
    out: &Output,
    args: &ScheduleHistory,
) -> Result<u8, Failure> {
    if let Some(name) = &args.name {
        find(client, name).await?;
    }
    let (since, until) = period(client, args.since, &args.from, &args.to).await?;
    let now = queue::task_queries::now(client).await?;
    let fire_at = instant("--at", args.at.as_ref(), now)?;
    let wanted = RunHistoryFilter {
        schedule: args.name.clone(),
        job: args.job.clone(),
        state: args.state.map(|state| state.to_string()),
        fire_at,
        since,
        until,
        before: args.before,
        limit: args.limit,
    };
    let fired = queries::history(client, &wanted).await?;
    if out.json {
        out.document(&fired)?;
    } else if fired.is_empty() {
        out.note("no matching run");
    } else {
        out.print_table(&RUN_HEADINGS, run_rows(&fired))?;
    }
    Ok(exit::OK)
}

/// Lists events of schedules.
///
/// # Errors
/// Fails if there is no such schedule.
pub(crate) async fn log(client: &Client, out: &Output, args: &ScheduleLog) -> Result<u8, Failure> {
    let (since, until) = period(client, args.since, &args.from, &args.to).await?;
    let wanted = LogFilter {
        schedule: args.name.clone(),
        event: args.event,
        since,
        until,
        before: args.before,
        limit: args.limit,
    };
    let logged = queries::log(client, &wanted).await?;
    let logged = logged.ok_or_else(|| missing(args.name.as_deref().unwrap_or_default()))?;
    if out.json {
        out.document(&logged)?;
    } else if logged.is_empty() {
        out.note("no matching event");
    } else {
        out.print_table(&EVENT_HEADINGS, event_rows(&logged))?;
    }
    Ok(exit::OK)
}

/// Formats a table of runs.
pub(crate) fn runs(out: &Output, fired: &[FiredRun]) -> String {
    out.table(&RUN_HEADINGS, run_rows(fired))
}

fn run_rows(fired: &[FiredRun]) -> Vec<Vec<Field>> {
    let row = |it: &FiredRun| {
        let tone = match it.state.as_str() {
            "succeeded" => Tone::Success,
            "failed" => Tone::Error,
            "cancelled" => Tone::Warning,
            _ => Tone::Plain,
        };
        vec![
            Field::new(it.run_id),
            Field::new(&it.schedule),
            Field::new(local_time(it.fire_at)),
            Field::new(one_line(&it.reason, 50)),
            match it.late_since {
                Some(_) => Field::new(format!("{}, late", it.state)).tone(Tone::Error),
                None => Field::new(&it.state).tone(tone),
            },
            Field::new(span(it.duration_seconds)),
            Field::or_blank(it.attempts),
            Field::or_blank(it.worker.as_deref()),
            Field::or_blank(it.message.as_deref().map(|message| one_line(message, 60))),
        ]
    };
    fired.iter().map(row).collect()
}

/// Formats a table of events.
pub(crate) fn events(out: &Output, logged: &[LogEntry]) -> String {
    out.table(&EVENT_HEADINGS, event_rows(logged))
}

fn event_rows(logged: &[LogEntry]) -> Vec<Vec<Field>> {
    let row = |it: &LogEntry| {
        let tone = match (it.event.as_str(), it.outcome.as_deref()) {
            ("error", _) | (_, Some("failed")) => Tone::Error,
            ("skipped" | "missed" | "reclaimed", _) | (_, Some("cancelled")) => Tone::Warning,
            (_, Some("succeeded")) => Tone::Success,
            _ => Tone::Plain,
        };
        let result = match (&it.outcome, it.duration_seconds) {
            (Some(outcome), Some(seconds)) => format!("{outcome} after {}", span(seconds)),
            _ => it.reason.clone().unwrap_or_default(),
        };
        vec![
            Field::new(it.id),
            Field::new(local_time(it.logged_at)),
            Field::new(&it.schedule),
            Field::new(it.event).tone(tone),
            Field::or_blank(it.run_id),
            Field::new(one_line(&result, 60)),
            Field::or_blank(it.message.as_deref().map(|message| one_line(message, 80))),
        ]
    };
    logged.iter().map(row).collect()
}
