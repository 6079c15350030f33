//! A statement that is run as EXPLAIN (ANALYZE): once, with its effects, and its plan in place of its
//! rows.

use std::pin::pin;

use futures_util::TryStreamExt;
use queue::{Claim, scan};
use serde_json::Value;

use crate::error::ExecutionError;
use crate::params::Param;
use crate::rows::Rows;
use crate::session::Session;
use crate::statement::prepare;

/// The statement is sent by the extended protocol, which takes one only.
const EXPLAIN: &str = "EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON) ";

/// Of a longer plan history keeps the topmost node only; in bytes.
const MAX_BYTES: usize = 256 * 1024;

/// Runs the task's statement, which has been found to be one, in the transaction that is open.
///
/// # Errors
/// The task's or the connection's; the transaction is still open.
pub(crate) async fn run(
    session: &mut Session,
    claim: &Claim,
    rows: &mut Rows,
) -> Result<(), ExecutionError> {
    let statements = scan::statements(claim.statement());
    let Some(statement) = statements.first() else { return Ok(()) };
    let before = claim.statement()[..statement.offset()].chars().count();
    let plan = run_explain(session, claim, statement.text())
        .await
        .map_err(|error| error.shift_position_back(EXPLAIN.len()).shift_position(before))?;
    if let Some(plan) = plan {
        let count = row_count(&plan["Plan"]);
        rows.explained(truncate_plan(plan), count);
    }
    Ok(())
}

async fn run_explain(
    session: &mut Session,
    claim: &Claim,
    text: &str,
) -> Result<Option<Value>, ExecutionError> {
    let values = claim.params().unwrap_or_default();
    let statement = prepare(session, &format!("{EXPLAIN}{text}"), values.len()).await?;
    let values = values.iter().map(|value| Param(value));
    let answers = session.client().query_raw(&statement, values).await?;
    let mut answers = pin!(answers);
    let mut plan = None;
    while let Some(row) = answers.try_next().await? {
        let output: Value = row.try_get(0)?;
        plan = output.get(0).cloned();
    }
    Ok(plan)
}

/// Rows returned or affected. A node that changes a table counts none itself: they are those of the
/// node below, or it says how many of each kind.
fn row_count(node: &Value) -> u64 {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let rows_of = |node: &Value| number(&node["Actual Rows"]) * number(&node["Actual Loops"]);
    let kinds = ["Tuples Inserted", "Tuples Updated", "Tuples Deleted"];
    let rows = if node["Node Type"] != "ModifyTable" {
        rows_of(node)
    } else if kinds.iter().any(|kind| node.get(kind).is_some()) {
        kinds.iter().map(|kind| number(&node[*kind])).sum()
    } else {
        let below = node["Plans"].as_array().into_iter().flatten();
        below.filter(|node| node["Parent Relationship"] == "Outer").map(rows_of).sum()
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of rows, and nothing below zero"
    )]
    let rows = rows.round() as u64;
    rows
}

fn truncate_plan(mut plan: Value) -> Value {
    if plan.to_string().len() > MAX_BYTES {
        if let Some(top) = plan["Plan"].as_object_mut() {
            top.remove("Plans");
        }
        plan["Truncated"] = Value::Bool(true);
        if plan.to_string().len() > MAX_BYTES {
            return serde_json::json!({ "Truncated": true });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_those_that_came_out_or_were_changed() {
        let scan = json!({ "Node Type": "Seq Scan", "Actual Rows": 7.0, "Actual Loops": 1,
            "Parent Relationship": "Outer" });
        assert_eq!(row_count(&scan), 7);
        let delete = json!({ "Node Type": "ModifyTable", "Actual Rows": 0, "Actual Loops": 1,
            "Plans": [scan, { "Parent Relationship": "InitPlan", "Actual Rows": 9, "Actual Loops": 1 }] });
        assert_eq!(row_count(&delete), 7);
        let merge =
            json!({ "Node Type": "ModifyTable", "Tuples Inserted": 2, "Tuples Updated": 3 });
        assert_eq!(row_count(&merge), 5);
    }

    #[test]
    fn a_plan_that_is_too_long_keeps_its_top() {
        let nodes: Vec<Value> =
            (0..30_000).map(|n| json!({ "Node Type": format!("Scan {n}") })).collect();
        let kept = truncate_plan(json!({ "Plan": { "Node Type": "Append", "Plans": nodes } }));
        assert_eq!(kept, json!({ "Plan": { "Node Type": "Append" }, "Truncated": true }));
    }
}
