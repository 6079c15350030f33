//! Tasks of a chain.

use serde_json::Value as Json;
use tokio_postgres::Config;
use toml::{Table, Value};

use super::super::conversion::{Differences, LeftOut};
use super::super::declaration::{self, calls_procedure, edge, param, put};
use super::super::names::{Names, profile};
use super::super::rows::Row;
use super::{Document, EXPORT, id_of, milliseconds};
use crate::args::RunAs;

/// One execution of a task: a task with several rows of parameters has several.
struct Step {
    name: String,
    table: Table,
    ignore_error: bool,
}

/// Converts the tasks of a chain that are live.
///
/// # Errors
/// Returns the first task that cannot be imported: without it, the chain would do something else.
pub(super) fn tasks(
    document: &Document,
    chain: &Row,
    run_as: &[RunAs],
    differences: &mut Differences,
) -> Result<Table, LeftOut> {
    let invalid = |message: String| LeftOut::new(message, EXPORT);
    let rows = document.tasks.get(&id_of(chain, "chain_id")).map_or(&[][..], Vec::as_slice);
    let (mut steps, mut shared) = (Vec::new(), 0);
    for row in rows {
        if !row.truth("live", true).map_err(invalid)? {
            differences.add(
                format!("task {} is not live, and left out", id_of(row, "task_id")),
                "Add it to the job when it is needed.",
            );
            continue;
        }
        let of_task = steps_of(document, row, run_as, differences)?;
        let alone = row.truth("autonomous", false).map_err(invalid)?
            || row.name("database_connection").is_some();
        shared += usize::from(!alone && !of_task.is_empty());
        steps.extend(of_task);
    }
    if steps.is_empty() {
        return Err(LeftOut::new("the chain has no task to run", ""));
    }
    if shared > 1 {
        differences.add(
            "the tasks of the chain commit together; each task of the job commits by itself",
            "If they have to commit together, make them one task, or one procedure.",
        );
    }
    let mut tasks = connect(&steps);
    if let Some(statement) = chain.name("on_error") {
        tasks.extend(on_error(&statement, &steps)?);
    }
    Ok(tasks)
}

/// Makes each task wait for the one before it.
fn connect(steps: &[Step]) -> Table {
    let mut names = Names::new("", steps.iter().map(|step| step.name.as_str()));
    let (mut tasks, mut before) = (Table::new(), None::<(String, bool)>);
    for (number, step) in steps.iter().enumerate() {
        let name = names.choose(&step.name, &(number + 1).to_string());
        let mut table = step.table.clone();
        if let Some((parent, ignored)) = before {
            put(
                &mut table,
                "after",
                vec![edge(&parent, if ignored { "finished" } else { "succeeded" })],
            );
        }
        tasks.insert(name.clone(), Value::Table(table));
        before = Some((name, step.ignore_error));
    }
    tasks
}

/// Returns the task that runs when another one has failed.
fn on_error(statement: &str, steps: &[Step]) -> Result<Table, LeftOut> {
    let tasks = connect(steps);
    let fatal = tasks.iter().filter(|(_, task)| task.get("ignore_failure").is_none());
    let edges: Vec<Value> = fatal.map(|(name, _)| edge(name, "failed")).collect();
    if edges.is_empty() {
        return Ok(Table::new());
    }
    let mut table = declaration::statement(statement, None)?;
    put(&mut table, "after", edges);
    put(&mut table, "join", "any");
    let mut name = "on_error".to_owned();
    while tasks.contains_key(&name) {
        name.push('_');
    }
    Ok(Table::from_iter([(name, Value::Table(table))]))
}

