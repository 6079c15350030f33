//! `pgmill run list|show|graph`.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

use queue::critical_path::critical_path;
use queue::exit;
use queue::run::{Expected, RunId, RunState};
use queue::run_queries::{self, Edge, Run, RunTask};
use serde_json::json;
use terminal::{print_stderr, run_bar, run_outcome, update_run_bar, visible};
use tokio_postgres::Client;

use crate::args::{GraphFormat, RunGraph, RunList, RunShow, RunVerb};

use crate::failure::Failure;
use crate::format::{counted, local_time, one_line, span};
use crate::output::{Field, Output, Tone};
use crate::{graph_format, run_actions};

/// Maximum rows of the table without `--all`.
const TASKS_SHOWN: usize = 50;
const RUNNING_SHOWN: i64 = 3;
const POLL_INTERVAL: Duration = Duration::from_millis(500);

const RUN_HEADINGS: [&str; 10] = [
    "run",
    "jobs",
    "state",
    "tasks",
    "finished",
    "failed",
    "upstream_failed",
    "started",
    "duration",
    "by",
];
const TASK_HEADINGS: [&str; 10] = [
    "task", "state", "queue", "priority", "started", "duration", "attempts", "rows", "pid",
    "message",
];

/// Runs a subcommand of `pgmill run`.
pub(crate) async fn run(client: &mut Client, out: &Output, verb: &RunVerb) -> Result<u8, Failure> {
    match verb {
        RunVerb::List(args) => list(client, out, args).await,
        RunVerb::Show(args) => show(client, out, args).await,
        RunVerb::Graph(args) => draw_graph(client, out, args).await,
        RunVerb::Cancel(args) => run_actions::cancel(client, out, args).await,
        RunVerb::Retry(args) => run_actions::retry(client, out, args).await,
        RunVerb::Restart(args) => run_actions::restart(client, out, args).await,
    }
}

/// Lists runs.
async fn list(client: &Client, out: &Output, args: &RunList) -> Result<u8, Failure> {
    let runs = run_queries::runs(client, args.state, args.limit).await?;
    if out.json {
        out.document(&runs)?;
    } else if runs.is_empty() {
        print_stderr("no matching run");
    } else {
        let row = |run: &Run| {
            vec![
                Field::new(run.id),
                Field::new(run.title()),
                Field::new(run.state).tone(run_tone(run.state)),
                Field::new(run.count.tasks),
                Field::count(run.count.finished()),
                Field::count(run.count.failed).tone(Tone::Error),
                Field::count(run.count.upstream_failed),
                Field::new(local_time(run.started_at)),
                Field::new(span(run.duration.as_secs_f64())),
                Field::new(&run.started_by),
            ]
        };
        out.text(&out.table(&RUN_HEADINGS, runs.iter().map(row).collect()))?;
    }
    Ok(exit::OK)
}

/// Shows one run; with `--watch` follows it first.
///
/// # Errors
/// Fails if there is no such run.
async fn show(client: &Client, out: &Output, args: &RunShow) -> Result<u8, Failure> {
    if args.watch {
        follow(client, args.run).await?;
    }
    let run = find(client, args.run).await?;
    let tasks = run_queries::tasks(client, args.run).await?;
    let edges = run_queries::edges(client, args.run).await?;
    let (path, seconds) = critical_path(&tasks, &edges);
    if out.json {
        let path: Vec<&str> = path.iter().map(|task| task.name.as_str()).collect();
        out.document(&json!({
            "run": run, "tasks": tasks, "edges": edges,
            "critical_path": { "tasks": path, "duration_seconds": seconds },
        }))?;
    } else {
        out.text(&heading(out, &run))?;
        out.text(&table(out, &tasks, args.all))?;
        if !path.is_empty() {
            out.text(&format!("critical path, {}: {}", span(seconds), names(&path)))?;
        }
    }
    let unsuccessful = args.watch && run.state != RunState::Succeeded;
    Ok(if unsuccessful { exit::TASK_FAILED } else { exit::OK })
}

/// Returns a run.
///
/// # Errors
/// Fails if there is no such run.
pub(crate) async fn find(client: &Client, id: RunId) -> Result<Run, Failure> {
    let found = run_queries::run(client, id).await?;
    found.ok_or_else(|| Failure::not_found(format!("there is no run {id}")).hint("pgmill run list"))
}

