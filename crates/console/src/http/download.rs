//! Downloads of lists as CSV or JSON, streamed page by page.
//!
//! Invariant: a download holds no database session between two pages, and has at most [`MAX_ROWS`]
//! rows.

use std::fmt::Write;
use std::future::Future;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::try_unfold;
use serde::Serialize;
use serde_json::Value;

use super::error::HttpError;

/// Maximum number of rows.
pub(crate) const MAX_ROWS: usize = 10_000;

/// Maximum duration of a download.
const MAX_DURATION: Duration = Duration::from_secs(60);

/// The format of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DownloadFormat {
    Csv,
    Json,
}

/// A page of a list, as JSON objects, and the cursor of the next page.
pub(crate) struct DownloadPage {
    pub(crate) rows: Vec<Value>,
    pub(crate) next: Option<String>,
}

impl DownloadFormat {
    /// Parses the parameter `format`; CSV is the default.
    pub(crate) fn parse(text: &str) -> Result<Self, HttpError> {
        match text {
            "" | "csv" => Ok(Self::Csv),
            "json" => Ok(Self::Json),
            other => {
                Err(HttpError::bad_request(format!("unknown format \"{other}\""))
                    .hint("csv or json"))
            }
        }
    }
}

/// Converts rows to JSON objects.
pub(crate) fn json_rows(rows: &[impl Serialize]) -> Vec<Value> {
    rows.iter().filter_map(|row| serde_json::to_value(row).ok()).collect()
}

/// The state of a download between two pages.
struct Progress<F> {
    read: F,
    next: Option<String>,
    first: bool,
    rows: usize,
    begun: Instant,
    over: bool,
}

/// Streams a list. `read` returns the page at a cursor; the first cursor is empty. An error ends the
/// transfer before its end, so that the browser reports a failed download. `columns` are the keys of
/// the CSV columns.
pub(crate) async fn download<F, Pages>(
    (name, format): (&str, DownloadFormat),
    columns: &'static [&'static str],
    read: F,
) -> Result<Response, HttpError>
where
    F: Fn(String) -> Pages + Send + 'static,
    Pages: Future<Output = Result<DownloadPage, HttpError>> + Send,
{
    // Errors such as a wrong filter are returned as a response before the stream starts.
    let first = read(String::new()).await?;
    let begun = Instant::now();
    let state = Progress { read, next: None, first: true, rows: 0, begun, over: false };
    let stream = try_unfold((state, Some(first)), move |(mut state, page)| async move {
        if state.over {
            return Ok(None);
        }
        let page = match page {
            Some(page) => page,
            None => (state.read)(state.next.take().unwrap_or_default()).await.map_err(|error| {
                tracing::warn!("download stopped: {}", error.message);
                std::io::Error::other(error.message)
            })?,
        };
        let left = MAX_ROWS - state.rows;
        let rows = &page.rows[..page.rows.len().min(left)];
        let mut text = match format {
            DownloadFormat::Csv => csv(rows, columns, state.first),
            DownloadFormat::Json => json_part(rows, state.rows == 0, state.first),
        };
        (state.first, state.rows) = (false, state.rows + rows.len());
        state.over =
            page.next.is_none() || state.rows >= MAX_ROWS || state.begun.elapsed() >= MAX_DURATION;
        state.next = page.next;
        if state.over && format == DownloadFormat::Json {
            text.push_str("\n]\n");
        }
        Ok::<_, std::io::Error>(Some((text, (state, None))))
    });
    let (kind, extension) = match format {
        DownloadFormat::Csv => ("text/csv; charset=utf-8", "csv"),
        DownloadFormat::Json => ("application/json", "json"),
    };
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.{extension}\"")),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

fn json_part(rows: &[Value], none_before: bool, first: bool) -> String {
    let mut text = String::from(if first { "[" } else { "" });
    for (place, row) in rows.iter().enumerate() {
        let _ = write!(text, "{}\n{row}", if none_before && place == 0 { "" } else { "," });
    }
    text
}

fn csv(rows: &[Value], columns: &[&str], first: bool) -> String {
    let mut text = String::new();
    if first {
        let _ = write!(text, "{}\r\n", columns.join(","));
    }
    for row in rows {
        let cells: Vec<String> = columns.iter().map(|column| csv_cell(&row[*column])).collect();
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
        assert_eq!(csv(&rows, &["id", "name"], true), "id,name\r\n1,\r\n2,\r\n");
    }
}
