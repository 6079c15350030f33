//! `pgmill task show --plan`: a plan as a tree, and whether it is another one than before.

use queue::insight::{self, SavedPlan};
use queue::{TaskId, exit, task_queries};
use serde_json::json;
use terminal::{PlanNode, plan_changes, plan_nodes, plan_shape, plan_totals, visible};
use tokio_postgres::Client;

use crate::failure::Failure;
use crate::format::{relative_time, span};
use crate::output::{Field, Output, Tone};

/// Prints the plan of the last attempt that has one.
///
/// # Errors
/// No such task, or no plan of it; database trouble.
pub(crate) async fn run(client: &Client, out: &Output, id: TaskId) -> Result<u8, Failure> {
    let Some(kept) = insight::saved_plan(client, id).await? else {
        if task_queries::task(client, id).await?.is_none() {
            return Err(Failure::not_found(format!("no task {id}, live or in the history")));
        }
        return Err(Failure::not_found(format!("no plan of task {id} was kept, or it is hidden"))
            .hint("enqueue --explain keeps the plan of a task, once it has run"));
    };
    let before = insight::previous_plan(client, &kept).await?;
    let shape_of = |kept: &SavedPlan| plan_shape(&kept.plan);
    let changed = before.as_ref().map(|before| shape_of(before) != shape_of(&kept));
    if out.json {
        out.document(&json!({
            "task_id": kept.task_id, "attempt": kept.attempt, "finished_at": kept.finished_at,
            "shape": shape_of(&kept), "changed": changed,
            "previous": before.as_ref().map(|before| json!({
                "task_id": before.task_id, "finished_at": before.finished_at, "shape": shape_of(before),
            })),
            "plan": kept.plan,
        }))?;
        return Ok(exit::OK);
    }
    let rows = plan_nodes(&kept.plan).iter().map(row).collect();
    const HEADINGS: [&str; 8] =
        ["node", "rows", "expected", "loops", "self time", "hit", "read", "temp"];
    let mut text = out.table(&HEADINGS, rows);
    text.push_str(&format!("\n\n{}", totals(&kept)));
    if let Some(before) = &before {
        let ago = relative_time(before.finished_at, task_queries::now(client).await?);
        let (change, tone) = match changed {
            Some(true) => ("another plan than", Tone::Warning),
            _ => ("the same plan as", Tone::Success),
        };
        let change = out.paint(change, tone);
        text.push_str(&format!("\n{change} the one before, of task {}, {ago}", before.task_id));
        if changed == Some(true) {
            for (sign, line) in plan_changes(&before.plan, &kept.plan) {
                text.push_str(&format!("\n  {sign} {}", visible(&line)));
            }
        }
    }
    out.text(&text)?;
    Ok(exit::OK)
}

/// What the whole took.
fn totals(kept: &SavedPlan) -> String {
    let totals = plan_totals(&kept.plan);
    let mut parts = Vec::new();
    parts.extend(totals.planning_seconds.map(|time| format!("planned in {}", span(time))));
    parts.extend(totals.execution_seconds.map(|time| format!("ran in {}", span(time))));
    parts.extend(totals.wal_bytes.map(|bytes| format!("{bytes} bytes of WAL")));
    parts.extend(totals.triggers.iter().map(|it| {
        format!("trigger {} {} in {} calls", visible(&it.name), span(it.seconds), it.calls)
    }));
    if totals.truncated {
        parts.push("too long to be kept whole".to_owned());
    }
    format!("task {}, attempt {}: {}", kept.task_id, kept.attempt, parts.join(", "))
}

fn row(node: &PlanNode) -> Vec<Field> {
    let tone = if node.misestimated { Tone::Warning } else { Tone::Plain };
    let arrow = match node.depth {
        0 => String::new(),
        depth => format!("{}└ ", "  ".repeat(depth - 1)),
    };
    vec![
        Field::new(format!("{arrow}{}", node.operation)),
        if node.executed { Field::new(node.rows).tone(tone) } else { Field::new("never run") },
        Field::new(node.expected_rows),
        Field::new(node.loops),
        Field::new(span(node.self_seconds)),
        Field::count(node.blocks_hit),
        Field::count(node.blocks_read),
        Field::count(node.temp_blocks_written),
    ]
}
