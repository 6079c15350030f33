//! Tasks of a batch job, and the conditions between them.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use toml::{Table, Value};

use super::super::conversion::{Differences, LeftOut};
use super::super::declaration::{self, param, put};
use super::super::names::Names;
use super::super::rows::Row;
use super::{Classes, Fields, invalid, unknown_fields};

const TASK_FIELDS: &str = "task_id task_description class statement parameters company batch_group \
    ignore_task_failure maximum_retries condition_type conditions private status";

const CONDITION_FIELDS: &str = "task expected_status";

/// Returns the job with its tasks.
///
/// # Errors
/// Returns the first task that cannot be imported: without it, the job would do something else.
pub(super) fn tasks(
    job: &Row,
    classes: &Classes,
    differences: &mut Differences,
) -> Result<Table, LeftOut> {
    let tasks = job.get("tasks").and_then(Json::as_array).filter(|tasks| !tasks.is_empty());
    let tasks = tasks.ok_or_else(|| invalid("the batch job has no tasks"))?;
    let mut read = Vec::new();
    for (number, task) in tasks.iter().enumerate() {
        let fields =
            Fields::read(&format!("task {}", number + 1), task, TASK_FIELDS).map_err(invalid)?;
        unknown_fields(&fields.unknown, differences);
        read.push(fields.row);
    }
    let wanted: Vec<String> = read.iter().enumerate().map(|(n, row)| wanted_name(row, n)).collect();
    let mut names = Names::new("", wanted.iter().map(String::as_str));
    // A condition names a task by its id or its description.
    let mut by_reference = BTreeMap::new();
    let mut chosen = Vec::new();
    for (number, row) in read.iter().enumerate() {
        let name = names.choose(&wanted[number], &(number + 1).to_string());
        for reference in [row.name("task_description"), row.name("task_id")].into_iter().flatten() {
            by_reference.insert(reference, name.clone());
        }
        chosen.push(name);
    }
    let mut tables = Table::new();
    for (row, name) in read.iter().zip(chosen) {
        let in_task = |reason: LeftOut| LeftOut {
            message: format!("{} \"{name}\": {}", row.place, reason.message),
            ..reason
        };
        let table = task(row, classes, &by_reference, differences).map_err(in_task)?;
        tables.insert(name, Value::Table(table));
    }
    Ok(Table::from_iter([("task".to_owned(), Value::Table(tables))]))
}

fn wanted_name(row: &Row, number: usize) -> String {
    let name = row.name("task_description").or_else(|| row.name("class"));
    name.unwrap_or_else(|| format!("task_{}", number + 1))
}

fn task(
    row: &Row,
    classes: &Classes,
    names: &BTreeMap<String, String>,
    differences: &mut Differences,
) -> Result<Table, LeftOut> {
    let class = row.name("class");
    let of_class = class.as_ref().and_then(|class| classes.get(class).cloned());
    let Some(statement) = row.name("statement").or(of_class) else {
        let class = class.map(|class| format!(" for class {class}")).unwrap_or_default();
        let hint = "Add the statement that replaces the class to classes.";
        return Err(LeftOut::new(format!("no statement{class}"), hint));
    };
    let mut table = declaration::statement(&statement, None)?;
    let retries = row.whole("maximum_retries").map_err(invalid)?.unwrap_or(0);
    if !(0..10_000).contains(&retries) {
        return Err(invalid("maximum_retries must be from 0 to 9999"));
    }
    put(&mut table, "max_attempts", retries + 1);
    if row.truth("ignore_task_failure", false).map_err(invalid)? {
        put(&mut table, "ignore_failure", true);
    }
    if let Some(group) = row.name("batch_group") {
        put(&mut table, "group", group);
    }
    if let Some(company) = row.name("company") {
        put(&mut table, "metadata", Table::from_iter([("company".to_owned(), company.into())]));
    }
    if row.truth("private", false).map_err(invalid)? {
        differences.add(
            "a private task runs only for its creator; every worker runs the task",
            "To choose workers, give the task a queue.",
        );
    }
    match row.get("parameters") {
        None => {}
        Some(Json::Array(values)) => {
            let params = values.iter().map(param).collect::<Result<Vec<Value>, _>>()?;
            put(&mut table, "params", params);
        }
        Some(_) => return Err(invalid("parameters is not an array")),
    }
    let edges = edges(row, names)?;
    if !edges.is_empty() {
        put(&mut table, "after", edges);
        let any = row.name("condition_type").is_some_and(|it| it.eq_ignore_ascii_case("any"));
        put(&mut table, "join", if any { "any" } else { "all" });
    }
    Ok(table)
}

/// Returns the edges of a task.
fn edges(row: &Row, names: &BTreeMap<String, String>) -> Result<Vec<Value>, LeftOut> {
    let conditions = match row.get("conditions") {
        None => return Ok(Vec::new()),
        Some(Json::Array(conditions)) => conditions,
        Some(_) => return Err(invalid("conditions is not an array")),
    };
    let mut edges = Vec::new();
    for condition in conditions {
        let row = Fields::read("a condition", condition, CONDITION_FIELDS).map_err(invalid)?.row;
        let task = row.name("task").ok_or_else(|| invalid("a condition has no task"))?;
        let parent = names.get(&task);
        let parent = parent
            .ok_or_else(|| invalid(format!("a condition names the unknown task \"{task}\"")))?;
        let status = row.name("expected_status").unwrap_or_else(|| "Ended".to_owned());
        let expected = match status.to_lowercase().as_str() {
            "ended" => "succeeded",
            "error" => "failed",
            "ended or error" | "finished" => "finished",
            _ => {
                return Err(LeftOut::new(
                    format!("no edge expects the status \"{status}\""),
                    "The statuses are Ended, Error, and Ended or error.",
                ));
            }
        };
        edges.push(declaration::edge(parent, expected));
    }
    Ok(edges)
}
