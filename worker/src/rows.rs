//! What a statement returns: all rows counted, the first ones kept, the rest let go.

use serde_json::{Value, json};
use tokio_postgres::{Row, SimpleQueryRow};

use crate::decode::decode;
use crate::notices::truncate;

/// Rows that history keeps per attempt.
const MAX_ROWS: usize = 100;
/// Their values in all, in bytes.
const MAX_BYTES: usize = 32 * 1024;
/// One value, in bytes.
const MAX_BYTES_EACH: usize = 4 * 1024;

/// What a value takes besides its text, in bytes: quotes and a comma, or null and a comma.
const VALUE_BYTES: usize = 5;

/// The first rows of the last result set, and the count over all statements.
#[derive(Default)]
pub(crate) struct Rows {
    count: u64,
    columns: Vec<String>,
    kept: Vec<Value>,
    bytes: usize,
    truncated: bool,
    plan: Option<Value>,
}

impl Rows {
    /// A new result set begins: it takes the place of the one before.
    pub(crate) fn begin<'a>(&mut self, columns: impl Iterator<Item = &'a str>) {
        self.columns = columns.map(|name| truncate(name, MAX_BYTES_EACH)).collect();
        self.kept.clear();
        self.bytes = 0;
        self.truncated = false;
    }

    /// A statement is through, with this many rows returned or affected.
    pub(crate) fn end(&mut self, count: u64) {
        self.count += count;
    }

    /// The statement was explained: this is its plan, and these are its rows.
    pub(crate) fn explained(&mut self, plan: Value, count: u64) {
        self.plan = Some(plan);
        self.count += count;
    }

    /// The plan, if the statement was explained.
    pub(crate) fn take_plan(&mut self) -> Option<Value> {
        self.plan.take()
    }

    /// A row in text format.
    pub(crate) fn push_text(&mut self, row: &SimpleQueryRow) {
        self.keep((0..row.len()).map(|i| row.try_get(i).ok().flatten().map(str::to_owned)));
    }

    /// A row in binary format.
    pub(crate) fn push_binary(&mut self, row: &Row) {
        self.keep((0..row.len()).map(|i| decode(row, i)));
    }

    fn keep(&mut self, values: impl Iterator<Item = Option<String>>) {
        if self.kept.len() >= MAX_ROWS || self.bytes >= MAX_BYTES {
            self.truncated = true;
            return;
        }
        let mut kept = Vec::new();
        for value in values {
            // A row may have 1,664 columns: the room is counted out by the value.
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

    /// How many rows there were.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// What history keeps; `None` if no statement returned rows.
    pub(crate) fn into_result(self) -> Option<Value> {
        (!self.columns.is_empty()).then(
            || json!({ "columns": self.columns, "rows": self.kept, "truncated": self.truncated }),
        )
    }
}
