//! `pgmill run show`: one run with its tasks, with `--watch` until it ends.

use std::fmt::Write as _;
use std::time::Duration;

use cli::{Exit, Failure, exit};
use conninfo::Client;
use queue::critical_path::{CriticalPath, critical_tasks};
use queue::insight::eta::{MAX_TASKS, etas};
use queue::run::RunState;
use queue::run_attempts::run_attempts;
use queue::run_queries::{self, Edge, Run, RunTask, TaskCounts};
use queue::{QueueError, RunId};
use serde_json::json;
use terminal::{
    path_steps, path_times, print_stderr, run_bar, run_outcome, update_run_bar, visible,
};

use crate::args::RunShow;
use crate::output::format::{counted, fire, label_lines, local_time, one_line, span};
use crate::output::{Output, Row, Tone};
use crate::runs::list::find;

/// Maximum rows of the table without `--all`.
const TASKS_SHOWN: usize = 50;
const RUNNING_SHOWN: i64 = 3;
/// Maximum number of attempts of the critical path that are read.
const MAX_ATTEMPTS: i64 = 5000;
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Shows one run; with `--watch` follows it first.
///
/// # Errors
/// Fails if there is no such run.
pub(super) async fn show(client: &Client, out: &Output, args: &RunShow) -> Exit {
    if args.watch {
        follow(client, args.run).await?;
    }
    let mut run = find(client, args.run).await?;
    let eta = etas(client, &[args.run], MAX_TASKS).await?.remove(&args.run);
    run.eta_at = eta.as_ref().and_then(|eta| eta.clone().ok());
    let tasks = run_queries::tasks(client, args.run).await?;
    let edges = run_queries::edges(client, args.run).await?;
    let path = critical_path(client, &run, &tasks, &edges).await?;
    if out.json {
        out.document(&json!({
            "run": run, "tasks": tasks, "edges": edges, "critical_path": path,
            "no_eta": eta.and_then(Result::err),
        }))?;
    } else {
        out.text(&heading(out, &run))?;
        match eta {
            Some(Ok(at)) => out.text(&format!("expected end {}", local_time(at)))?,
            Some(Err(reason)) => out.text(&visible(&format!("no expected end: {reason}")))?,
            None => exit::OK,
        };
        out.text(&table(out, &tasks, args.all))?;
        if !path.tasks.is_empty() {
            let (steps, times) = (path_steps(&path, span), path_times(&path, span));
            let duration = span(path.duration_seconds);
            out.text(&format!("critical path, {duration}: {}; {times}", visible(&steps)))?;
        }
    }
    let unsuccessful = args.watch && run.state != RunState::Succeeded;
    Ok(if unsuccessful { exit::TASK_FAILED } else { exit::OK })
}

