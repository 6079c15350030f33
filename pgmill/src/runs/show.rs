//! `pgmill run show`: one run with its tasks, with `--watch` until it ends.

use std::fmt::Write as _;
use std::time::Duration;

use cli::{Failure, exit};
use conninfo::Client;
use queue::critical_path::{CriticalPath, critical_tasks};
use queue::insight::eta::{MAX_TASKS, etas};
use queue::run::RunState;
use queue::run_attempts::run_attempts;
use queue::run_queries::{self, Edge, Run, RunTask};
use queue::{QueueError, RunId};
use serde_json::json;
use terminal::{
    path_steps, path_times, print_stderr, run_bar, run_outcome, update_run_bar, visible,
};

use crate::args::RunShow;
use crate::output::format::{counted, label_lines, local_time, one_line, span};
use crate::output::{Field, Output, Tone};
use crate::runs::list::{find, run_tone};

/// Maximum rows of the table without `--all`.
const TASKS_SHOWN: usize = 50;
const RUNNING_SHOWN: i64 = 3;
/// Maximum number of attempts of the critical path that are read.
const MAX_ATTEMPTS: i64 = 5000;
const POLL_INTERVAL: Duration = Duration::from_millis(500);

const TASK_HEADINGS: [&str; 10] = [
    "task", "state", "queue", "priority", "started", "duration", "attempts", "rows", "pid",
    "message",
];

/// Shows one run; with `--watch` follows it first.
///
/// # Errors
/// Fails if there is no such run.
pub(super) async fn show(client: &Client, out: &Output, args: &RunShow) -> Result<u8, Failure> {
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
            None => {}
        }
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

/// Formats the fire time and the reason of a run that a schedule has fired.
pub(crate) fn fire(run: &Run) -> Option<String> {
    let (at, reason) = (run.fire_at?, run.reason.as_deref()?);
    let mut text = format!("fired for {}: {}", local_time(at), visible(reason));
    if let Some(id) = run.backfill_id {
        text.push_str(&format!(" {id}"));
    }
    Some(text)
}

fn heading(out: &Output, run: &Run) -> String {
    let mut text = format!("run {} of {}: ", run.id, visible(&run.title()));
    text.push_str(&out.paint(run.state_text(), run_tone(run.state)));
    let _ = write!(
        text,
        ", started {} by {}, {}",
        local_time(run.started_at),
        visible(run.starter()),
        span(run.duration.as_secs_f64())
    );
    if let Some(role) = &run.cancelled_by {
        let _ = write!(text, ", cancelled by {}", visible(role));
    }
    if let Some(reason) = &run.cancel_reason {
        let _ = write!(text, ", {}", visible(reason));
    }
    if run.restarts > 0 {
        let _ = match run.restarts {
            1 => write!(text, ", restarted once"),
            restarts => write!(text, ", restarted {restarts} times"),
        };
    }
    if let Some(fire) = fire(run) {
        let _ = write!(text, "\n{fire}");
    }
    if let Some(at) = run.late_since {
        let late = out.paint("late", Tone::Error);
        let _ = write!(text, "\n{late}: the deadline was {}", local_time(at));
    } else if let Some(at) = run.late_at.filter(|_| run.state == RunState::Running) {
        let _ = write!(text, "\ndeadline {}", local_time(at));
    }
    if let Some(at) = run.timeout_at.filter(|_| run.state == RunState::Running) {
        let _ = write!(text, "\ntimeout {}", local_time(at));
    }
    if let Some(seconds) = run.expected_duration_seconds {
        let _ = write!(text, "\nexpected duration {}", span(seconds));
    }
    for (word, value) in label_lines(&run.labels) {
        let _ = write!(text, "\n{word} {value}");
    }
    let count = &run.count;
    let _ = write!(
        text,
        "\n{}: {} waiting{}, {} queued or running, {} succeeded, {} failed, {} ignored, {} cancelled, {} upstream_failed, \
         {} skipped",
        counted(count.tasks, "task"),
        count.waiting,
        match count.needs_approval {
            0 => String::new(),
            number => format!(" ({number} for approval)"),
        },
        count.released,
        count.succeeded,
        count.failed,
        count.ignored,
        count.cancelled,
        count.upstream_failed,
        count.skipped
    );
    if !run.dropped.is_empty() {
        let dropped = visible(&run.dropped.join(", "));
        let _ = write!(text, "\ndropped edges from tasks outside of the run: {dropped}");
    }
    text
}

fn table(out: &Output, tasks: &[RunTask], all: bool) -> String {
    let mut shown: Vec<&RunTask> = tasks.iter().collect();
    let limit = if all { usize::MAX } else { TASKS_SHOWN };
    if shown.len() > limit {
        shown.sort_by_key(|task| display_rank(&task.state));
    }
    let row = |task: &&RunTask| {
        vec![
            Field::new(&task.name),
            Field::new(&task.state).tone(task_tone(&task.state)),
            Field::new(&task.queue),
            Field::new(task.priority),
            Field::or_blank(task.started_at.map(local_time)),
            Field::or_blank(task.duration.map(|duration| span(duration.as_secs_f64()))),
            Field::count(i64::from(task.attempts)),
            Field::or_blank(task.rows),
            Field::or_blank(task.pid),
            Field::or_blank(note(task).map(|text| one_line(text, 60))),
        ]
    };
    let mut text = out.table(&TASK_HEADINGS, shown.iter().take(limit).map(row).collect());
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
