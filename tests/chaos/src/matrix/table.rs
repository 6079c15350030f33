//! Formats the results of the cells: as a table, as JSON, as a section of a page.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use page::Section;
use serde::Serialize;

use super::cell::{Cell, MAY_BE_LOST, MAY_LACK_EFFECT, Mode};

/// The table in a page.
const SECTION: Section = Section("matrix");

/// Result of one cell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CellResult {
    pub(crate) fault: String,
    pub(crate) moment: String,
    pub(crate) mode: String,
    /// Database in which the task runs.
    pub(crate) database: String,
    pub(crate) tries: u32,
    pub(crate) lost: u32,
    pub(crate) duplicates: u32,
    pub(crate) stuck: u32,
    pub(crate) unknown: u32,
    /// Recovery time of each try whose task was not stuck, in seconds.
    pub(crate) times: Vec<f64>,
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
            database: cell.place.to_string(),
            tries: 0,
            lost: 0,
            duplicates: 0,
            stuck: 0,
            unknown: 0,
            times: Vec::new(),
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
            Some(took) => self.times.push((took.as_secs_f64() * 100.0).round() / 100.0),
            None => self.stuck += 1,
        }
    }

    /// Returns the longest recovery time in seconds.
    pub(crate) fn longest(&self) -> Option<f64> {
        self.times.iter().copied().reduce(f64::max)
    }

    /// Returns whether the promise held.
    pub(crate) fn passed(&self) -> bool {
        self.error.is_none()
            && (self.lost == 0 || self.cell.may_be_lost())
            && self.stuck == 0
            && (self.duplicates == 0 || self.cell.may_duplicate())
            && (self.unknown == 0 || self.cell.may_be_unknown())
    }

    fn row(&self) -> Row {
        let Self { fault, moment, mode, database, tries, lost, duplicates, stuck, .. } = self;
        let counts = match &self.skipped {
            Some(_) => ["0", "", "", "", ""].map(str::to_owned),
            None => [
                tries.to_string(),
                lost.to_string(),
                duplicates.to_string(),
                stuck.to_string(),
                self.longest().map_or(String::new(), |seconds| format!("{seconds:.1}")),
            ],
        };
        let mut output = self.promised.clone();
        if let Some(why) = &self.skipped {
            output = format!("{SKIPPED}{why}");
        } else if self.error.is_some() {
            output = ERROR.to_owned();
        } else if !self.passed() {
            output += BROKEN;
        } else if self.unknown > 0 {
            let _ = write!(output, ": {} unknown", self.unknown);
        }
        let [fault, moment, mode, database] = [fault, moment, mode, database].map(Clone::clone);
        let [tries, lost, duplicates, stuck, recovery] = counts;
        [fault, moment, mode, database, tries, lost, duplicates, stuck, recovery, output]
    }
}

/// A row of the table.
type Row = [String; 10];

const HEAD: [&str; 10] = [
    "fault",
    "moment",
    "mode",
    "database",
    "trials",
    "lost",
    "duplicates",
    "stuck",
    "recovery, s",
    "promised",
];

/// Columns of a row: those that name the cell, and those with numbers.
const KEY: Range<usize> = 0..4;
const NUMBERS: Range<usize> = 4..9;

/// Marks in the last column.
const SKIPPED: &str = "skipped: ";
const ERROR: &str = "ERROR";
const BROKEN: &str = ": BROKEN";

/// Formats the results: a table and a line with the totals.
pub(crate) fn text(shown: &[CellResult]) -> String {
    text_of(&shown.iter().map(CellResult::row).collect::<Vec<_>>())
}

fn text_of(rows: &[Row]) -> String {
    format!("{}\n{}", markdown(HEAD, NUMBERS, rows), sum(rows))
}

/// Formats a Markdown table, padded to be readable as plain text. The columns `numbers` are
/// right-aligned.
pub(crate) fn markdown<const N: usize>(
    head: [&str; N],
    numbers: Range<usize>,
    rows: &[[String; N]],
) -> String {
    let head = [head.map(str::to_owned)];
    let rows = || head.iter().chain(rows);
    let width = |column: usize| rows().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (n, row) in rows().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let padded = if numbers.contains(&column) {
                format!("| {cell:>width$} ")
            } else {
                format!("| {cell:<width$} ")
            };
            text.push_str(&padded);
        }
        text.push_str("|\n");
        if n == 0 {
            for (column, width) in widths.iter().enumerate() {
                let end = if numbers.contains(&column) { ":" } else { "-" };
                let _ = write!(text, "|{}{end}", "-".repeat(width + 1));
            }
            text.push_str("|\n");
        }
    }
    text
}

