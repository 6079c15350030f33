//! The recovery times of all trials, in a file beside the page, and their distribution in the page.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use page::Section;

use super::cell::Cell;
use super::table::{CellResult, markdown};

/// The distribution in a page.
const SECTION: Section = Section("recovery times");

const HEAD: [&str; 5] = ["fault", "trials", "median, s", "90 %, s", "longest, s"];

/// Recovery times in seconds, by the line of the cell.
type Times = BTreeMap<String, Vec<f64>>;

/// Writes the recovery times of these results into the file beside the page, and the distribution of
/// all times in that file into the page. Keeps the times of all other `cells`.
pub(crate) fn write(page: &Path, shown: &[CellResult], cells: &[Cell]) -> Result<()> {
    let file = page.with_extension("json");
    let times = merged(read(&file)?, shown, cells);
    fs::write(&file, json(&times)?).with_context(|| file.display().to_string())?;
    SECTION.write(page, |_| distribution(&times, cells).trim_end().to_owned())
}

fn read(file: &Path) -> Result<Times> {
    match fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Times::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

fn merged(mut times: Times, shown: &[CellResult], cells: &[Cell]) -> Times {
    times.retain(|line, _| cells.iter().any(|cell| cell.to_string() == *line));
    times.extend(shown.iter().map(|one| (one.cell().to_string(), one.times.clone())));
    times
}

/// Formats one cell per line, so that a change of a cell is a change of a line.
fn json(times: &Times) -> Result<String> {
    let lines = times.iter().map(|(line, times)| {
        Ok(format!("  {}: {}", serde_json::to_string(line)?, serde_json::to_string(times)?))
    });
    Ok(format!("{{\n{}\n}}\n", lines.collect::<Result<Vec<_>>>()?.join(",\n")))
}

/// Formats the table: one row per fault, in the order of the cells.
fn distribution(times: &Times, cells: &[Cell]) -> String {
    let mut of_faults: Vec<(String, Vec<f64>)> = Vec::new();
    for cell in cells {
        let (fault, new) = (cell.fault.to_string(), times.get(&cell.to_string()));
        let new = new.into_iter().flatten().copied();
        match of_faults.iter_mut().find(|(known, _)| *known == fault) {
            Some((_, all)) => all.extend(new),
            None => of_faults.push((fault, new.collect())),
        }
    }
    let mut rows = Vec::new();
    for (fault, mut all) in of_faults {
        if !all.is_empty() {
            all.sort_by(f64::total_cmp);
            let [median, ninth_decile, longest] =
                [50, 90, 100].map(|percent| format!("{:.1}", percentile(&all, percent)));
            rows.push([fault, all.len().to_string(), median, ninth_decile, longest]);
        }
    }
    markdown(HEAD, 1..5, &rows)
}

/// Returns the smallest of the sorted times that is not exceeded by this share of them.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::super::cell::{Mode, Moment, Place};
    use super::super::fault::Fault;
    use super::*;

    fn cell(fault: Fault, moment: Moment) -> Cell {
        Cell { fault, moment, mode: Mode::Transaction, place: Place::Queue }
    }

    #[test]
    fn a_percentile_is_one_of_the_times() {
        let times: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(
            [1, 50, 90, 91, 100].map(|n| percentile(&times, n)),
            [1.0, 5.0, 9.0, 10.0, 10.0]
        );
        assert_eq!([1, 50, 100].map(|n| percentile(&[7.0], n)), [7.0; 3]);
    }

    #[test]
    fn times_of_other_cells_are_kept_and_those_of_removed_cells_are_not() {
        let cells = [
            cell(Fault::WorkerKilled, Moment::Executing),
            cell(Fault::WorkerKilled, Moment::Idle),
            cell(Fault::Drain, Moment::Idle),
        ];
        let shown = |cell, times: &[f64]| {
            let mut result = CellResult::new(cell);
            result.times = times.to_vec();
            result
        };
        let first = merged(
            Times::new(),
            &[shown(cells[0], &[1.0, 2.0]), shown(cells[1], &[3.0]), shown(cells[2], &[0.5])],
            &cells,
        );
        let stored: Times = serde_json::from_str(&json(&first).unwrap()).unwrap();
        let second = merged(stored, &[shown(cells[1], &[4.0, 5.0])], &cells);
        let rows = distribution(&second, &cells);
        let row = |line: usize| -> Vec<String> {
            let line = rows.lines().nth(line).unwrap();
            line.split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        assert_eq!(row(2)[1..6], ["worker: SIGKILL", "4", "2.0", "5.0", "5.0"]);
        assert_eq!(row(3)[1..6], ["worker: SIGTERM", "1", "0.5", "0.5", "0.5"]);
        assert_eq!(merged(second, &[], &cells[..1]).len(), 1);
    }
}