/// Returns the executions of a task.
fn steps_of(
    document: &Document,
    row: &Row,
    run_as: &[RunAs],
    differences: &mut Differences,
) -> Result<Vec<Step>, LeftOut> {
    let id = id_of(row, "task_id");
    let in_task =
        |reason: LeftOut| LeftOut { message: format!("task {id}: {}", reason.message), ..reason };
    let parameters = document.parameters.get(&id).map_or(&[][..], Vec::as_slice);
    let values: Vec<&Json> = parameters.iter().filter_map(|row| row.get("value")).collect();
    let command = row.text("command").unwrap_or_default();
    let kind = row.text("kind").unwrap_or_else(|| "SQL".to_owned());
    let tables = match kind.as_str() {
        "SQL" => sql(row, &command, &values, run_as, differences).map_err(in_task)?,
        "BUILTIN" => builtin(&command, &values, differences).map_err(in_task)?,
        _ => {
            let hint =
                "Call the program from cron or a systemd timer, or replace it with a function.";
            return Err(in_task(LeftOut::new(
                format!("{kind} tasks run outside of the database"),
                hint,
            )));
        }
    };
    let invalid = |message: String| in_task(LeftOut::new(message, EXPORT));
    let ignore_error = row.truth("ignore_error", false).map_err(invalid)?;
    let timeout = milliseconds(row).map_err(invalid)?;
    let name = row.name("task_name").unwrap_or_else(|| format!("task_{id}"));
    let several = tables.len() > 1;
    let step = |(number, mut table): (usize, Table)| {
        if ignore_error {
            put(&mut table, "ignore_failure", true);
        }
        if let Some(timeout) = &timeout {
            put(&mut table, "timeout", timeout.as_str());
        }
        let name = if several { format!("{name}_{}", number + 1) } else { name.clone() };
        Step { name, table, ignore_error }
    };
    Ok(tables.into_iter().enumerate().map(step).collect())
}

fn sql(
    row: &Row,
    command: &str,
    values: &[&Json],
    run_as: &[RunAs],
    differences: &mut Differences,
) -> Result<Vec<Table>, LeftOut> {
    let (user, connection) = (row.name("run_as"), row.name("database_connection"));
    // The connection string may contain a password, so no message contains it.
    let database = connection.as_ref().map(|it| it.parse::<Config>());
    let database = database.and_then(Result::ok).and_then(|it| it.get_dbname().map(str::to_owned));
    let profile = profile(run_as, user.as_deref(), database.as_deref());
    if connection.is_some() && profile.is_none() {
        let named = database.map(|name| format!(" \"{name}\"")).unwrap_or_default();
        return Err(LeftOut::new(
            format!("it runs in another database{named}"),
            "Declare a target, and map it: --run-as @DATABASE=TARGET.",
        ));
    }
    if let (Some(user), None) = (&user, profile) {
        differences.unmapped("role", user);
    }
    let mut table = declaration::statement(command, profile)?;
    let alone = row.truth("autonomous", false).map_err(|it| LeftOut::new(it, EXPORT))?;
    if alone && calls_procedure(command) {
        put(&mut table, "mode", "autocommit");
    }
    if values.is_empty() {
        return Ok(vec![table]);
    }
    let with_params = |value: &&Json| {
        let mut table = table.clone();
        let wrong = "its parameters are not an array";
        let values =
            value.as_array().ok_or_else(|| LeftOut::new(wrong, "Correct the parameters."))?;
        let params = values.iter().map(param).collect::<Result<Vec<Value>, _>>()?;
        put(&mut table, "params", params);
        Ok(table)
    };
    values.iter().map(with_params).collect()
}

/// Converts a built-in task.
fn builtin(
    command: &str,
    values: &[&Json],
    differences: &mut Differences,
) -> Result<Vec<Table>, LeftOut> {
    let statement = |sql: &str, param: Value| {
        let mut table = declaration::statement(sql, None)?;
        put(&mut table, "params", vec![param]);
        Ok(table)
    };
    match command {
        "NoOp" => Ok(Vec::new()),
        "Sleep" => {
            let wrong =
                || LeftOut::new("Sleep needs a number of seconds", "Correct the parameter.");
            let seconds = values.iter().map(|it| it.as_i64().ok_or_else(wrong));
            let seconds = seconds.collect::<Result<Vec<i64>, _>>()?;
            if seconds.is_empty() {
                return Err(wrong());
            }
            let sleep = |seconds| statement("SELECT pg_sleep($1::int)", Value::Integer(seconds));
            seconds.into_iter().map(sleep).collect()
        }
        "Log" => {
            differences.add(
                "Log becomes a task that returns the text, which its history keeps",
                "Use RAISE LOG in a procedure to write to the log of the server.",
            );
            let log = |value: &&Json| {
                statement("SELECT $1::text AS log", Value::String(value.to_string()))
            };
            values.iter().map(log).collect()
        }
        "SendMail" => Err(LeftOut::new(
            "pgmill sends mail only as notifications",
            "Subscribe to the outcome of the run: docs/notifications.md.",
        )),
        "Shutdown" => Err(LeftOut::new("no task stops a worker", "Use pgmill worker drain.")),
        other => Err(LeftOut::new(
            format!("the built-in task {other} reads or writes files outside of the database"),
            "Use COPY with a file or program of the server, or a program outside of pgmill.",
        )),
    }
}
