//! Shows progress on stderr, because stdout carries the report: a bar on a terminal, otherwise an
//! occasional line.

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::report::Counts;

/// Interval of progress lines if stderr is not a terminal.
const LOG_INTERVAL: Duration = Duration::from_secs(20);

/// The bar, or plain lines.
pub(crate) struct Progress {
    bar: ProgressBar,
    reported: Cell<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The template is a constant; an error would show in every run.
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>6} {wide_bar:.dim} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, reported: Cell::new(Instant::now()) }
    }

    /// Starts a phase.
    pub(crate) fn phase(&self, text: &str) {
        self.reported.set(Instant::now());
        if self.bar.is_hidden() {
            eprintln!("chaos: {text}");
        } else {
            self.bar.set_message(text.to_owned());
        }
    }

    /// Reports a completed step.
    pub(crate) fn step(&self, done: usize, all: usize, counts: &Counts) {
        self.bar.set_length(all as u64);
        self.bar.set_position(done as u64);
        let text = format!(
            "{} tasks, {} kills, {} crashes{}",
            counts.tasks_requested,
            counts.kills,
            counts.crashes + counts.immediate_stops,
            if counts.promotions > 0 { ", promoted" } else { "" }
        );
        if !self.bar.is_hidden() {
            self.bar.set_message(text);
        } else if self.reported.get().elapsed() > LOG_INTERVAL {
            self.phase(&format!("step {done} of {all}: {text}"));
        }
    }

    /// Removes the bar.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
