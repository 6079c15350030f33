//! Progress of an action on many tasks.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Returns a progress bar that counts tasks, on standard error. It is hidden if standard error is
/// not a terminal.
#[must_use]
pub fn bulk_bar(action: &str, tasks: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} tasks  {eta} left");
    let bar = ProgressBar::new(tasks)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(action.to_owned());
    // The bar draws itself only so often. Without ticks, the last position before a lock wait could
    // remain invisible.
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
