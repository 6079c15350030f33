//! `pgmill task show`: everything about one task.

use std::fmt::Write as _;

use cli::{Exit, Failure};
use conninfo::Client;
use health::problems::describe_blocker;
use jiff::Timestamp;
use queue::attempt::{self, Attempt};
use queue::run_queries::{self, Run};
use queue::task_queries::{self, Running, Task};
use queue::workers::worker_label;
use queue::{QueueError, TaskId, insight};
use serde::Serialize;
use serde_json::Value;
use terminal::{HIDDEN, format_error, notices, value, visible};

use crate::history::durations::compared_with_others;
use crate::output::format::{
    counted, fire, label_lines, local_time, outcome_tone, relative_time, span, state_tone,
};
use crate::output::{Field, Output};

/// Everything about a task.
#[derive(Serialize)]
struct TaskDetails {
    task: Task,
    run: Option<Run>,
    why: Option<String>,
    running: Option<Running>,
    attempts: Vec<Attempt>,
    durations: Option<insight::Durations>,
    #[serde(skip)]
    now: Timestamp,
}

/// Prints everything about a task.
///
/// # Errors
/// Fails if there is no such task.
pub(crate) async fn run(client: &Client, out: &Output, id: TaskId) -> Exit {
    let Some(known) = load(client, id).await? else { return Err(unknown(id)) };
    out.shown(&known, || render(out, &known))
}

/// Formats everything about a task. `None`: there is no such task.
pub(crate) async fn text(
    client: &Client,
    out: &Output,
    id: TaskId,
) -> Result<Option<String>, QueueError> {
    Ok(load(client, id).await?.map(|known| render(out, &known)))
}

async fn load(client: &Client, id: TaskId) -> Result<Option<TaskDetails>, QueueError> {
    let Some(task) = task_queries::task(client, id).await? else { return Ok(None) };
    let durations = match &task.name {
        Some(name) => insight::durations_of(client, &task.queue, name).await?,
        None => None,
    };
    let run = match task.run_id {
        Some(run) => run_queries::run(client, run).await?,
        None => None,
    };
    Ok(Some(TaskDetails {
        task,
        run,
        why: task_queries::why(client, id).await?,
        running: task_queries::running(client, Some(id)).await?.pop(),
        attempts: attempt::attempts(client, id).await?,
        durations,
        now: task_queries::now(client).await?,
    }))
}

fn render(out: &Output, known: &TaskDetails) -> String {
    let TaskDetails { task, run, why, running, attempts, durations, now } = known;
    let mut text = head(out, task, why.as_deref(), *now);
    text.extend(run.as_ref().map(|run| format!("\n{}", run_line(run))));
    let duration = match running {
        Some(running) => Some(now.duration_since(running.started_at).as_secs_f64()),
        None => attempts.last().and_then(|attempt| attempt.duration_seconds),
    };
    let usual = durations.as_ref().and_then(|others| compared_with_others(others, duration));
    text.extend(usual.map(|usual| format!("\n{:<10}{usual}", "usual")));
    text.extend(running.as_ref().map(|running| format!("\n\n{}", backend(running, *now))));
    let _ = write!(text, "\n\n{}", visible(task.statement.as_deref().unwrap_or(HIDDEN).trim_end()));
    text.extend(attempts.iter().map(|it| format!("\n\n{}", format_attempt(out, it))));
    text
}

/// The error for an unknown task id.
pub(super) fn unknown(id: TaskId) -> Failure {
    Failure::not_found(format!("no live or finished task {id}"))
}

fn head(out: &Output, task: &Task, why: Option<&str>, now: Timestamp) -> String {
    let state = match (task.state, task.outcome) {
        (Some(state), _) => out.paint(state.as_str(), state_tone(state)),
        (None, Some(outcome)) => out.paint(outcome.as_str(), outcome_tone(outcome)),
        (None, None) => "finished".to_owned(),
    };
    let at = |time| format!("{} ({})", local_time(time), relative_time(time, now));
    let mut lines = vec![("task", format!("{}  {state}", task.id))];
    lines.extend(why.map(|sentence| ("why", visible(sentence))));
    lines.extend(task.name.as_ref().map(|name| ("name", visible(name))));
    lines.push(("queue", format!("{}, priority {}", visible(&task.queue), task.priority)));
    lines.push(("mode", mode(task)));
    lines.push(("attempt", format!("{}; {}", attempt(task), retry(task))));
    lines.extend(task.timeout_seconds.map(|limit| ("timeout", span(limit))));
    lines.extend(task.key.as_ref().map(|key| ("key", visible(key))));
    lines.extend(task.group.as_ref().map(|group| ("group", visible(group))));
    let limited = |key: &String| ("limited", format!("by key {}", visible(key)));
    lines.extend(task.concurrency_key.as_ref().map(limited));
    lines.extend(task.run_as.as_ref().map(|profile| ("run as", visible(profile))));
    lines.extend(label_lines(&task.options.labels));
    let traceparent = task.options.traceparent.as_ref();
    lines.extend(traceparent.map(|traceparent| ("trace", traceparent.trace_id().to_owned())));
    lines.push(("enqueued", at(task.enqueued_at)));
    lines.push(("due", at(task.due_at)));
    lines.extend(task.finished_at.map(|time| ("finished", at(time))));
    if let Some(Value::Array(params)) = &task.params {
        for (index, value) in params.iter().enumerate() {
            lines.push(("", format!("${} = {}", index + 1, visible(&value.to_string()))));
        }
    }
    let lines: Vec<String> =
        lines.into_iter().map(|(word, value)| format!("{word:<10}{value}")).collect();
    lines.join("\n")
}