/// Prints the graph of one run.
///
/// # Errors
/// Fails if there is no such run.
async fn draw_graph(client: &Client, out: &Output, args: &RunGraph) -> Result<u8, Failure> {
    find(client, args.run).await?;
    let tasks = run_queries::tasks(client, args.run).await?;
    let edges = run_queries::edges(client, args.run).await?;
    if out.json {
        out.document(&json!({ "tasks": tasks, "edges": edges }))?;
        return Ok(exit::OK);
    }
    let expected = |edge: &Edge| {
        (edge.expected != Expected::Succeeded).then(|| edge.expected.as_str().to_owned())
    };
    let boxes: Vec<graph_format::Node> = tasks
        .iter()
        .map(|task| graph_format::Node {
            id: task.node.to_string(),
            label: format!("{}\n{}", task.name, task.state),
            state: task.state.split(',').next().map(str::to_owned),
        })
        .collect();
    let arrows: Vec<graph_format::Edge> = edges
        .iter()
        .map(|edge| graph_format::Edge {
            from: edge.parent.to_string(),
            to: edge.child.to_string(),
            label: expected(edge),
        })
        .collect();
    out.text(&match args.format {
        GraphFormat::Mermaid => graph_format::mermaid(&boxes, &arrows),
        GraphFormat::Dot => graph_format::dot(&boxes, &arrows),
        GraphFormat::Text => lines(&tasks, &edges),
    })?;
    Ok(exit::OK)
}

/// Formats `[a succeeded] >>> [b running]` for each edge, then the tasks without edges.
fn lines(tasks: &[RunTask], edges: &[Edge]) -> String {
    let by_node: HashMap<i64, String> = tasks
        .iter()
        .map(|task| (task.node, format!("[{} {}]", visible(&task.name), task.state)))
        .collect();
    let shown = |node: i64| by_node.get(&node).cloned().unwrap_or_default();
    let edge = |edge: &Edge| {
        let arrow = match edge.expected {
            Expected::Succeeded => ">>>".to_owned(),
            other => format!("> {other} >"),
        };
        format!("{} {arrow} {}", shown(edge.parent), shown(edge.child))
    };
    let joined: HashSet<i64> = edges.iter().flat_map(|edge| [edge.parent, edge.child]).collect();
    let alone = tasks.iter().filter(|task| !joined.contains(&task.node));
    edges.iter().map(edge).chain(alone.map(|task| shown(task.node))).collect::<Vec<_>>().join("\n")
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
                let (path, seconds) = critical_path(&tasks, &edges);
                bar.set_prefix(format!("run {id}, critical path {}", span(seconds)));
                if let Some(last) = path.last() {
                    bar.set_message(format!("{}; {}", bar.message(), visible(&last.name)));
                }
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn names(path: &[&RunTask]) -> String {
    let step = |task: &&RunTask| {
        let seconds = task.duration.unwrap_or_default().as_secs_f64();
        format!("{} ({})", visible(&task.name), span(seconds))
    };
    let shown: Vec<String> = path.iter().take(20).map(step).collect();
    let more = path.len().saturating_sub(20);
    let rest = if more > 0 { format!(" > and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(" > "))
}

/// Formats the fire time and the reason of a run that a schedule has fired.
pub(crate) fn fire(run: &Run) -> Option<String> {
    let (at, reason) = (run.fire_at?, run.reason.as_deref()?);
    Some(format!("fired for {}: {}", local_time(at), visible(reason)))
}

fn heading(out: &Output, run: &Run) -> String {
    let mut text = format!("run {} of {}: ", run.id, visible(&run.title()));
    text.push_str(&out.paint(run.state.as_str(), run_tone(run.state)));
    let _ = write!(
        text,
        ", started {} by {}, {}",
        local_time(run.started_at),
        visible(&run.started_by),
        span(run.duration.as_secs_f64())
    );
    if let Some(role) = &run.cancelled_by {
        let _ = write!(text, ", cancelled by {}", visible(role));
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
    let count = &run.count;
    let _ = write!(
        text,
        "\n{}: {} waiting, {} released, {} succeeded, {} failed, {} ignored, {} cancelled, {} upstream_failed",
        counted(count.tasks, "task"),
        count.waiting,
        count.released,
        count.succeeded,
        count.failed,
        count.ignored,
        count.cancelled,
        count.upstream_failed
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
            Field::or_blank(task.message.as_deref().map(|message| one_line(message, 60))),
        ]
    };
    let mut text = out.table(&TASK_HEADINGS, shown.iter().take(limit).map(row).collect());
    if shown.len() > limit {
        let _ = write!(text, "\nand {} more; use --all", shown.len() - limit);
    }
    text
}

/// Sort order of a long table: tasks that need attention first.
fn display_rank(state: &str) -> u8 {
    match state {
        "running" => 0,
        "failed" | "failed, ignored" => 1,
        "cancelled" => 2,
        "upstream_failed" => 3,
        "waiting" => 5,
        "succeeded" => 6,
        _ => 4,
    }
}

fn run_tone(state: RunState) -> Tone {
    match state {
        RunState::Running => Tone::Plain,
        RunState::Succeeded => Tone::Success,
        RunState::Failed => Tone::Error,
        RunState::Cancelled => Tone::Warning,
    }
}

fn task_tone(state: &str) -> Tone {
    match state {
        "succeeded" | "running" => Tone::Success,
        "failed" => Tone::Error,
        "failed, ignored" | "cancelled" | "upstream_failed" | "blocked" => Tone::Warning,
        _ => Tone::Plain,
    }
}
