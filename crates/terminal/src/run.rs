//! Progress and outcome of a run.

use std::fmt::Write as _;

use indicatif::{ProgressBar, ProgressStyle};
use queue::run_queries::{Run, RunTask, TaskCounts};

use crate::text::visible;

/// Returns a progress bar for a run, on standard error. It is hidden if standard error is not a
/// terminal.
#[must_use]
pub fn run_bar(run: i64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} tasks  {wide_msg} {elapsed}");
    ProgressBar::new(0)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(format!("run {run}"))
}

/// Updates the bar to the state of the run. `running` contains the names of some running tasks.
pub fn update_run_bar(bar: &ProgressBar, run: &Run, running: &[String]) {
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    bar.set_length(number(run.count.tasks));
    bar.set_position(number(run.count.finished()));
    let mut message = counts(&run.count, false);
    if !running.is_empty() {
        let separator = if message.is_empty() { "" } else { "; " };
        let _ = write!(message, "{separator}running: {}", running.join(", "));
    }
    bar.set_message(visible(&message));
}

/// Formats counts such as `5 succeeded, 1 failed, 2 upstream_failed`. With `succeeded` false,
/// leaves out the succeeded and the skipped tasks.
fn counts(count: &TaskCounts, succeeded: bool) -> String {
    [
        (if succeeded { count.succeeded } else { 0 }, "succeeded"),
        (count.failed, "failed"),
        (count.ignored, "failed and ignored"),
        (count.cancelled, "cancelled"),
        (count.upstream_failed, "upstream_failed"),
        (if succeeded { count.skipped } else { 0 }, "skipped"),
    ]
    .iter()
    .filter(|(number, _)| *number > 0)
    .map(|(number, word)| format!("{number} {word}"))
    .collect::<Vec<_>>()
    .join(", ")
}

/// Formats a line such as `run 12 failed: 5 succeeded, 1 failed, 2 upstream_failed`, and then one
/// line for each task in `failures`.
#[must_use]
pub fn run_outcome(run: &Run, failures: &[RunTask]) -> String {
    let mut text = format!("run {} {}: {}", run.id, state_word(run), counts(&run.count, true));
    for task in failures {
        let _ = write!(text, "\n  {} {}", visible(&task.name), task.state);
        text.extend(task.message.as_ref().map(|message| format!(": {}", visible(message))));
    }
    let more =
        run.count.failed + run.count.ignored + run.count.cancelled + run.count.upstream_failed
            - i64::try_from(failures.len()).unwrap_or(i64::MAX);
    if more > 0 {
        let _ = write!(text, "\n  and {more} more");
    }
    text
}

fn state_word(run: &Run) -> String {
    match run.state {
        queue::run::RunState::Cancelled => match &run.cancel_reason {
            Some(reason) => format!("was cancelled, {reason}"),
            None => "was cancelled".to_owned(),
        },
        state => state.to_string(),
    }
}