/// Summarizes all rows in one line.
fn sum(rows: &[Row]) -> String {
    let tried: Vec<&Row> = rows.iter().filter(|row| !row[9].starts_with(SKIPPED)).collect();
    let total =
        |column: usize| tried.iter().filter_map(|row| row[column].parse::<u32>().ok()).sum::<u32>();
    let promised_kept = tried
        .iter()
        .filter(|row| ![MAY_BE_LOST, MAY_LACK_EFFECT].iter().any(|text| row[9].starts_with(text)));
    let lost: u32 = promised_kept.filter_map(|row| row[5].parse::<u32>().ok()).sum();
    let broken = tried.iter().filter(|row| row[9] == ERROR || row[9].ends_with(BROKEN)).count();
    let may_duplicate = Mode::AtLeastOnce.to_string();
    let promised_once = tried.iter().filter(|row| row[2] != may_duplicate);
    let duplicates: u32 = promised_once.filter_map(|row| row[6].parse::<u32>().ok()).sum();
    format!(
        "{} rows, {} trials: {lost} lost, {duplicates} duplicates despite an exactly-once promise, {} \
         stuck. Rows whose promise was broken: {broken}; rows skipped: {}",
        tried.len(),
        total(4),
        total(7),
        rows.len() - tried.len(),
    )
}

/// Writes the rows of these results into the table of a page. Keeps the rows of all other `cells`.
pub(crate) fn write(page: &Path, shown: &[CellResult], cells: &[Cell]) -> Result<()> {
    SECTION.write(page, |old| merged(old, shown, cells))
}

fn merged(old: &str, shown: &[CellResult], cells: &[Cell]) -> String {
    let new = shown.iter().map(CellResult::row);
    let mut known: HashMap<Vec<String>, Row> = old
        .lines()
        .filter_map(page::row)
        .chain(new)
        .map(|row: Row| (row[KEY].to_vec(), row))
        .collect();
    let keys = cells.iter().map(|cell| CellResult::new(*cell).row()[KEY].to_vec());
    let rows: Vec<Row> = keys.filter_map(|key| known.remove(&key)).collect();
    text_of(&rows)
}

#[cfg(test)]
mod tests {
    use super::super::cell::{Moment, Place};
    use super::super::fault::Fault;
    use super::*;

    const BEGIN: &str = "<!-- the matrix -->";
    const END: &str = "<!-- the end of the matrix -->";

    fn replace(text: &str, shown: &[CellResult], cells: &[Cell]) -> Option<String> {
        SECTION.replace(text, |old| merged(old, shown, cells))
    }

    fn cell(mode: Mode) -> Cell {
        let (fault, moment) = (Fault::WorkerKilled, Moment::Executing);
        Cell { fault, moment, mode, place: Place::Queue }
    }

    fn shown(mode: Mode) -> CellResult {
        CellResult::new(cell(mode))
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
    fn the_total_counts_broken_promises() {
        let ran = |mode| CellResult { tries: 3, duplicates: 2, ..shown(mode) }.row();
        let failed = CellResult { error: Some("late".to_owned()), ..shown(Mode::Transaction) };
        let skipped = shown(Mode::AtMostOnce).skipped("needs root".to_owned());
        let rows = [ran(Mode::Transaction), ran(Mode::AtLeastOnce), failed.row(), skipped.row()];
        let expected = "3 rows, 6 trials: 0 lost, 2 duplicates despite an exactly-once promise, 0 \
                        stuck. Rows whose promise was broken: 2; rows skipped: 1";
        assert_eq!(sum(&rows), expected);
    }

    #[test]
    fn new_rows_replace_the_old_ones_of_the_page() {
        let cells = [Mode::Transaction, Mode::AtLeastOnce].map(cell);
        let results = |tries| cells.map(|cell| CellResult { tries, ..CellResult::new(cell) });
        let page = format!("head\n{BEGIN}\nold\n{END}\nfoot\n");
        let whole = replace(&page, &results(3), &cells).unwrap();
        let expected = format!("head\n{BEGIN}\n\n{}\n\n{END}\nfoot\n", text(&results(3)));
        assert_eq!(whole, expected);
        assert!(replace("head", &results(3), &cells).is_none());
        // Only the second row is new.
        let [kept, _] = results(3);
        let [_, new] = results(5);
        let merged = replace(&whole, std::slice::from_ref(&new), &cells).unwrap();
        assert_eq!(merged, replace(&page, &[kept, new], &cells).unwrap());
        // A cell that no longer exists has no row.
        let rest = replace(&whole, &[], &cells[1..]).unwrap();
        assert_eq!(rest.lines().filter(|line| line.starts_with('|')).count(), 3);
        assert!(rest.lines().all(|line| [0, 11].contains(&line.matches('|').count())), "{rest}");
    }
}
