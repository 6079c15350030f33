//! Text output: progress, outcome, error with its position, notices and first rows.

use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use queue::attempt::Attempt;
use queue::{Outcome, TaskId};
use serde_json::Value;
use terminal::{exact_span, format_error, value, visible, wrap_table};

/// Returns a spinner on standard error. It is hidden if standard error is not a terminal.
pub(crate) fn spinner(id: TaskId) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_prefix(format!("task {id}"));
    spinner.set_style(style("{spinner} {prefix}: {wide_msg} {elapsed}"));
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

/// Returns a progress bar that counts bytes, or a spinner if `total` is unknown. It is on standard
/// error, and hidden if that is not a terminal.
pub(crate) fn bar(total: Option<u64>) -> ProgressBar {
    match total {
        Some(total) => ProgressBar::new(total)
            .with_style(style("{bar:30} {bytes}/{total_bytes}  {msg}  {elapsed}, {eta} left")),
        None => ProgressBar::new_spinner().with_style(style("{spinner} {bytes}  {msg}  {elapsed}")),
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// Formats the outcome of a task: one line of facts, then the error in the style of psql.
pub(crate) fn outcome(attempt: &Attempt) -> String {
    let mut text = format!("task {} {}", attempt.task_id, outcome_text(attempt.outcome));
    if attempt.attempt > 1 {
        let _ = write!(text, " on attempt {}", attempt.attempt);
    }
    if let Some(rows) = attempt.rows.filter(|_| attempt.outcome == Outcome::Succeeded) {
        let _ = write!(text, ", {rows} row{}", if rows == 1 { "" } else { "s" });
    }
    let _ = write!(text, "; it waited {}", exact_span(attempt.wait_seconds));
    if let Some(seconds) = attempt.duration_seconds {
        let _ = write!(text, " and ran {}", exact_span(seconds));
    }
    if let Some(host) = &attempt.worker_host {
        let _ = write!(text, " on {}", visible(host));
    }
    if let Some(error) = format_error(attempt) {
        let _ = write!(text, "\nerror: {error}");
    }
    text
}

fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "succeeded",
        Outcome::Failed => "failed",
        Outcome::Cancelled => "was cancelled",
        Outcome::TimedOut => "timed out",
        Outcome::Lost => "was lost: its worker died",
        Outcome::Unknown => "ended with an unknown outcome",
        Outcome::Interrupted => "was interrupted by the server",
    }
}

/// Formats the first rows and their count; `None` if the result has no columns.
pub(crate) fn rows(result: &Value) -> Option<String> {
    let columns = result.get("columns")?.as_array().filter(|columns| !columns.is_empty())?;
    let rows = result.get("rows")?.as_array()?;
    let mut headings: Vec<String> = columns.iter().map(value).collect();
    let cells = rows.iter().filter_map(Value::as_array);
    let mut cells: Vec<Vec<String>> = cells.map(|row| row.iter().map(value).collect()).collect();
    let mut table = Table::new();
    wrap_table(table.width(), 3, &mut headings, &mut cells);
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings);
    table.add_rows(cells);
    let s = if rows.len() == 1 { "" } else { "s" };
    let end = if result.get("truncated") == Some(&Value::Bool(true)) {
        format!("(the first {} row{s})", rows.len())
    } else {
        format!("({} row{s})", rows.len())
    };
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    Some(lines.chain([end]).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests;
