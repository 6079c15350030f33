//! View of an attempt on the task screen.

use queue::attempt::Attempt;

use crate::screens::prelude::*;

/// Maximum number of result rows shown; the JSON has all of them.
const MAX_ROWS: usize = 50;

/// An attempt with derived values for the template.
pub(crate) struct AttemptView {
    pub(crate) it: Attempt,
    /// The line with the error and a caret below the error position.
    pub(crate) caret: Option<String>,
    pub(crate) notices: Vec<String>,
    pub(crate) result: Option<Table>,
    /// The highlighted statement, if the error has a position in it.
    pub(crate) statement: Option<Markup>,
}

/// The first rows that a task returned.
pub(crate) struct Table {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) truncated: bool,
}

/// Returns the views of attempts, newest first.
pub(crate) fn attempt_views(attempts: Vec<Attempt>) -> Vec<AttemptView> {
    attempts.into_iter().rev().map(attempt_view).collect()
}

fn attempt_view(it: Attempt) -> AttemptView {
    let caret = it
        .position
        .zip(it.statement.as_deref())
        .and_then(|(position, statement)| terminal::caret(statement, position));
    let notices = it.notices.iter().flat_map(terminal::notices).collect();
    let result = it.result.as_ref().and_then(table);
    let marked = it.position.is_some();
    let statement = it.statement.as_deref().filter(|_| marked);
    let statement = statement.map(|sql| highlight::statement(sql, it.position));
    AttemptView { caret, notices, result, statement, it }
}

impl AttemptView {
    /// Returns the error message, or a placeholder if only operators may see it.
    pub(crate) fn message(&self) -> Option<&str> {
        let hidden = self.it.sqlstate.as_ref().map(|_| terminal::HIDDEN);
        self.it.message.as_deref().or(hidden)
    }

    pub(crate) fn worker(&self) -> Option<String> {
        let it = &self.it;
        queue::workers::worker_label(it.worker_host.as_deref(), it.worker_pid, it.worker_id)
    }
}

/// Returns the result as a table; `None` if the task returned no columns.
fn table(result: &Value) -> Option<Table> {
    let columns = result.get("columns")?.as_array().filter(|columns| !columns.is_empty())?;
    let rows = result.get("rows")?.as_array()?;
    Some(Table {
        columns: columns.iter().map(terminal::value).collect(),
        rows: rows
            .iter()
            .take(MAX_ROWS)
            .filter_map(Value::as_array)
            .map(|row| row.iter().map(terminal::value).collect())
            .collect(),
        truncated: result.get("truncated") == Some(&Value::Bool(true)) || rows.len() > MAX_ROWS,
    })
}
