//! The tasks of a run beside what they were in earlier runs of the same jobs.

use std::collections::HashMap;

use deadpool_postgres::Transaction;
use queue::QueueError;
use queue::graph::RunTask;
use queue::insight::runs::{self, Cell, Sibling};
use queue::run::RunId;

use crate::words;

/// Runs beside each other.
const COLUMNS: i64 = 14;

/// Tasks below each other.
const ROWS: usize = 100;

/// Runs from left to right, the newest last.
pub(crate) struct Grid {
    pub(crate) runs: Vec<Sibling>,
    pub(crate) rows: Vec<Line>,
    /// Tasks that have no line.
    pub(crate) left_out: usize,
}

/// A task.
pub(crate) struct Line {
    pub(crate) name: String,
    /// One for each run; `None`: that run did not have it.
    pub(crate) cells: Vec<Option<Cell>>,
}

/// Nothing to compare with: no grid.
pub(crate) async fn grid(
    look: &Transaction<'_>,
    run: RunId,
    tasks: &[RunTask],
) -> Result<Option<Grid>, QueueError> {
    let mut runs = runs::siblings(&**look, run, COLUMNS).await?;
    if runs.len() < 2 {
        return Ok(None);
    }
    runs.reverse();
    let ids: Vec<i64> = runs.iter().map(|it| it.id.0).collect();
    let names: Vec<&str> = tasks.iter().take(ROWS).map(|task| task.name.as_str()).collect();
    let mut cells: HashMap<(String, i64), Cell> = HashMap::new();
    for cell in runs::cells(&**look, &ids, &names).await? {
        cells.insert((cell.name.clone(), cell.run.0), cell);
    }
    let mut line = |name: &&str| Line {
        name: (*name).to_owned(),
        cells: ids.iter().map(|id| cells.remove(&((*name).to_owned(), *id))).collect(),
    };
    let rows = names.iter().map(&mut line).collect();
    Ok(Some(Grid { runs, rows, left_out: tasks.len().saturating_sub(ROWS) }))
}

impl Grid {
    /// A letter for a state: the word is its title.
    pub(crate) fn letter(&self, state: impl AsRef<str>) -> &'static str {
        match state.as_ref() {
            "succeeded" => "s",
            "failed" => "F",
            "ignored" => "f",
            "cancelled" => "c",
            "impossible" => "i",
            "released" | "running" => "r",
            _ => "w",
        }
    }

    /// What a cell says when somebody asks.
    pub(crate) fn told(&self, name: &str, cell: &Cell) -> String {
        let took = cell.duration_seconds.map(|it| format!(", {}", words::span(it)));
        format!("{name} in run {}: {}{}", cell.run, cell.state, took.unwrap_or_default())
    }
}
