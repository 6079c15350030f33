//! `pgmill schedule show`: one schedule with its next fires, its history and its log.

use std::fmt::Write as _;

use cli::{Failure, exit};
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
use crate::schedules::log;

/// Number of rows of history and log that `show` prints.
const LATEST: i64 = 5;

/// Shows one schedule.
///
/// # Errors
/// Fails if there is no such schedule.
pub(super) async fn show(client: &Client, out: &Output, name: &str) -> Result<u8, Failure> {
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
        out.document(&json!({
            "schedule": it, "timing_description": describe_timing(&it.timing), "jobs": jobs, "fires": fires,
            "history": history, "log": log,
        }))?;
        return Ok(exit::OK);
    }
    out.text(&heading(&it, &jobs, now))?;
    if let Some(cadence) = cadence.filter(|_| !fires.is_empty()) {
        let active = it.enabled && it.removed_at.is_none();
        let title = if active { "" } else { "\nif it were enabled, it would fire:" };
        out.text(&format!("{title}\n{}", table_of_fires(out, &cadence, &fires, now)))?;
    }
    if !history.is_empty() {
        out.text(&format!("\n{}", log::runs(out, &history)))?;
    }
    if !log.is_empty() {
        out.text(&format!("\n{}", log::events(out, &log)))?;
    }
    Ok(exit::OK)
}

fn heading(it: &ScheduleStatus, jobs: &[ScheduledJob], now: Timestamp) -> String {
    let mut text = format!("schedule {}: {}, {}", it.name, it.status, describe_timing(&it.timing));
    let declared = match (&it.declared_as, it.declared_in.as_str()) {
        (Some(procedure), _) => format!("in the comment of {procedure}"),
        (None, "file") => "in a file".to_owned(),
        (None, _) => "by a call".to_owned(),
    };
    let _ = write!(text, "\ntiming {}, declared {declared}", it.timing);
    if let Some(timing) = &it.new_timing {
        let error = it.new_timing_error.as_deref().unwrap_or("no worker has checked it yet");
        let _ = write!(text, "\nnew timing {timing} is not in force: {error}");
    }
    let _ = write!(
        text,
        "\nruns {}, overlap {}, catch up {}",
        it.jobs.join(", "),
        it.overlap,
        it.catch_up
    );
    describe_settings(&mut text, it);
    jobs.iter().for_each(|job| describe_job(&mut text, job));
    if let Some(params) = it.params.as_object().filter(|params| !params.is_empty()) {
        let _ = write!(text, "\nparams {}", Value::from(params.clone()));
    }
    let _ = write!(
        text,
        "\nversion {}, changed {} by {}",
        it.version,
        local_time(it.changed_at),
        it.changed_by
    );
    for (word, value) in label_lines(&it.labels) {
        let _ = write!(text, "\n{word} {value}");
    }
    for (word, at) in [
        ("next fire", it.next_fire_at),
        ("last fire", it.last_fire_at),
        ("last success", it.last_success_at),
        ("fire that waits for the run in progress", it.queued_fire_at),
        ("removed", it.removed_at),
    ] {
        if let Some(at) = at {
            let _ = write!(text, "\n{word} {}", local_time(at));
        }
    }
    if let Some((at, found)) = it.trigger_checked_at.zip(it.trigger_result.as_ref()) {
        let _ = write!(text, "\ntrigger checked {}: {found}", relative_time(at, now));
    }
    if it.late_runs > 0 {
        let _ = write!(text, "\n{} late", counted(it.late_runs, "run"));
    }
    if let Some(run) = it.running_run_id {
        let _ = write!(text, "\nrun {run} is in progress: pgmill run show {run}");
    }
    if let Some(error) = &it.error {
        let _ = write!(text, "\nerror: {error}");
    }
    text.lines().map(visible).collect::<Vec<_>>().join("\n")
}

/// Adds the settings of the fires, and those that operators have overridden.
fn describe_settings(text: &mut String, it: &ScheduleStatus) {
    if let Some(seconds) = it.max_lateness_seconds {
        let _ = write!(text, " no later than {}", span(seconds));
    }
    if it.jitter_seconds > 0.0 {
        let _ = write!(text, ", jitter {}", span(it.jitter_seconds));
    }
    for (word, seconds) in [
        ("expected duration", it.expected_duration_seconds),
        ("deadline", it.deadline_seconds),
        ("run timeout", it.run_timeout_seconds),
    ] {
        if let Some(seconds) = seconds {
            let _ = write!(text, ", {word} {}", span(seconds));
        }
    }
    if let Some(max_attempts) = it.max_attempts {
        let _ = write!(text, ", max attempts {max_attempts}");
    }
    if let Some(seconds) = it.retry_interval_seconds {
        let _ = write!(text, ", retry interval {}", span(seconds));
    }
}

/// Adds the description of a job, and its statement if it was created from one.
fn describe_job(text: &mut String, job: &ScheduledJob) {
    let name = if job.task.is_some() { String::new() } else { format!("job {}: ", job.name) };
    for (word, value) in [("description", &job.description), ("category", &job.category)] {
        if let Some(value) = value {
            let _ = write!(text, "\n{name}{word} {}", value.replace('\n', "\n  "));
        }
    }
    let Some(task) = &job.task else { return };
    let statement = task.statement.as_deref().unwrap_or(HIDDEN).trim();
    let _ = write!(text, "\nstatement {}", statement.replace('\n', "\n  "));
    if let Some(params) = &task.params {
        let _ = write!(text, "\nparams {params}");
    }
    let _ = write!(
        text,
        "\ndeclared mode {}, queue {}, max attempts {}, retry interval {} {}",
        task.mode,
        task.queue,
        task.max_attempts,
        span(task.retry_interval_seconds),
        task.backoff
    );
    if let Some(seconds) = task.timeout_seconds {
        let _ = write!(text, ", timeout {}", span(seconds));
    }
    if !task.run_as.is_empty() {
        let _ = write!(text, ", run as {}", task.run_as);
    }
}
