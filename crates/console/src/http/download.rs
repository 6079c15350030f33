//! Downloads of lists as CSV or JSON, streamed page by page.
//!
//! Invariant: a download holds no database session between two pages, and has at most [`MAX_ROWS`]
//! rows.

use std::fmt::Write;
use std::future::Future;
use std::io;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Query;
use axum::http::header;
use axum::response::IntoResponse;
use futures_util::stream::try_unfold;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Transaction;

use super::request::RequestContext;
use crate::error::{HandlerResult, HttpError};

/// Maximum number of rows.
const MAX_ROWS: usize = 10_000;

/// Maximum duration of a download.
const MAX_DURATION: Duration = Duration::from_secs(60);

/// A list that can be downloaded. Its fields are the query parameters of the screen.
pub(crate) trait FileList: DeserializeOwned + Send + Sync + 'static {
    /// Name of the file, without its extension.
    const NAME: &'static str;
    /// Keys of the columns of a CSV file, separated by spaces.
    const COLUMNS: &'static str;

    /// Reads rows from a cursor on; from the beginning of the list if the cursor is empty.
    fn rows(
        &self,
        tx: &mut Transaction<'_>,
        after: &str,
    ) -> impl Future<Output = Result<FileRows, HttpError>> + Send;
}

/// Rows of a list, as JSON objects, and the cursor of the next ones.
pub(crate) struct FileRows {
    rows: Vec<Value>,
    next: Option<String>,
}

impl FileRows {
    pub(crate) fn new(rows: &[impl Serialize], next: Option<String>) -> Self {
        let rows = rows.iter().filter_map(|row| serde_json::to_value(row).ok()).collect();
        Self { rows, next }
    }
}

/// Query parameters of a download, in addition to those of the list.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct FileParams {
    /// `csv` (default) or `json`.
    format: String,
}

/// A download between two parts.
struct Download<L> {
    context: RequestContext,
    list: L,
    json: bool,
    /// Cursor of the next part; `None` at the end.
    next: Option<String>,
    first: bool,
    rows: usize,
    begun: Instant,
}

impl<L: FileList> Download<L> {
    /// Reads the next part of the file; `None` at its end.
    async fn part(&mut self) -> Result<Option<String>, HttpError> {
        let Some(after) = self.next.take() else { return Ok(None) };
        let mut session = self.context.session().await?;
        let mut tx = session.begin_read().await?;
        let FileRows { mut rows, next } = self.list.rows(&mut tx, &after).await?;
        rows.truncate(MAX_ROWS - self.rows);
        let mut text = match self.json {
            true => json_part(&rows, self.rows == 0, self.first),
            false => csv(&rows, L::COLUMNS, self.first),
        };
        (self.first, self.rows) = (false, self.rows + rows.len());
        self.next = next.filter(|_| self.rows < MAX_ROWS && self.begun.elapsed() < MAX_DURATION);
        if self.json && self.next.is_none() {
            text.push_str("\n]\n");
        }
        Ok(Some(text))
    }
}

/// Streams a list. An error ends the transfer before its end, so that the browser reports a failed
/// download.
pub(crate) async fn download<L: FileList>(
    context: RequestContext,
    Query(list): Query<L>,
    Query(FileParams { format }): Query<FileParams>,
) -> HandlerResult {
    let (json, kind) = match format.as_str() {
        "" | "csv" => (false, "text/csv; charset=utf-8"),
        "json" => (true, "application/json"),
        other => {
            let message = format!("unknown format \"{other}\"");
            return Err(HttpError::bad_request(message).hint("csv or json"));
        }
    };
    let (next, begun) = (Some(String::new()), Instant::now());
    let mut file = Download { context, list, json, next, first: true, rows: 0, begun };
    // Errors such as a wrong filter are returned as a response before the stream starts.
    let first = file.part().await?;
    let parts = try_unfold((file, first), |(mut file, first)| async move {
        let part = match first {
            Some(first) => Some(first),
            None => file.part().await.map_err(|error| {
                tracing::warn!("download stopped: {}", error.message);
                io::Error::other(error.message)
            })?,
        };
        Ok::<_, io::Error>(part.map(|part| (part, (file, None))))
    });
    let extension = if json { "json" } else { "csv" };
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{}.{extension}\"", L::NAME)),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}

fn json_part(rows: &[Value], none_before: bool, first: bool) -> String {
    let mut text = String::from(if first { "[" } else { "" });
    for (place, row) in rows.iter().enumerate() {
        let _ = write!(text, "{}\n{row}", if none_before && place == 0 { "" } else { "," });
    }
    text
}

fn csv(rows: &[Value], columns: &str, first: bool) -> String {
    let mut text = String::new();
    if first {
        let _ = write!(text, "{}\r\n", columns.replace(' ', ","));
    }
    for row in rows {
        let cells: Vec<String> = columns.split(' ').map(|column| csv_cell(&row[column])).collect();
        let _ = write!(text, "{}\r\n", cells.join(","));
    }
    text
}

/// Formats a value as a CSV cell. A text that a spreadsheet would evaluate as a formula gets a
/// leading apostrophe.
fn csv_cell(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
        }
        Value::Bool(_) | Value::Number(_) => return value.to_string(),
        value => value.to_string(),
    };
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let text = if formula { format!("'{text}") } else { text };
    if text.contains([',', '"', '\n', '\r', ';']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_cell_is_a_formula() {
        for text in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"] {
            let cell = csv_cell(&json!(text));
            assert!(cell.trim_start_matches('"').starts_with('\''), "{cell:?}");
        }
        assert_eq!(csv_cell(&json!(-1.5)), "-1.5");
        assert_eq!(csv_cell(&json!(["a", "b"])), "a b");
        assert_eq!(csv_cell(&json!("a \"b\", c")), "\"a \"\"b\"\", c\"");
    }

    #[test]
    fn pages_make_one_document() {
        let rows = [json!({"id": 1}), json!({"id": 2})];
        let text = [json_part(&rows, true, true), json_part(&rows[..1], false, false)].concat();
        let parsed: Value = serde_json::from_str(&(text + "]")).unwrap();
        assert_eq!(parsed, json!([{"id": 1}, {"id": 2}, {"id": 1}]));
        let text = [json_part(&[], true, true), json_part(&rows, true, false)].concat();
        assert!(serde_json::from_str::<Value>(&(text + "]")).is_ok());
        assert_eq!(csv(&rows, "id name", true), "id,name\r\n1,\r\n2,\r\n");
    }
}