async fn follow(client: &Client, id: RunId) -> Result<(), Failure> {
    let bar = run_bar(id.0);
    let mut edges: Vec<Edge> = Vec::new();
    loop {
        let run = find(client, id).await?;
        if run.state != RunState::Running {
            bar.finish_and_clear();
            let problem_tasks = run_queries::unsuccessful_tasks(client, id, RUNNING_SHOWN).await?;
            print_stderr(run_outcome(&run, &problem_tasks));
            return Ok(());
        }
        if !bar.is_hidden() {
            let running = run_queries::running(client, id, RUNNING_SHOWN).await?;
            update_run_bar(&bar, &run, &running);
            // Reading a larger run completely twice a second costs too much.
            if run.count.tasks <= 2000 {
                let tasks = run_queries::tasks(client, id).await?;
                if edges.is_empty() {
                    edges = run_queries::edges(client, id).await?;
                }
                let path = critical_path(client, &run, &tasks, &edges).await?;
                let duration = span(path.duration_seconds);
                bar.set_prefix(format!("run {id}, critical path {duration}"));
                if let Some(last) = path.tasks.last() {
                    bar.set_message(format!("{}; {}", bar.message(), visible(last)));
                }
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Reads the attempts of the critical path, and returns the path.
async fn critical_path(
    client: &Client,
    run: &Run,
    tasks: &[RunTask],
    edges: &[Edge],
) -> Result<CriticalPath, QueueError> {
    let path = critical_tasks(tasks, edges, run.restarted_at);
    let attempts = run_attempts(client, run, path.iter().copied(), MAX_ATTEMPTS).await?;
    Ok(CriticalPath::of(&path, &attempts, run.restarted_at))
}

fn heading(out: &Output, run: &Run) -> String {
    let started = format!("started {} by {}", local_time(run.started_at), run.starter());
    let restarted = match run.restarts {
        0 => None,
        1 => Some("restarted once".to_owned()),
        restarts => Some(format!("restarted {restarts} times")),
    };
    let facts = [
        Some(started),
        Some(span(run.duration.as_secs_f64())),
        run.cancelled_by.as_ref().map(|role| format!("cancelled by {role}")),
        run.cancel_reason.clone(),
        restarted,
    ];
    let facts = visible(&facts.into_iter().flatten().collect::<Vec<_>>().join(", "));
    let state = out.paint(run.state_text(), Tone::of_end(run.state.as_str()));
    let mut lines = vec![format!("run {} of {}: {state}, {facts}", run.id, visible(&run.title()))];
    lines.extend(fire(run));
    let in_progress = run.state == RunState::Running;
    match (run.late_since, run.late_at.filter(|_| in_progress)) {
        (Some(at), _) => {
            let late = out.paint("late", Tone::Error);
            lines.push(format!("{late}: the deadline was {}", local_time(at)));
        }
        (None, deadline) => lines.extend(deadline.map(|at| format!("deadline {}", local_time(at)))),
    }
    let timeout = run.timeout_at.filter(|_| in_progress);
    lines.extend(timeout.map(|at| format!("timeout {}", local_time(at))));
    let expected = run.expected_duration_seconds;
    lines.extend(expected.map(|seconds| format!("expected duration {}", span(seconds))));
    lines.extend(label_lines(&run.labels).map(|(word, value)| format!("{word} {value}")));
    lines.push(counts(&run.count));
    if !run.dropped.is_empty() {
        let dropped = visible(&run.dropped.join(", "));
        lines.push(format!("dropped edges from tasks outside of the run: {dropped}"));
    }
    lines.join("\n")
}

fn counts(count: &TaskCounts) -> String {
    let approval = match count.needs_approval {
        0 => String::new(),
        number => format!(" ({number} for approval)"),
    };
    format!(
        "{}: {} waiting{approval}, {} queued or running, {} succeeded, {} failed, {} ignored, \
         {} cancelled, {} upstream_failed, {} skipped",
        counted(count.tasks, "task"),
        count.waiting,
        count.released,
        count.succeeded,
        count.failed,
        count.ignored,
        count.cancelled,
        count.upstream_failed,
        count.skipped
    )
}

fn table(out: &Output, tasks: &[RunTask], all: bool) -> String {
    let mut shown: Vec<&RunTask> = tasks.iter().collect();
    let limit = if all { usize::MAX } else { TASKS_SHOWN };
    if shown.len() > limit {
        shown.sort_by_key(|task| display_rank(&task.state));
    }
    let row = |task: &&RunTask| {
        Row::of("task", &task.name)
            .text("state", &task.state)
            .tone(task_tone(&task.state))
            .text("queue", &task.queue)
            .text("priority", task.priority)
            .maybe("started", task.started_at.map(local_time))
            .maybe("duration", task.duration.map(|duration| span(duration.as_secs_f64())))
            .count("attempts", task.attempts)
            .maybe("rows", task.rows)
            .maybe("pid", task.pid)
            .maybe("message", note(task).map(|text| one_line(text, 60)))
    };
    let mut text = out.table(shown.iter().take(limit).map(row).collect());
    if shown.len() > limit {
        let _ = write!(text, "\nand {} more; use --all", shown.len() - limit);
    }
    text
}

/// Returns the error message of a task, or what the person who approves it has to check.
fn note(task: &RunTask) -> Option<&str> {
    let note = || task.approval.as_ref().filter(|_| task.needs_approval())?.note.as_deref();
    task.message.as_deref().or_else(note)
}

/// Sort order of a long table: tasks that need attention first.
fn display_rank(state: &str) -> u8 {
    match state {
        "running" | "needs_approval" => 0,
        "failed" | "failed, ignored" => 1,
        "cancelled" => 2,
        "upstream_failed" => 3,
        "waiting" => 5,
        "succeeded" => 6,
        "skipped" => 7,
        _ => 4,
    }
}

fn task_tone(state: &str) -> Tone {
    match state {
        "succeeded" | "running" => Tone::Success,
        "failed" => Tone::Error,
        "failed, ignored" | "cancelled" | "upstream_failed" | "blocked" | "needs_approval" => {
            Tone::Warning
        }
        _ => Tone::Plain,
    }
}