/// Formats the run of a task, and the fire that started the run.
fn run_line(run: &Run) -> String {
    let fire = fire(run).map(|fire| format!(", {fire}")).unwrap_or_default();
    format!("{:<10}{} of {}{fire}", "run", run.id, visible(&run.title()))
}

fn mode(task: &Task) -> String {
    let mut text = task.mode.to_string();
    if let Some(level) = task.options.isolation {
        text.push_str(&format!(", isolation {level}"));
    }
    if task.at_most_once {
        text.push_str(", at most once");
    }
    if task.external {
        text.push_str(", with external effects");
    }
    if let Some(what) = task.options.not_stored() {
        text.push_str(&format!("; not stored: {what}"));
    }
    text
}

/// Formats the number of the attempt, which counts every attempt, and the number of failed attempts,
/// which alone are limited.
fn attempt(task: &Task) -> String {
    let Task { attempt, failures, max_attempts, .. } = task;
    match failures {
        Some(failures) => format!("{attempt}; {failures} of {max_attempts} failed attempts used"),
        None if *max_attempts == 1 => format!("{attempt}; at most 1 failed attempt"),
        None => format!("{attempt}; at most {max_attempts} failed attempts"),
    }
}

fn retry(task: &Task) -> String {
    format!(
        "{} backoff from {}{}",
        task.backoff,
        span(task.retry_interval_seconds),
        if task.jitter { ", with jitter" } else { "" }
    )
}

fn backend(running: &Running, now: Timestamp) -> String {
    let worker = worker_label(running.host.as_deref(), running.worker_pid, Some(running.worker_id));
    let mut text = format!(
        "attempt {} running for {} on {}, backend {}",
        running.attempt,
        relative_time(running.started_at, now).replace(" ago", ""),
        visible(&worker.unwrap_or_default()),
        running.backend_pid
    );
    let state = match (&running.backend_state, &running.wait_event_type, &running.wait_event) {
        (None, ..) => "gone or not visible",
        (Some(_), Some(kind), Some(event)) => &format!("waiting for {kind}: {event}"),
        (Some(state), ..) => state,
    };
    let _ = write!(text, " ({state})");
    let blockers = running.blockers.iter().filter_map(Value::as_array).flatten();
    text.extend(blockers.map(|it| format!("\nblocked by {}", visible(&describe_blocker(it)))));
    text.extend(progress(running).map(|it| format!("\nprogress: {}", visible(&it))));
    text.extend(running.notices.iter().flat_map(notices).map(|notice| format!("\n{notice}")));
    let cancelled = running.cancel_requested_at;
    text.extend(cancelled.map(|at| format!("\ncancel requested {}", relative_time(at, now))));
    text
}

/// Formats the progress of a task: text and percent.
pub(crate) fn progress(running: &Running) -> Option<String> {
    let percent = running.percent.map(|percent| format!("{:.0} %", percent.floor()));
    match (&running.progress, percent) {
        // The progress views of the server already include the percentage.
        (Some(words), Some(percent)) if !words.contains(&percent) => {
            Some(format!("{percent} {words}"))
        }
        (Some(words), _) => Some(words.clone()),
        (None, percent) => percent,
    }
}

/// Formats one attempt: facts, error with its position, notices, first rows.
fn format_attempt(out: &Output, attempt: &Attempt) -> String {
    let outcome = out.paint(attempt.outcome.as_str(), outcome_tone(attempt.outcome));
    let mut text = match attempt.attempt {
        0 => format!("{outcome} at {}", local_time(attempt.finished_at)),
        number => format!("attempt {number}  {outcome} at {}", local_time(attempt.finished_at)),
    };
    let _ = write!(text, ", waited {}", span(attempt.wait_seconds));
    text.extend(attempt.duration_seconds.map(|seconds| format!(", ran {}", span(seconds))));
    let worker =
        worker_label(attempt.worker_host.as_deref(), attempt.worker_pid, attempt.worker_id);
    text.extend(worker.map(|worker| format!(" on {}", visible(&worker))));
    text.extend(attempt.session_pid.map(|pid| format!(", backend {pid}")));
    text.extend(attempt.rows.map(|rows| format!(", {}", counted(rows, "row"))));
    let rows = attempt.result.as_ref().and_then(|result| first_rows(out, result));
    let notices = attempt.notices.iter().flat_map(notices);
    let lines = format_error(attempt).into_iter().chain(notices).chain(rows);
    text.extend(lines.map(|line| format!("\n{line}")));
    text
}

/// Formats the first rows and their count; `None` if the result has no columns.
fn first_rows(out: &Output, result: &Value) -> Option<String> {
    let columns = result.get("columns")?.as_array().filter(|columns| !columns.is_empty())?;
    let columns: Vec<String> = columns.iter().map(value).collect();
    let rows = result.get("rows")?.as_array()?;
    let fields = rows
        .iter()
        .filter_map(Value::as_array)
        .map(|row| row.iter().map(|it| Field::new(value(it))).collect())
        .collect();
    let truncated = result.get("truncated") == Some(&Value::Bool(true));
    let shown = counted(rows.len() as u64, "row");
    let end = if truncated { format!("(the first {shown})") } else { format!("({shown})") };
    Some(format!("{}\n{end}", out.rows(&columns, fields)))
}
