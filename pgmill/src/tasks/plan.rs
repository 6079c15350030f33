//! `pgmill task show --plan`: prints a saved plan as a tree, and compares it with the previous one.

use cli::{Exit, Failure};
use conninfo::Client;
use queue::insight::{self, SavedPlan};
use queue::{TaskId, task_queries};
use serde_json::json;
use terminal::{PlanNode, plan_changes, plan_nodes, plan_shape, plan_totals, visible};

use crate::output::format::{counted, relative_time, span};
use crate::output::{Output, Row, Tone};

/// Prints the plan of the last attempt whose plan was saved.
///
/// # Errors
/// Fails if there is no such task, or if no plan of the task was saved.
pub(crate) async fn run(client: &Client, out: &Output, id: TaskId) -> Exit {
    let Some(kept) = insight::saved_plan(client, id).await? else {
        if task_queries::task(client, id).await?.is_none() {
            return Err(Failure::not_found(format!("no task {id}, live or in the history")));
        }
        return Err(Failure::not_found(format!("no saved plan of task {id}, or it is hidden"))
            .hint("The plan of a task enqueued with --explain is saved when it has run."));
    };
    let before = insight::previous_plan(client, &kept).await?;
    let shape_of = |kept: &SavedPlan| plan_shape(&kept.plan);
    let changed = before.as_ref().map(|before| shape_of(before) != shape_of(&kept));
    if out.json {
        return out.document(&json!({
            "task_id": kept.task_id, "attempt": kept.attempt, "finished_at": kept.finished_at,
            "shape": shape_of(&kept), "changed": changed,
            "previous": before.as_ref().map(|before| json!({
                "task_id": before.task_id, "finished_at": before.finished_at, "shape": shape_of(before),
            })),
            "plan": kept.plan,
        }));
    }
    let table = out.table(plan_nodes(&kept.plan).iter().map(row).collect());
    let mut text = format!("{table}\n\n{}", totals(&kept));
    if let Some(before) = &before {
        let ago = relative_time(before.finished_at, task_queries::now(client).await?);
        let (change, tone) = match changed {
            Some(true) => ("plan changed since", Tone::Warning),
            _ => ("same plan as", Tone::Success),
        };
        let change = out.paint(change, tone);
        text.push_str(&format!("\n{change} the previous one, of task {}, {ago}", before.task_id));
        if changed == Some(true) {
            let changes = plan_changes(&before.plan, &kept.plan).into_iter();
            text.extend(changes.map(|(sign, line)| format!("\n  {sign} {}", visible(&line))));
        }
    }
    out.text(&text)
}

/// Formats the totals: times, WAL and triggers.
fn totals(kept: &SavedPlan) -> String {
    let totals = plan_totals(&kept.plan);
    let mut parts = Vec::new();
    parts.extend(totals.planning_seconds.map(|time| format!("planned in {}", span(time))));
    parts.extend(totals.execution_seconds.map(|time| format!("executed in {}", span(time))));
    parts.extend(totals.wal_bytes.map(|bytes| format!("{bytes} bytes of WAL")));
    parts.extend(totals.triggers.iter().map(|it| {
        let calls = counted(it.calls, "call");
        format!("trigger {} {} in {calls}", visible(&it.name), span(it.seconds))
    }));
    if totals.truncated {
        parts.push("truncated".to_owned());
    }
    format!("task {}, attempt {}: {}", kept.task_id, kept.attempt, parts.join(", "))
}

fn row(node: &PlanNode) -> Row {
    let arrow = match node.depth {
        0 => String::new(),
        depth => format!("{}└ ", "  ".repeat(depth - 1)),
    };
    let rows = if node.executed { node.rows.to_string() } else { "never executed".to_owned() };
    Row::of("node", format!("{arrow}{}", node.operation))
        .text("rows", rows)
        .warn_if(node.executed && node.misestimated)
        .text("expected", node.expected_rows)
        .text("loops", node.loops)
        .text("self time", span(node.self_seconds))
        .count("hit", node.blocks_hit)
        .count("read", node.blocks_read)
        .count("temp", node.temp_blocks_written)
}
