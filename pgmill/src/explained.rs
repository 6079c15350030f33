//! `pgmill task show --plan`: a plan as a tree, and whether it is another one than before.

use queue::insight::{self, KeptPlan};
use queue::{TaskId, exit, show};
use serde_json::json;
use terminal::{Node, plan_changes, plan_nodes, plan_shape, plan_sums, visible};
use tokio_postgres::Client;

use crate::failure::Failure;
use crate::output::{Field, Output, Tone};
use crate::words::{distance, span};

/// Prints the plan of the last attempt that has one.
///
/// # Errors
/// No such task, or no plan of it; database trouble.
pub(crate) async fn run(client: &Client, out: &Output, id: TaskId) -> Result<u8, Failure> {
    let Some(kept) = insight::plan(client, id).await? else {
        if show::task(client, id).await?.is_none() {
            return Err(Failure::not_found(format!("no task {id}, live or in the history")));
        }
        return Err(Failure::not_found(format!("no plan of task {id} was kept, or it is hidden"))
            .hint("enqueue --explain keeps the plan of a task, once it has run"));
    };
    let before = insight::plan_before(client, &kept).await?;
    let shape_of = |kept: &KeptPlan| plan_shape(&kept.plan);
    let changed = before.as_ref().map(|before| shape_of(before) != shape_of(&kept));
    if out.json {
        out.document(&json!({
            "task": kept.task_id, "attempt": kept.attempt, "finished_at": kept.finished_at,
            "shape": shape_of(&kept), "changed": changed,
            "before": before.as_ref().map(|before| json!({
                "task": before.task_id, "finished_at": before.finished_at, "shape": shape_of(before),
            })),
            "plan": kept.plan,
        }))?;
        return Ok(exit::OK);
    }
    let rows = plan_nodes(&kept.plan).iter().map(row).collect();
    const HEADINGS: [&str; 8] =
        ["node", "rows", "expected", "loops", "time of its own", "hit", "read", "temp"];
    let mut text = out.table(&HEADINGS, rows);
    text.push_str(&format!("\n\n{}", sums(&kept)));
    if let Some(before) = &before {
        let ago = distance(before.finished_at, show::now(client).await?);
        let (told, tone) = match changed {
            Some(true) => ("another plan than", Tone::Odd),
            _ => ("the same plan as", Tone::Good),
        };
        let told = out.paint(told, tone);
        text.push_str(&format!("\n{told} the one before, of task {}, {ago}", before.task_id));
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
fn sums(kept: &KeptPlan) -> String {
    let sums = plan_sums(&kept.plan);
    let mut parts = Vec::new();
    parts.extend(sums.planning_seconds.map(|time| format!("planned in {}", span(time))));
    parts.extend(sums.execution_seconds.map(|time| format!("ran in {}", span(time))));
    parts.extend(sums.wal_bytes.map(|bytes| format!("{bytes} bytes of WAL")));
    parts.extend(sums.triggers.iter().map(|it| {
        format!("trigger {} {} in {} calls", visible(&it.name), span(it.seconds), it.calls)
    }));
    if sums.truncated {
        parts.push("too long to be kept whole".to_owned());
    }
    format!("task {}, attempt {}: {}", kept.task_id, kept.attempt, parts.join(", "))
}

fn row(node: &Node) -> Vec<Field> {
    let tone = if node.far_off { Tone::Odd } else { Tone::Plain };
    let arrow = match node.depth {
        0 => String::new(),
        depth => format!("{}└ ", "  ".repeat(depth - 1)),
    };
    vec![
        Field::new(format!("{arrow}{}", node.does)),
        if node.ran { Field::new(node.rows).tone(tone) } else { Field::new("never run") },
        Field::new(node.expected_rows),
        Field::new(node.loops),
        Field::new(span(node.own_seconds)),
        Field::count(node.blocks_hit),
        Field::count(node.blocks_read),
        Field::count(node.temp_blocks_written),
    ]
}
