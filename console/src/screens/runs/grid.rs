//! Grid that compares the tasks of a run with earlier runs of the same jobs.

use std::collections::HashMap;

use deadpool_postgres::Transaction;
use queue::QueueError;
use queue::RunId;
use queue::insight::runs::{self, ComparedRun, GridCell};
use queue::run_queries::RunTask;

use crate::page::format;

/// Maximum number of runs.
const COLUMNS: i64 = 14;

/// Maximum number of tasks.
const ROWS: usize = 100;

/// Runs from left to right, newest last.
pub(crate) struct RunComparison {
    pub(crate) runs: Vec<ComparedRun>,
    pub(crate) rows: Vec<ComparisonRow>,
    /// Number of tasks without a row.
    pub(crate) left_out: usize,
}

/// The states of a task in each run.
pub(crate) struct ComparisonRow {
    pub(crate) name: String,
    /// One cell per run; `None` if the run does not have the task.
    pub(crate) cells: Vec<Option<GridCell>>,
}

/// Builds the grid; `None` if there is no other run to compare with.
pub(crate) async fn compare_runs(
    tx: &Transaction<'_>,
    run: RunId,
    tasks: &[RunTask],
) -> Result<Option<RunComparison>, QueueError> {
    let mut runs = runs::compared_runs(&**tx, run, COLUMNS).await?;
    if runs.len() < 2 {
        return Ok(None);
    }
    runs.reverse();
    let ids: Vec<i64> = runs.iter().map(|it| it.id.0).collect();
    let names: Vec<&str> = tasks.iter().take(ROWS).map(|task| task.name.as_str()).collect();
    let mut cells: HashMap<(String, i64), GridCell> = HashMap::new();
    for cell in runs::grid_cells(&**tx, &ids, &names).await? {
        cells.insert((cell.name.clone(), cell.run.0), cell);
    }
    let mut line = |name: &&str| ComparisonRow {
        name: (*name).to_owned(),
        cells: ids.iter().map(|id| cells.remove(&((*name).to_owned(), *id))).collect(),
    };
    let rows = names.iter().map(&mut line).collect();
    Ok(Some(RunComparison { runs, rows, left_out: tasks.len().saturating_sub(ROWS) }))
}

impl RunComparison {
    /// Returns the letter of a state; the cell title has the full name.
    pub(crate) fn letter(&self, state: impl AsRef<str>) -> &'static str {
        match state.as_ref() {
            "succeeded" => "s",
            "failed" => "F",
            "ignored" => "f",
            "cancelled" => "c",
            "upstream_failed" => "u",
            "skipped" => "-",
            "released" | "running" => "r",
            _ => "w",
        }
    }

    /// Returns the tooltip of a cell.
    pub(crate) fn cell_title(&self, name: &str, cell: &GridCell) -> String {
        let duration = cell.duration_seconds.map(|it| format!(", {}", format::span(it)));
        format!("{name} in run {}: {}{}", cell.run, cell.state, duration.unwrap_or_default())
    }
}
