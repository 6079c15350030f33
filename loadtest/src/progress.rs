//! For the person who waits: on a terminal one line that changes in place, otherwise a line for each
//! round. All of it on standard error; standard output carries the results.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is being measured.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The template is a constant: it is right, or every run shows that it is not.
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>6} {prefix}  {wide_msg:.dim}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar }
    }

    /// What begins now.
    pub(crate) fn stage(&self, text: &str) {
        self.bar.set_message("");
        self.bar.set_prefix(text.to_owned());
        if self.bar.is_hidden() {
            eprintln!("loadtest: {text}");
        }
    }

    /// How it goes; for terminals only.
    pub(crate) fn state(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    /// A result, or something worth a line that stays.
    pub(crate) fn line(&self, text: &str) {
        self.bar.suspend(|| eprintln!("loadtest: {text}"));
    }

    /// Takes the changing line away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
