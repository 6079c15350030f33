//! Collects the rows that a statement returns: counts all rows and keeps the first ones.

use serde_json::{Map, Value, json};
use tokio_postgres::{Row, SimpleQueryRow};

use crate::attempt::output::decode::{Decoded, decode};
use crate::attempt::output::notices::truncate;

/// Maximum number of rows in the history of an attempt.
const MAX_ROWS: usize = 100;
/// Maximum size in bytes of the values of these rows together.
const MAX_BYTES: usize = 32 * 1024;
/// Maximum size in bytes of a single value.
const MAX_BYTES_EACH: usize = 4 * 1024;

/// Why a value cannot be a parameter of a later task.
const TOO_LONG: &str = "the value is longer than 4 KiB";
/// As [`TOO_LONG`], for a value for which the values before it leave no room.
const ROW_TOO_LONG: &str = "the row is longer than 32 KiB";

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
    /// Columns whose value in the first row is not kept as it is, each with the reason. A later
    /// task of the run must not get the text that stands for such a value as a parameter.
    unusable: Map<String, Value>,
    plan: Option<Value>,
}

impl Rows {
    /// Begins a new result set, which replaces the previous one.
    pub(crate) fn begin<'a>(&mut self, columns: impl Iterator<Item = &'a str>) {
        self.columns = columns.map(|name| truncate(name, MAX_BYTES_EACH)).collect();
        self.kept.clear();
        self.bytes = 0;
        self.truncated = false;
        self.unusable.clear();
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
            Ok(value) => value.map(|text| Decoded::Text(text.to_owned())),
            // The task has set another client_encoding, or the database has no encoding.
            Err(_) => Some(Decoded::not_utf8()),
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
            self.keep([Some(Decoded::Text(value.to_string()))].into_iter());
            self.end(1);
        }
    }

    fn keep(&mut self, values: impl Iterator<Item = Option<Decoded>>) {
        self.received += 1;
        if self.kept.len() >= MAX_ROWS || self.bytes >= MAX_BYTES {
            self.truncated = true;
            return;
        }
        let mut kept = Vec::new();
        for (column, value) in values.enumerate() {
            let value = value.map(|value| self.keep_value(column, value));
            self.bytes += value.as_ref().map_or(0, String::len) + VALUE_BYTES;
            kept.push(value);
        }
        self.kept.push(Value::from(kept));
    }

    /// Returns the text of a value as the history keeps it.
    fn keep_value(&mut self, column: usize, value: Decoded) -> String {
        // A row may have 1,664 columns, so the limit applies to each value instead of each row.
        let room = MAX_BYTES_EACH.min(MAX_BYTES.saturating_sub(self.bytes));
        let (text, reason) = match value {
            Decoded::Text(text) if text.len() > MAX_BYTES_EACH => (text, Some(TOO_LONG.to_owned())),
            Decoded::Text(text) if text.len() > room => (text, Some(ROW_TOO_LONG.to_owned())),
            Decoded::Text(text) => (text, None),
            Decoded::Placeholder { shown, reason } => (shown, Some(reason)),
        };
        self.truncated |= text.len() > room;
        if let (true, Some(reason)) = (self.kept.is_empty(), reason) {
            let name = self.columns.get(column).cloned().unwrap_or_default();
            self.unusable.insert(name, Value::from(reason));
        }
        truncate(&text, room)
    }

    /// Returns the number of rows returned or affected.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the kept rows as JSON for the history; `None` if no statement returned rows.
    pub(crate) fn into_result(self) -> Option<Value> {
        if self.columns.is_empty() {
            return None;
        }
        let mut result =
            json!({ "columns": self.columns, "rows": self.kept, "truncated": self.truncated });
        if !self.unusable.is_empty() {
            result["unusable"] = Value::Object(self.unusable);
        }
        Some(result)
    }
}
