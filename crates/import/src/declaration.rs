//! Tables of a job file: schedules, jobs and their tasks.

use queue::scan::{self, PieceKind};
use serde_json::Value as Json;
use toml::{Table, Value};

use super::conversion::{LeftOut, runnable};

/// How late a fire may start, as a duration in a job file. cron, `pg_cron` and `pg_timetable` start
/// no fire that they missed while they were down, but pg_cron and cron make up for a few minutes.
const MAX_LATENESS: &str = "5 min";

/// Adds a value.
pub(crate) fn put(table: &mut Table, key: &str, value: impl Into<Value>) {
    table.insert(key.to_owned(), value.into());
}

/// Returns the options of a statement: it is attempted once, as in systems without retries.
///
/// # Errors
/// Returns why no worker would run the statement.
pub(crate) fn statement(sql: &str, profile: Option<&str>) -> Result<Table, LeftOut> {
    let mut table = Table::new();
    put(&mut table, "statement", runnable(sql)?);
    put(&mut table, "max_attempts", 1);
    if needs_autocommit(sql) {
        put(&mut table, "mode", "autocommit");
    }
    if let Some(profile) = profile {
        put(&mut table, "run_as", profile);
    }
    Ok(table)
}

/// Adds the settings of a schedule that fires by a clock.
pub(crate) fn schedule(table: &mut Table, timing: &str, overlap: &str, enabled: bool) {
    put(table, "timing", timing);
    put(table, "overlap", overlap);
    put(table, "max_lateness", MAX_LATENESS);
    // Without the key, a schedule that an operator has disabled stays so.
    if !enabled {
        put(table, "enabled", false);
    }
}

/// Returns an edge from a parent.
pub(crate) fn edge(parent: &str, expected: &str) -> Value {
    if expected == "succeeded" {
        return parent.into();
    }
    let mut edge = Table::new();
    put(&mut edge, "task", parent);
    put(&mut edge, "expected", expected);
    Value::Table(edge)
}

/// Converts a parameter to a value of a job file.
///
/// # Errors
/// Returns why a job file cannot contain the value.
pub(crate) fn param(value: &Json) -> Result<Value, LeftOut> {
    let hint = "Write the value into the statement.";
    match value {
        Json::Null => Err(LeftOut::new("a job file has no null as a parameter", hint)),
        Json::Bool(truth) => Ok(Value::Boolean(*truth)),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Ok(Value::Integer(whole)),
            (None, Some(float)) => Ok(Value::Float(float)),
            (None, None) => Err(LeftOut::new("a parameter is not a number", hint)),
        },
        Json::String(text) => Ok(Value::String(text.clone())),
        Json::Array(values) => values.iter().map(param).collect::<Result<_, _>>().map(Value::Array),
        Json::Object(object) if object.contains_key("param") || object.contains_key("result") => {
            Err(LeftOut::new(
                "a parameter has a key that refers to other tasks in a job file",
                hint,
            ))
        }
        Json::Object(object) => {
            let entries = object.iter().map(|(key, value)| Ok((key.clone(), param(value)?)));
            entries.collect::<Result<Table, LeftOut>>().map(Value::Table)
        }
    }
}

/// Returns whether a single statement cannot run in a transaction.
fn needs_autocommit(sql: &str) -> bool {
    let [statement] = scan::statements(sql)[..] else { return false };
    let words: Vec<String> = scan::pieces(statement.text())
        .iter()
        .filter(|piece| piece.kind == PieceKind::Word)
        .map(|piece| piece.text.to_uppercase())
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["VACUUM", ..]
        | ["CLUSTER"]
        | ["ALTER", "SYSTEM", ..]
        | ["CREATE" | "DROP", "DATABASE" | "TABLESPACE", ..]
        | ["REINDEX", "DATABASE" | "SYSTEM" | "SCHEMA", ..]
        | ["CREATE", "INDEX", "CONCURRENTLY", ..]
        | ["CREATE", "UNIQUE", "INDEX", "CONCURRENTLY", ..]
        | ["DROP", "INDEX", "CONCURRENTLY", ..] => true,
        ["REINDEX", ..] => words.contains(&"CONCURRENTLY"),
        ["ALTER", "TABLE", ..] => words.contains(&"DETACH") && words.contains(&"CONCURRENTLY"),
        _ => false,
    }
}

/// Returns whether a statement calls a procedure, which could commit.
pub(crate) fn calls_procedure(sql: &str) -> bool {
    scan::statements(sql).iter().any(|statement| {
        statement.leading_words().next().is_some_and(|word| word.eq_ignore_ascii_case("call"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_cannot_run_in_a_transaction_are_found() {
        for sql in [
            "VACUUM",
            "/* nightly */ vacuum (analyze) t;",
            "create unique index concurrently on t (a)",
            "REINDEX (CONCURRENTLY) TABLE t",
            "REINDEX TABLE CONCURRENTLY t",
            "ALTER TABLE s.t DETACH PARTITION p CONCURRENTLY",
        ] {
            assert!(needs_autocommit(sql), "{sql}");
        }
        for sql in [
            "SELECT 'VACUUM'",
            "VACUUM; VACUUM",
            "REFRESH MATERIALIZED VIEW CONCURRENTLY v",
            "CREATE INDEX ON t (concurrently)",
            "REINDEX TABLE t",
            "CLUSTER t",
        ] {
            assert!(!needs_autocommit(sql), "{sql}");
        }
    }
}
