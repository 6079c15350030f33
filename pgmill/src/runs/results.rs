//! `pgmill run results`: the results of a run as dbt's file `run_results.json`.

use std::collections::BTreeMap;
use std::path::Path;

use cli::{Exit, Failure, exit};
use conninfo::Client;
use import::dbt_keys::{FAILURES, NODE, RELATION, RESOURCE_TYPE, VERSION, WARNED};
use jiff::Timestamp;
use queue::run_queries::{self, Run, RunTask};
use serde_json::{Map, Value, json};

use crate::args::RunResults;
use crate::output::Output;
use crate::output::format::counted;
use crate::runs::list::find;

/// The schema that the file follows.
const SCHEMA: &str = "https://schemas.getdbt.com/dbt/run-results/v6.json";

/// Writes the results of an ended run to a file.
///
/// # Errors
/// Fails if there is no such run, if it has not ended or has no tasks of a dbt project, or if the
/// file cannot be written.
pub(super) async fn results(client: &Client, out: &Output, args: &RunResults) -> Exit {
    let run = find(client, args.run).await?;
    let Some(finished_at) = run.finished_at else {
        return Err(Failure::new(exit::REFUSED, format!("run {} has not ended", run.id))
            .hint(format!("Wait for its end: pgmill run show {} --watch", run.id)));
    };
    let tasks = run_queries::tasks(client, args.run).await?;
    let results = node_results(&tasks);
    if results.is_empty() {
        let message = format!("run {} has no tasks of a dbt project", run.id);
        return Err(Failure::usage(message).hint("`pgmill import dbt` makes a job of a project."));
    }
    let mut count: BTreeMap<&str, u64> = BTreeMap::new();
    for status in results.iter().filter_map(|it| it["status"].as_str()) {
        *count.entry(status).or_default() += 1;
    }
    write(&args.dbt, &document(&run, finished_at, &results))?;
    let file = args.dbt.display().to_string();
    let counts: Vec<String> =
        count.iter().map(|(status, number)| format!("{number} {status}")).collect();
    let number = counted(results.len(), "result");
    out.answer(
        json!({ "run_id": run.id, "file": file, "results": count }),
        format!("wrote {number} to {file}: {}", counts.join(", ")),
    )
}

fn write(path: &Path, document: &Value) -> Result<(), Failure> {
    let wrong =
        |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", path.display()));
    let text = serde_json::to_vec(document).map_err(|error| wrong(&error))?;
    std::fs::write(path, text).map_err(|error| wrong(&error))
}

fn document(run: &Run, finished_at: Timestamp, results: &[Value]) -> Value {
    json!({
        "metadata": {
            "dbt_schema_version": SCHEMA,
            "dbt_version": run.labels.metadata.get(VERSION).cloned().unwrap_or_default(),
            "generated_at": finished_at,
            "invocation_id": format!("pgmill-run-{}", run.id),
            "env": {},
        },
        "results": results,
        "elapsed_time": run.duration.as_secs_f64(),
        "args": { "which": "build" },
    })
}

/// Returns one result per node, in the order of the ids. A node can have several tasks.
fn node_results(tasks: &[RunTask]) -> Vec<Value> {
    let mut nodes: BTreeMap<&str, Vec<&RunTask>> = BTreeMap::new();
    for task in tasks {
        if let Some(node) = metadata(task).get(NODE).and_then(Value::as_str) {
            nodes.entry(node).or_default().push(task);
        }
    }
    nodes.into_iter().map(|(node, tasks)| result(node, &tasks)).collect()
}

fn metadata(task: &RunTask) -> &Map<String, Value> {
    &task.options.labels.metadata
}

fn result(node: &str, tasks: &[&RunTask]) -> Value {
    let value = |key: &str| tasks.iter().find_map(|task| metadata(task).get(key));
    let column =
        |key: &str| tasks.iter().find_map(|task| task.result.as_ref().and_then(|row| row.get(key)));
    let is_test = value(RESOURCE_TYPE).and_then(Value::as_str) == Some("test");
    let decisive = tasks.iter().find(|task| !task.state.starts_with("succeeded"));
    let started_at = tasks.iter().filter_map(|task| task.started_at).min();
    let finished_at = tasks.iter().filter_map(|task| task.finished_at).max();
    let seconds: f64 =
        tasks.iter().filter_map(|task| task.duration).map(|it| it.as_secs_f64()).sum();
    let message = decisive.and_then(|task| task.message.clone());
    let counted = column(FAILURES).and_then(|text| text.as_str()?.parse::<i64>().ok());
    let failures = counted.or_else(|| counted_failures(message.as_deref()));
    let status = match decisive.map(|task| task.state.as_str()) {
        None if !is_test => "success",
        None if column(WARNED) == Some(&json!("t")) => "warn",
        None => "pass",
        Some("upstream_failed" | "skipped") => "skipped",
        Some("cancelled") if started_at.is_none() => "skipped",
        Some(_) if is_test && failures.is_some() => "fail",
        Some(_) => "error",
    };
    let ran = started_at.zip(finished_at).filter(|_| status != "skipped");
    let timing: Vec<Value> = ran
        .map(|(from, to)| json!({ "name": "execute", "started_at": from, "completed_at": to }))
        .into_iter()
        .collect();
    let pid = tasks.iter().find_map(|task| task.pid);
    let rows = tasks.iter().find_map(|task| task.rows.filter(|_| !is_test));
    json!({
        "status": status,
        "timing": timing,
        "thread_id": pid.map_or_else(String::new, |pid| format!("backend {pid}")),
        "execution_time": seconds,
        "adapter_response": rows.map_or(json!({}), |rows| json!({ "rows_affected": rows })),
        "message": message,
        "failures": failures.filter(|_| is_test),
        "unique_id": node,
        "compiled": Value::Null,
        "compiled_code": Value::Null,
        "relation_name": value(RELATION),
        "batch_results": Value::Null,
    })
}

/// Reads the number of failures from the message of a failed test.
fn counted_failures(message: Option<&str>) -> Option<i64> {
    message?.strip_prefix("Got ")?.split(' ').next()?.parse().ok()
}
