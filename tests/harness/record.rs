//! Reads a task's history.

use serde_json::Value;
use tokio_postgres::Row;

use super::Database;

/// The last attempt of an ended task.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) outcome: String,
    pub(crate) attempts: i64,
    pub(crate) sqlstate: String,
    pub(crate) message: String,
    pub(crate) detail: String,
    pub(crate) hint: String,
    pub(crate) context: String,
    pub(crate) position: Option<i32>,
    pub(crate) rows: Option<i64>,
    pub(crate) notices: Value,
    /// `{"columns", "rows", "truncated"}`.
    pub(crate) result: Value,
}

impl Record {
    /// Returns the values of one row of the result; empty where the value is null.
    pub(crate) fn row(&self, n: usize) -> Vec<&str> {
        let values = self.result["rows"][n].as_array().unwrap();
        values.iter().map(|value| value.as_str().unwrap_or_default()).collect()
    }

    /// Asserts that the attempt failed with this code, and that its message or hint contains this
    /// text.
    pub(crate) fn assert_failed(&self, sqlstate: &str, fragment: &str) {
        assert_eq!(
            (self.outcome.as_str(), self.sqlstate.as_str()),
            ("failed", sqlstate),
            "{self:?}"
        );
        assert!(format!("{} {}", self.message, self.hint).contains(fragment), "{self:?}");
    }
}

impl Database {
    /// Waits until the task has ended and returns its last attempt.
    pub(crate) async fn record(&self, id: i64) -> Record {
        self.outcome(id).await;
        let sql = "SELECT a.*, outcome::text AS word, count(*) OVER () AS attempts
                   FROM mill.attempts a WHERE task_id = $1 ORDER BY finished_at DESC LIMIT 1";
        let row = &self.rows(sql, &[&id]).await[0];
        Record {
            outcome: text(row, "word"),
            attempts: row.get("attempts"),
            sqlstate: text(row, "sqlstate"),
            message: text(row, "message"),
            detail: text(row, "detail"),
            hint: text(row, "hint"),
            context: text(row, "context"),
            position: row.get("position"),
            rows: row.get("rows"),
            notices: row.get::<_, Option<Value>>("notices").unwrap_or_default(),
            result: row.get::<_, Option<Value>>("result").unwrap_or_default(),
        }
    }

    /// Enqueues a task, waits until it has ended, and returns its last attempt. See
    /// [`Database::enqueue`].
    pub(crate) async fn run(&self, statement: &str, options: &str) -> Record {
        let id = self.enqueue(statement, options).await;
        self.record(id).await
    }
}

fn text(row: &Row, column: &str) -> String {
    row.get::<_, Option<String>>(column).unwrap_or_default()
}
