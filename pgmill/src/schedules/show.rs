//! `pgmill schedule show`: one schedule with its next fires, its history and its log.

use cli::{Exit, exit};
use conninfo::Client;
use jiff::Timestamp;
use schedule::jobs::{self, ScheduledJob};
use schedule::queries::{self, LogFilter, RunHistoryFilter, ScheduleStatus};
use schedule::{Timing, describe_timing};
use serde_json::{Value, json};
use terminal::{HIDDEN, visible};

use crate::output::Output;
use crate::output::format::{counted, label_lines, local_time, relative_time, span};
use crate::schedules::fires::table_of_fires;
use crate::schedules::list::find;
use crate::schedules::log::{event_row, run_row};

/// Number of rows of history and log that `show` prints.
const LATEST: i64 = 5;

/// Shows one schedule.
///
/// # Errors
/// Fails if there is no such schedule.
pub(super) async fn show(client: &Client, out: &Output, name: &str) -> Exit {
    let it = find(client, name).await?;
    let now = queue::task_queries::now(client).await?;
    let cadence = match Timing::parse(&it.timing) {
        Ok(Timing::Scheduled(cadence)) => Some(cadence),
        _ => None,
    };
    let fires = cadence.iter().flat_map(|it| it.fires(now).take(5)).collect::<Vec<_>>();
    let wanted = RunHistoryFilter {
        schedule: Some(name.to_owned()),
        limit: LATEST,
        ..RunHistoryFilter::default()
    };
    let history = queries::history(client, &wanted).await?;
    let jobs = jobs::jobs(client, name).await?;
    let wanted =
        LogFilter { schedule: Some(name.to_owned()), limit: LATEST, ..LogFilter::default() };
    let log = queries::log(client, &wanted).await?.unwrap_or_default();
    if out.json {
        return out.document(&json!({
            "schedule": it, "timing_description": describe_timing(&it.timing), "jobs": jobs, "fires": fires,
            "history": history, "log": log,
        }));
    }
    out.text(&heading(&it, &jobs, now))?;
    if let Some(cadence) = cadence.filter(|_| !fires.is_empty()) {
        let active = it.enabled && it.removed_at.is_none();
        let title = if active { "" } else { "\nif it were enabled, it would fire:" };
        out.text(&format!("{title}\n{}", table_of_fires(out, &cadence, &fires, now)))?;
    }
    let history = history.iter().map(run_row).collect::<Vec<_>>();
    for rows in [history, log.iter().map(event_row).collect()] {
        if !rows.is_empty() {
            out.text(&format!("\n{}", out.table(rows)))?;
        }
    }
    Ok(exit::OK)
}

fn heading(it: &ScheduleStatus, jobs: &[ScheduledJob], now: Timestamp) -> String {
    let declared = match (&it.declared_as, it.declared_in.as_str()) {
        (Some(procedure), _) => format!("in the comment of {procedure}"),
        (None, "file") => "in a file".to_owned(),
        (None, _) => "by a call".to_owned(),
    };
    let mut lines = vec![
        format!("schedule {}: {}, {}", it.name, it.status, describe_timing(&it.timing)),
        format!("timing {}, declared {declared}", it.timing),
    ];
    lines.extend(it.new_timing.as_ref().map(|timing| {
        let error = it.new_timing_error.as_deref().unwrap_or("no worker has checked it yet");
        format!("new timing {timing} is not in force: {error}")
    }));
    lines.push(settings(it));
    jobs.iter().for_each(|job| lines.extend(describe_job(job)));
    let params = it.params.as_object().filter(|params| !params.is_empty());
    lines.extend(params.map(|params| format!("params {}", Value::from(params.clone()))));
    let changed_at = local_time(it.changed_at);
    lines.push(format!("version {}, changed {changed_at} by {}", it.version, it.changed_by));
    lines.extend(label_lines(&it.labels).map(|(word, value)| format!("{word} {value}")));
    let instants = [
        ("next fire", it.next_fire_at),
        ("last fire", it.last_fire_at),
        ("last success", it.last_success_at),
        ("fire that waits for the run in progress", it.queued_fire_at),
        ("removed", it.removed_at),
    ];
    let instant = |(word, at): (&str, Option<_>)| Some(format!("{word} {}", local_time(at?)));
    lines.extend(instants.into_iter().filter_map(instant));
    let checked = it.trigger_checked_at.zip(it.trigger_result.as_ref());
    lines.extend(
        checked.map(|(at, found)| format!("trigger checked {}: {found}", relative_time(at, now))),
    );
    if it.late_runs > 0 {
        lines.push(format!("{} late", counted(it.late_runs, "run")));
    }
    let running = it.running_run_id;
    lines.extend(running.map(|run| format!("run {run} is in progress: pgmill run show {run}")));
    lines.extend(it.error.as_ref().map(|error| format!("error: {error}")));
    visible(&lines.join("\n"))
}

/// Describes the settings of the fires, and those that operators have overridden.
fn settings(it: &ScheduleStatus) -> String {
    let runs = it.jobs.join(", ");
    let mut text = format!("runs {runs}, overlap {}, catch up {}", it.overlap, it.catch_up);
    text.extend(it.max_lateness_seconds.map(|seconds| format!(" no later than {}", span(seconds))));
    for (word, seconds) in [
        ("jitter", Some(it.jitter_seconds).filter(|jitter| *jitter > 0.0)),
        ("expected duration", it.expected_duration_seconds),
        ("deadline", it.deadline_seconds),
        ("run timeout", it.run_timeout_seconds),
    ] {
        text.extend(seconds.map(|seconds| format!(", {word} {}", span(seconds))));
    }
    text.extend(it.max_attempts.map(|most| format!(", max attempts {most}")));
    let interval = it.retry_interval_seconds;
    text.extend(interval.map(|seconds| format!(", retry interval {}", span(seconds))));
    text
}

/// Returns the description of a job, and its statement if it was created from one.
fn describe_job(job: &ScheduledJob) -> Vec<String> {
    let name = if job.task.is_some() { String::new() } else { format!("job {}: ", job.name) };
    let indented = |text: &str| text.replace('\n', "\n  ");
    let texts = [("description", &job.description), ("category", &job.category)];
    let text = |(word, text): (_, &Option<String>)| {
        Some(format!("{name}{word} {}", indented(text.as_ref()?)))
    };
    let mut lines: Vec<String> = texts.into_iter().filter_map(text).collect();
    let Some(task) = &job.task else { return lines };
    let statement = task.statement.as_deref().unwrap_or(HIDDEN).trim();
    lines.push(format!("statement {}", indented(statement)));
    lines.extend(task.params.as_ref().map(|params| format!("params {params}")));
    let interval = span(task.retry_interval_seconds);
    let mut declared = format!(
        "declared mode {}, queue {}, max attempts {}, retry interval {interval} {}",
        task.mode, task.queue, task.max_attempts, task.backoff
    );
    declared.extend(task.timeout_seconds.map(|limit| format!(", timeout {}", span(limit))));
    let run_as = Some(&task.run_as).filter(|profile| !profile.is_empty());
    declared.extend(run_as.map(|profile| format!(", run as {profile}")));
    lines.push(declared);
    lines
}
