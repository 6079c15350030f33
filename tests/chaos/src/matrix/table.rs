//! Formats the results of the cells: as a table, as JSON, as a section of a page.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::cell::Cell;

/// Markers around the table in a page.
const BEGIN: &str = "<!-- the matrix -->";
const END: &str = "<!-- the end of the matrix -->";

/// Result of one cell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CellResult {
    pub(crate) fault: String,
    pub(crate) moment: String,
    pub(crate) mode: String,
    pub(crate) tries: u32,
    pub(crate) lost: u32,
    pub(crate) duplicates: u32,
    pub(crate) stuck: u32,
    pub(crate) unknown: u32,
    /// Maximum over all tries, in seconds.
    pub(crate) recovery_seconds: Option<f64>,
    pub(crate) promised: String,
    /// Reason why the cell was skipped.
    pub(crate) skipped: Option<String>,
    /// Error that ended the cell early.
    pub(crate) error: Option<String>,
    #[serde(skip)]
    cell: Cell,
}

impl CellResult {
    /// Returns an empty result.
    pub(crate) fn new(cell: Cell) -> Self {
        Self {
            fault: cell.fault.to_string(),
            moment: cell.moment.to_string(),
            mode: cell.mode.to_string(),
            tries: 0,
            lost: 0,
            duplicates: 0,
            stuck: 0,
            unknown: 0,
            recovery_seconds: None,
            promised: cell.promise().to_owned(),
            skipped: None,
            error: None,
            cell,
        }
    }

    /// Marks the cell as skipped.
    pub(crate) fn skipped(self, why: String) -> Self {
        Self { skipped: Some(why), ..self }
    }

    pub(crate) fn cell(&self) -> Cell {
        self.cell
    }

    /// Adds one try. `recovery` is its recovery time; `None` if the task was stuck.
    pub(crate) fn record_try(&mut self, recovery: Option<Duration>) {
        self.tries += 1;
        match recovery {
            Some(took) => {
                let longest = self.recovery_seconds.unwrap_or(0.0).max(took.as_secs_f64());
                self.recovery_seconds = Some((longest * 100.0).round() / 100.0);
            }
            None => self.stuck += 1,
        }
    }

    /// Returns whether the promise held.
    pub(crate) fn passed(&self) -> bool {
        self.error.is_none()
            && self.lost == 0
            && self.stuck == 0
            && (self.duplicates == 0 || self.cell.may_duplicate())
            && (self.unknown == 0 || self.cell.may_be_unknown())
    }

    fn row(&self) -> [String; 9] {
        let Self { fault, moment, mode, tries, lost, duplicates, stuck, .. } = self;
        let head = [fault.clone(), moment.clone(), mode.clone()];
        let counts = match &self.skipped {
            Some(_) => ["0", "", "", "", ""].map(str::to_owned),
            None => [
                tries.to_string(),
                lost.to_string(),
                duplicates.to_string(),
                stuck.to_string(),
                self.recovery_seconds.map_or(String::new(), |seconds| format!("{seconds:.1}")),
            ],
        };
        let mut output = self.promised.clone();
        if let Some(why) = &self.skipped {
            output = format!("skipped: {why}");
        } else if self.error.is_some() {
            output = "ERROR".to_owned();
        } else if !self.passed() {
            output = format!("{output}: BROKEN");
        } else if self.unknown > 0 {
            let _ = write!(output, ": {} unknown", self.unknown);
        }
        let [fault, moment, mode] = head;
        let [tries, lost, duplicates, stuck, recovery] = counts;
        [fault, moment, mode, tries, lost, duplicates, stuck, recovery, output]
    }
}

const HEAD: [&str; 9] =
    ["fault", "moment", "mode", "trials", "lost", "duplicates", "stuck", "recovery, s", "promised"];

/// Formats a Markdown table, padded to be readable as plain text.
pub(crate) fn table(shown: &[CellResult]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(shown.iter().map(CellResult::row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (n, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Numbers are right-aligned.
            let padded = if (3..8).contains(&column) {
                format!("| {cell:>width$} ")
            } else {
                format!("| {cell:<width$} ")
            };
            text.push_str(&padded);
        }
        text.push_str("|\n");
        if n == 0 {
            for (column, width) in widths.iter().enumerate() {
                let end = if (3..8).contains(&column) { ":" } else { "-" };
                let _ = write!(text, "|{}{end}", "-".repeat(width + 1));
            }
            text.push_str("|\n");
        }
    }
    text
}

/// Summarizes all cells in one line.
pub(crate) fn sum(shown: &[CellResult]) -> String {
    let tried: Vec<&CellResult> = shown.iter().filter(|shown| shown.skipped.is_none()).collect();
    let total = |count: fn(&CellResult) -> u32| tried.iter().map(|shown| count(shown)).sum::<u32>();
    let broken = tried.iter().filter(|shown| !shown.passed()).count();
    let promised_once = |shown: &&&CellResult| !shown.cell.may_duplicate();
    let duplicates: u32 = tried.iter().filter(promised_once).map(|shown| shown.duplicates).sum();
    format!(
        "{} rows, {} trials: {} lost, {duplicates} duplicates despite an exactly-once promise, {} \
         stuck. Rows whose promise was broken: {broken}; rows skipped: {}",
        tried.len(),
        total(|shown| shown.tries),
        total(|shown| shown.lost),
        total(|shown| shown.stuck),
        shown.len() - tried.len(),
    )
}

/// Replaces the table in a page.
pub(crate) fn write(page: &Path, shown: &[CellResult]) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let replaced = replace(&text, &format!("{}\n{}", table(shown), sum(shown)))
        .with_context(|| format!("{} has no lines {BEGIN} and {END}", page.display()))?;
    fs::write(page, replaced).with_context(|| page.display().to_string())
}

fn replace(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{table}\n\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::super::cell::{Fault, Mode, Moment};
    use super::*;

    fn shown(mode: Mode) -> CellResult {
        CellResult::new(Cell { fault: Fault::WorkerKilled, moment: Moment::Executing, mode })
    }

    #[test]
    fn a_duplicate_breaks_only_an_exactly_once_promise() {
        for (mode, holds) in
            [(Mode::Transaction, false), (Mode::AtLeastOnce, true), (Mode::AtMostOnce, false)]
        {
            assert_eq!(CellResult { duplicates: 1, ..shown(mode) }.passed(), holds, "{mode}");
            assert!(!CellResult { lost: 1, ..shown(mode) }.passed(), "{mode}");
            assert!(shown(mode).passed());
        }
        let mut stuck = shown(Mode::AtLeastOnce);
        stuck.record_try(None);
        assert!(!stuck.passed());
    }

    #[test]
    fn the_table_replaces_the_old_one() {
        let page = format!("head\n{BEGIN}\nold\n{END}\nfoot\n");
        let replaced = replace(&page, "| new |").unwrap();
        assert_eq!(replaced, format!("head\n{BEGIN}\n\n| new |\n\n{END}\nfoot\n"));
        assert!(replace("head", "| new |").is_none());
        let table = table(&[shown(Mode::Transaction)]);
        assert_eq!(table.lines().count(), 3);
        assert!(table.lines().all(|line| line.matches('|').count() == 10), "{table}");
    }
}
