//! `pgmill schedule history|log`.

use cli::Exit;
use conninfo::Client;
use schedule::queries::{self, FiredRun, LogEntry, LogFilter, RunHistoryFilter};

use crate::args::{ScheduleHistory, ScheduleLog, instant};
use crate::output::format::{local_time, one_line, span};
use crate::output::{Output, Row, Tone};
use crate::schedules::list::{find, missing};

/// Lists runs fired by schedules.
///
/// # Errors
/// Fails if there is no such schedule.
pub(crate) async fn history(client: &Client, out: &Output, args: &ScheduleHistory) -> Exit {
    if let Some(name) = &args.name {
        find(client, name).await?;
    }
    let now = queue::task_queries::now(client).await?;
    let (since, until) = args.period.bounds(now)?;
    let wanted = RunHistoryFilter {
        schedule: args.name.clone(),
        job: args.job.clone(),
        state: args.state.map(|state| state.to_string()),
        fire_at: instant("--at", args.at.as_ref(), now)?,
        since,
        until,
        before: args.before,
        limit: args.limit + 1,
    };
    let fired = queries::history(client, &wanted).await?;
    out.page((fired, args.limit), "no matching run", run_row)
}

/// Lists events of schedules.
///
/// # Errors
/// Fails if there is no such schedule.
pub(crate) async fn log(client: &Client, out: &Output, args: &ScheduleLog) -> Exit {
    let (since, until) = args.period.bounds(queue::task_queries::now(client).await?)?;
    let wanted = LogFilter {
        schedule: args.name.clone(),
        event: args.event,
        since,
        until,
        before: args.before,
        limit: args.limit + 1,
    };
    let logged = queries::log(client, &wanted).await?;
    let logged = logged.ok_or_else(|| missing(args.name.as_deref().unwrap_or_default()))?;
    out.page((logged, args.limit), "no matching event", event_row)
}

/// The row of a run.
pub(crate) fn run_row(it: &FiredRun) -> Row {
    let (late, tone) = match it.late_since {
        Some(_) => (", late", Tone::Error),
        None => ("", Tone::of_end(&it.state)),
    };
    Row::of("run", it.run_id)
        .text("schedule", &it.schedule)
        .text("fire", local_time(it.fire_at))
        .text("reason", one_line(&it.reason, 50))
        .text("state", format!("{}{late}", it.state))
        .tone(tone)
        .text("duration", span(it.duration_seconds))
        .maybe("attempts", it.attempts)
        .maybe("worker", it.worker.as_deref())
        .maybe("message", it.message.as_deref().map(|message| one_line(message, 60)))
}

/// The row of an event.
pub(crate) fn event_row(it: &LogEntry) -> Row {
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
    Row::of("id", it.id)
        .text("at", local_time(it.logged_at))
        .text("schedule", &it.schedule)
        .text("event", it.event)
        .tone(tone)
        .maybe("run", it.run_id)
        .text("reason", one_line(&result, 60))
        .maybe("message", it.message.as_deref().map(|message| one_line(message, 80)))
}
