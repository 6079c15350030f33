//! Shows progress on standard error: on a terminal one line that changes in place, otherwise one
//! line per round and an occasional line in between. Standard output carries only the results.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use terminal::print_stderr;

/// Interval of progress lines if standard error is not a terminal.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Progress display.
pub(crate) struct Progress {
    bar: ProgressBar,
    last_line: Mutex<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The template is a constant; an error would show in every run.
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>6} {prefix}  {wide_msg:.dim}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, last_line: Mutex::new(Instant::now()) }
    }

    /// Starts a stage.
    pub(crate) fn stage(&self, text: &str) {
        self.bar.set_message("");
        self.bar.set_prefix(text.to_owned());
        if self.bar.is_hidden() {
            self.write(text);
        }
    }

    /// Updates the state of the current stage.
    pub(crate) fn state(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        let last_line = *self.last_line.lock();
        if self.bar.is_hidden() && last_line.elapsed() >= LOG_INTERVAL {
            self.write(&format!("{}: {text}", self.bar.prefix()));
        }
    }

    /// Prints a permanent line.
    pub(crate) fn line(&self, text: &str) {
        self.bar.suspend(|| self.write(text));
    }

    fn write(&self, text: &str) {
        *self.last_line.lock() = Instant::now();
        print_stderr(format_args!("loadtest: {text}"));
    }

    /// Removes the changing line.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
