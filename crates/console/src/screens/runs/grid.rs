//! Grid of tasks and runs: the state of each task in each of the last runs of a job, or of the jobs
//! of a run.

use queue::insight::runs::{self, ComparedRun, GridCell};

use crate::screens::prelude::*;

/// Maximum number of runs.
pub(crate) const COLUMNS: i64 = 30;

/// Maximum number of tasks.
const ROWS: usize = 100;

/// Height of the bar of the longest run, in user units; that of `run_grid.html`.
const BAR_HEIGHT: f64 = 36.0;

/// Runs from left to right, newest last, and tasks from top to bottom, each after its parents.
pub(crate) struct RunGrid {
    pub(crate) runs: Vec<ComparedRun>,
    pub(crate) rows: Vec<GridRow>,
    /// Number of tasks without a row.
    pub(crate) left_out: usize,
    /// The run of the page.
    current: Option<RunId>,
}

/// The states of a task in each run.
pub(crate) struct GridRow {
    pub(crate) name: String,
    /// One cell per run; `None` if the run does not have the task.
    pub(crate) cells: Vec<Option<GridCell>>,
}

impl RunGrid {
    /// Reads the grid of these tasks, which are in the order of the rows. `first` has the tasks that
    /// get a row even if there are too many tasks.
    pub(crate) async fn read(
        tx: &Transaction<'_>,
        mut runs: Vec<ComparedRun>,
        names: &[&str],
        first: &HashSet<&str>,
    ) -> Result<Self, QueueError> {
        runs.reverse();
        let ids: Vec<i64> = runs.iter().map(|it| it.id.0).collect();
        let names = choose_rows(names, first);
        let mut cells: HashMap<(String, i64), GridCell> = HashMap::new();
        for cell in runs::grid_cells(tx, &ids, &names.shown).await? {
            cells.insert((cell.name.clone(), cell.run.0), cell);
        }
        let mut row = |name: &&str| GridRow {
            name: (*name).to_owned(),
            cells: ids.iter().map(|id| cells.remove(&((*name).to_owned(), *id))).collect(),
        };
        let rows = names.shown.iter().map(&mut row).collect();
        Ok(Self { runs, rows, left_out: names.left_out, current: None })
    }

    /// Marks the run of the page.
    pub(crate) fn of_run(self, run: RunId) -> Self {
        Self { current: Some(run), ..self }
    }

    pub(crate) fn is_current(&self, run: &ComparedRun) -> bool {
        self.current == Some(run.id)
    }

    /// Returns the duration of the longest run, in seconds.
    pub(crate) fn longest(&self) -> f64 {
        self.runs.iter().map(|it| it.duration_seconds).fold(0.001, f64::max)
    }

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

    /// Returns the instant that a run stands for: the instant for which a schedule fired the run,
    /// or else its start.
    pub(crate) fn instant(&self, run: &ComparedRun) -> Timestamp {
        run.fire_at.unwrap_or(run.started_at)
    }

    /// Returns the height of the bar that shows the duration of a run, relative to the longest run of
    /// the grid.
    pub(crate) fn bar_height(&self, run: &ComparedRun) -> f64 {
        (run.duration_seconds / self.longest() * BAR_HEIGHT).clamp(1.0, BAR_HEIGHT)
    }
}

/// Rows of a grid.
struct Rows<'a> {
    shown: Vec<&'a str>,
    left_out: usize,
}

/// Chooses the tasks that get a row: all, or as many as fit, with `first` before the others. Keeps
/// their order.
fn choose_rows<'a>(names: &[&'a str], first: &HashSet<&str>) -> Rows<'a> {
    let mut places: Vec<usize> = (0..names.len()).collect();
    places.sort_by_key(|place| !first.contains(names[*place]));
    places.truncate(ROWS);
    places.sort_unstable();
    let shown = places.iter().map(|place| names[*place]).collect();
    Rows { shown, left_out: names.len() - places.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tasks_get_a_row_even_if_there_are_too_many() {
        let names: Vec<String> = (0..150).map(|n| format!("t{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let rows = choose_rows(&names, &HashSet::from(["t149"]));
        assert_eq!((rows.shown.len(), rows.left_out), (ROWS, 50));
        assert_eq!(rows.shown.last(), Some(&"t149"));
        assert_eq!(rows.shown[..2], ["t0", "t1"]);
    }
}
