//! For the person who waits: on a terminal one line that changes in place, otherwise a line for each
//! round, and now and then one in between. All of it on standard error; standard output carries the
//! results.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use terminal::print_stderr;

/// Where lines stay, so often is said how it goes.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// What is being measured.
pub(crate) struct Progress {
    bar: ProgressBar,
    last_line: Mutex<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The template is a constant: it is right, or every run shows that it is not.
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>6} {prefix}  {wide_msg:.dim}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, last_line: Mutex::new(Instant::now()) }
    }

    /// What begins now.
    pub(crate) fn stage(&self, text: &str) {
        self.bar.set_message("");
        self.bar.set_prefix(text.to_owned());
        if self.bar.is_hidden() {
            self.write(text);
        }
    }

    /// How it goes.
    pub(crate) fn state(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        let last_line = *self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bar.is_hidden() && last_line.elapsed() >= LOG_INTERVAL {
            self.write(&format!("{}: {text}", self.bar.prefix()));
        }
    }

    /// A result, or something worth a line that stays.
    pub(crate) fn line(&self, text: &str) {
        self.bar.suspend(|| self.write(text));
    }

    fn write(&self, text: &str) {
        *self.last_line.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        print_stderr(format_args!("loadtest: {text}"));
    }

    /// Takes the changing line away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
