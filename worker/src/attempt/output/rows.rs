//! Collects the rows that a statement returns: counts all rows and keeps the first ones.

use serde_json::{Value, json};
use tokio_postgres::{Row, SimpleQueryRow};

use crate::attempt::output::decode::decode;
use crate::attempt::output::notices::truncate;

/// Maximum number of rows in the history of an attempt.
const MAX_ROWS: usize = 100;
/// Maximum size in bytes of the values of these rows together.
const MAX_BYTES: usize = 32 * 1024;
/// Maximum size in bytes of a single value.
const MAX_BYTES_EACH: usize = 4 * 1024;

/// Stands for a value that the client cannot decode.
const NOT_UTF8: &str = "(not valid UTF-8)";

/// Size in bytes that each value takes in addition to its text: quotes and a comma, or null and a
/// comma.
const VALUE_BYTES: usize = 5;

/// The first rows of the last result set, and the total row count of all statements.
#[derive(Default)]
pub(crate) struct Rows {
    count: u64,
    /// Number of rows of the statement that is running.
    received: u64,
    columns: Vec<String>,
    kept: Vec<Value>,
    bytes: usize,
    truncated: bool,
    plan: Option<Value>,
}

impl Rows {
    /// Begins a new result set, which replaces the previous one.
    pub(crate) fn begin<'a>(&mut self, columns: impl Iterator<Item = &'a str>) {
        self.columns = columns.map(|name| truncate(name, MAX_BYTES_EACH)).collect();
        self.kept.clear();
        self.bytes = 0;
        self.truncated = false;
    }

    /// Ends a statement that returned or affected `count` rows according to its command tag. The tag
    /// of SHOW and EXPLAIN has no count.
    pub(crate) fn end(&mut self, count: u64) {
        self.count += count.max(self.received);
        self.received = 0;
    }

    /// Records the plan and the row count of an explained statement.
    pub(crate) fn explained(&mut self, plan: Value, count: u64) {
        self.plan = Some(plan);
        self.count += count;
    }

    /// Returns the plan, if the statement was explained.
    pub(crate) fn take_plan(&mut self) -> Option<Value> {
        self.plan.take()
    }

    /// Adds a row in text format.
    pub(crate) fn push_text(&mut self, row: &SimpleQueryRow) {
        self.keep((0..row.len()).map(|i| match row.try_get(i) {
            Ok(value) => value.map(str::to_owned),
            // The task has set another client_encoding, or the database has no encoding.
            Err(_) => Some(NOT_UTF8.to_owned()),
        }));
    }

    /// Adds a row in binary format.
    pub(crate) fn push_binary(&mut self, row: &Row) {
        self.keep((0..row.len()).map(|i| decode(row, i)));
    }

    /// Adds the result of a handler as one row with one column. Null is no result.
    pub(crate) fn push_json(&mut self, column: &str, value: &Value) {
        if !value.is_null() {
            self.begin([column].into_iter());
            self.keep([Some(value.to_string())].into_iter());
            self.end(1);
        }
    }

    fn keep(&mut self, values: impl Iterator<Item = Option<String>>) {
        self.received += 1;
        if self.kept.len() >= MAX_ROWS || self.bytes >= MAX_BYTES {
            self.truncated = true;
            return;
        }
        let mut kept = Vec::new();
        for value in values {
            // A row may have 1,664 columns, so the limit applies to each value instead of each row.
            let room = MAX_BYTES_EACH.min(MAX_BYTES.saturating_sub(self.bytes));
            let value = value.map(|text| {
                self.truncated |= text.len() > room && room < MAX_BYTES_EACH;
                truncate(&text, room)
            });
            self.bytes += value.as_ref().map_or(0, String::len) + VALUE_BYTES;
            kept.push(value);
        }
        self.kept.push(Value::from(kept));
    }

    /// Returns the number of rows returned or affected.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the kept rows as JSON for the history; `None` if no statement returned rows.
    pub(crate) fn into_result(self) -> Option<Value> {
        (!self.columns.is_empty()).then(
            || json!({ "columns": self.columns, "rows": self.kept, "truncated": self.truncated }),
        )
    }
}
