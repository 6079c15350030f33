//! `pgmill import pg-timetable`: chains with their tasks and parameters.
//!
//! Each chain becomes a job, whose tasks run one after another in the order of the chain, and a
//! schedule that starts the job.

mod tasks;
mod timing;

use std::collections::HashMap;

use cli::Failure;
use serde_json::Value;
use toml::Table;

use super::conversion::{Conversion, Declared, Differences, LeftOut, Original};
use super::declaration::{self, put};
use super::rows::{self, Row};
use crate::args::PgTimetableArgs;

const EXPORT: &str = "docs/coming-from/pg_timetable.md has the query that exports the definitions.";

/// Converts the document.
///
/// # Errors
/// Fails if the text is not such a document.
pub(crate) fn convert(text: &str, args: &PgTimetableArgs) -> Result<Conversion, Failure> {
    let document = Document::read(text).map_err(|error| Failure::usage(error).hint(EXPORT))?;
    let original = |chain| Original {
        place: format!("chain {}", id_of(chain, "chain_id")),
        id: id_of(chain, "chain_id"),
        name: id_of(chain, "chain_name"),
        definition: chain,
    };
    let originals: Vec<Original<&Row>> = document.chains.iter().map(original).collect();
    let mut conversion = Conversion::default();
    conversion.import(&args.options, &originals, |chain, name, differences| {
        import(&document, chain, name, args, differences).inspect_err(|_| differences.0.clear())
    });
    Ok(conversion)
}

/// Rows of the three tables.
struct Document {
    chains: Vec<Row>,
    /// By chain, in their order.
    tasks: HashMap<String, Vec<Row>>,
    /// By task, in their order.
    parameters: HashMap<String, Vec<Row>>,
}

impl Document {
    fn read(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("the file is empty".to_owned());
        }
        let document: Value =
            serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
        let table = |key: &str, required: &[&str]| {
            let rows = document.get(key).and_then(Value::as_array);
            let rows = rows.ok_or_else(|| format!("the document has no array {key}"))?;
            let row = |(number, value): (usize, &Value)| {
                let row = rows::object(value.clone(), number + 1)
                    .map_err(|error| format!("{key}: {error}"))?;
                match required.iter().find(|column| row.get(column).is_none()) {
                    Some(column) => Err(format!("{key}: {} has no {column}", row.place)),
                    None => Ok(row),
                }
            };
            rows.iter().enumerate().map(row).collect::<Result<Vec<Row>, String>>()
        };
        let chains = table("chains", &["chain_id", "chain_name"])?;
        let mut tasks = HashMap::<String, Vec<Row>>::new();
        for row in table("tasks", &["task_id", "task_order", "command"])? {
            // A task without a chain is disabled.
            if let Some(chain) = row.text("chain_id") {
                tasks.entry(chain).or_default().push(row);
            }
        }
        let mut parameters = HashMap::<String, Vec<Row>>::new();
        for row in table("parameters", &["task_id", "order_id"])? {
            parameters.entry(id_of(&row, "task_id")).or_default().push(row);
        }
        sort(&mut tasks, "task_order");
        sort(&mut parameters, "order_id");
        Ok(Self { chains, tasks, parameters })
    }
}

/// Sorts the rows of each key by the number in a column.
fn sort(rows: &mut HashMap<String, Vec<Row>>, column: &str) {
    let number = |row: &Row| row.text(column).and_then(|it| it.parse().ok()).unwrap_or(f64::MAX);
    for rows in rows.values_mut() {
        rows.sort_by(|one, other| number(one).total_cmp(&number(other)));
    }
}

fn id_of(row: &Row, column: &str) -> String {
    row.text(column).unwrap_or_default()
}

fn import(
    document: &Document,
    row: &Row,
    name: &str,
    args: &PgTimetableArgs,
    differences: &mut Differences,
) -> Result<Declared, LeftOut> {
    let invalid = |message: String| LeftOut::new(message, EXPORT);
    differences.renamed("chain", &id_of(row, "chain_name"), (name, &args.options.prefix));
    let enabled = row.truth("live", false).map_err(invalid)?;
    let timing = timing::timing(row, args, differences)?;
    let overlap = timing::overlap(row).map_err(invalid)?;
    let tasks = tasks::tasks(document, row, &args.options.run_as, differences)?;
    let mut job = Table::new();
    if let Some(timeout) = milliseconds(row).map_err(invalid)? {
        put(&mut job, "run_timeout", timeout);
    }
    missing_settings(row, differences).map_err(invalid)?;
    put(&mut job, "task", tasks);
    let mut schedule = Table::new();
    put(&mut schedule, "job", name);
    declaration::schedule(&mut schedule, &timing, overlap, enabled);
    Ok(Declared { job: Some(job), schedule })
}

/// Returns the timeout of a chain or a task as a duration; `None` if it has none.
fn milliseconds(row: &Row) -> Result<Option<String>, String> {
    let timeout = row.whole("timeout")?.filter(|it| *it > 0);
    Ok(timeout.map(|milliseconds| format!("{milliseconds}ms")))
}

/// Reports the settings of a chain that have no equal, with what to do instead.
fn missing_settings(row: &Row, differences: &mut Differences) -> Result<(), String> {
    if row.truth("self_destruct", false)? {
        differences.add(
            "the chain deletes itself after its first successful run; the schedule stays",
            "Remove it after that run: pgmill schedule remove.",
        );
    }
    if row.truth("exclusive_execution", false)? {
        differences.add(
            "no other chain runs at the same time; pgmill has no such setting",
            "Give the tasks that exclude each other the same concurrency_key with a limit of 1.",
        );
    }
    if let Some(client) = row.name("client_name") {
        differences.add(
            format!("only the client \"{client}\" runs the chain; every worker runs the job"),
            "To choose workers, give the tasks a queue, and start workers with --queues.",
        );
    }
    Ok(())
}
