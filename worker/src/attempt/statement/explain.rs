//! Runs a statement under EXPLAIN (ANALYZE). The statement runs once and has its effects; the
//! result is its plan instead of its rows.

use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::TryStreamExt;
use queue::{Claim, scan};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio_postgres::types::Json;

use crate::attempt::error::ExecutionError;
use crate::attempt::output::rows::Rows;
use crate::attempt::params::Param;
use crate::attempt::session::Session;
use crate::attempt::statement::prepare::prepare;

/// Prefix of the statement, which is sent in the extended protocol, as a single statement.
const EXPLAIN: &str = "EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON) ";

/// An object whose values are not parsed.
type Object = BTreeMap<String, Box<RawValue>>;

/// Maximum size in bytes of a plan in the history. Of a larger plan, only the top node is kept.
const MAX_BYTES: usize = 256 * 1024;

/// Runs the task's statement in the open transaction. `check` has ensured that it is a single
/// statement.
///
/// # Errors
/// Returns the error of the statement or the connection; the transaction is still open.
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
    let statement =
        prepare(session, &format!("{EXPLAIN}{}", claim.with_comment(text)), values.len()).await?;
    let values = values.iter().map(|value| Param(value));
    let answers = session.client().query_raw(&statement, values).await?;
    let mut answers = pin!(answers);
    let mut plan = None;
    while let Some(row) = answers.try_next().await? {
        let Json(output): Json<Box<RawValue>> = row.try_get(0)?;
        plan = match serde_json::from_str::<Vec<Value>>(output.get()) {
            Ok(plans) => own_plan(plans, text),
            Err(_) => top_nodes(output.get(), text),
        };
    }
    Ok(plan)
}

/// Returns the plan of the statement itself. Rules may have rewritten it into several: it is then the
/// first one if it inserts, and the last one if it updates or deletes. `None` if that is unknown.
///
/// Source: PostgreSQL's documentation, Rules on INSERT, UPDATE, and DELETE.
fn own_plan<P>(mut plans: Vec<P>, statement: &str) -> Option<P> {
    if plans.len() < 2 {
        return plans.pop();
    }
    let [statement] = scan::statements(statement)[..] else { return None };
    match &*statement.leading_words().next()?.to_ascii_lowercase() {
        "insert" => Some(plans.swap_remove(0)),
        "update" | "delete" => plans.pop(),
        _ => None,
    }
}

/// Returns the topmost nodes of a plan that is nested too deeply for the parser of JSON, which
/// accepts 128 levels. A node needs two.
fn top_nodes(output: &str, statement: &str) -> Option<Value> {
    let documents = serde_json::from_str::<Vec<Object>>(output).ok()?;
    let plan = top_of(own_plan(documents, statement)?.get("Plan")?, 1)?;
    Some(json!({ "Plan": plan, "Truncated": true }))
}

/// Returns the node with this many levels of nodes below it.
fn top_of(node: &RawValue, levels: usize) -> Option<Value> {
    let mut top = serde_json::Map::new();
    for (key, value) in serde_json::from_str::<Object>(node.get()).ok()? {
        let value = match (key.as_str(), levels) {
            ("Plans", 0) => continue,
            ("Plans", _) => {
                let below: Vec<Box<RawValue>> = serde_json::from_str(value.get()).ok()?;
                below.iter().map(|node| top_of(node, levels - 1)).collect::<Option<_>>()?
            }
            _ => serde_json::from_str(value.get()).ok()?,
        };
        top.insert(key, value);
    }
    Some(Value::Object(top))
}

/// Returns the number of rows returned or affected. A ModifyTable node itself reports no rows: the
/// number is the rows of the node below it, or the sum of its inserted, updated and deleted tuples.
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
        reason = "a row count, never negative"
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
            return json!({ "Truncated": true });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_count_is_the_number_of_rows_returned_or_changed() {
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
    fn an_oversized_plan_keeps_its_top_node() {
        let nodes: Vec<Value> =
            (0..30_000).map(|n| json!({ "Node Type": format!("Scan {n}") })).collect();
        let kept = truncate_plan(json!({ "Plan": { "Node Type": "Append", "Plans": nodes } }));
        assert_eq!(kept, json!({ "Plan": { "Node Type": "Append" }, "Truncated": true }));
    }
}
