//! Shows progress: on a terminal a block that changes in place, with the events above it; otherwise
//! plain lines.
//!
//! A closed pipe (`demo | head`) does not stop the demo: output that cannot be written is dropped.

use std::io::{Write as _, stdout};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::fleet::Fleet;
use crate::snapshot::{RunningTask, Snapshot};
use crate::workload;

/// Interval of status lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

pub(crate) struct Screen {
    started: Instant,
    block: Option<Block>,
    last_line: Instant,
}

/// A bar, and a line for each worker.
struct Block {
    all: MultiProgress,
    bar: ProgressBar,
    workers: Vec<ProgressBar>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let block = (!all.is_hidden()).then(|| Block::new(all));
        let now = Instant::now();
        Self { started: now, block, last_line: now }
    }

    /// Time since the start of the demo.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Prints an event with its time.
    pub(crate) fn event(&self, text: &str) {
        self.line(&format!("{:>5.1} s  {text}", self.elapsed().as_secs_f64()));
    }

    /// Prints a line.
    pub(crate) fn line(&self, text: &str) {
        let line = || {
            let _ = writeln!(stdout(), "{text}");
        };
        match &self.block {
            Some(block) => block.all.suspend(line),
            None => line(),
        }
    }

    /// Updates the block.
    pub(crate) fn show(&mut self, snapshot: &Snapshot, fleet: &Fleet) {
        let Snapshot { pending, running, scheduled, running_tasks, .. } = snapshot;
        let ended = snapshot.ended();
        let states = format!("pending {pending}, running {running}, scheduled {scheduled}");
        match &mut self.block {
            Some(block) => {
                block.bar.set_position(ended as u64);
                block.bar.set_message(states);
                block.show_workers(running_tasks, fleet);
            }
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                self.event(&format!("{ended} of {} tasks finished; {states}", workload::ALL));
            }
            None => {}
        }
    }

    /// Removes the block.
    pub(crate) fn clear(&mut self) {
        if let Some(block) = self.block.take() {
            let _ = block.all.clear();
        }
    }
}

impl Block {
    fn new(all: MultiProgress) -> Self {
        let style = ProgressStyle::with_template(
            "{elapsed:>6}  {bar:24.cyan/dim} {pos} of {len} tasks finished  {wide_msg:.dim}",
        );
        let bar = all.add(ProgressBar::new(workload::ALL as u64));
        // The template is a constant; an error would show in every run.
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("━━─"));
        }
        Self { all, bar, workers: Vec::new() }
    }

    fn show_workers(&mut self, running_tasks: &[RunningTask], fleet: &Fleet) {
        while self.workers.len() < fleet.workers().len() {
            let line = self.all.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                line.set_style(style);
            }
            self.workers.push(line);
        }
        for (worker, line) in fleet.workers().iter().zip(&self.workers) {
            let names: Vec<&str> = running_tasks
                .iter()
                .filter(|running_task| running_task.worker_pid == worker.pid)
                .map(|running_task| running_task.name.as_str())
                .collect();
            let state = match (worker.killed, names.is_empty()) {
                (false, true) => "idle".to_owned(),
                (false, false) => names.join(" · "),
                (true, true) => "killed".to_owned(),
                (true, false) => format!("killed, was running {}", names.join(" · ")),
            };
            line.set_message(format!("        worker {}  {state}", worker.number));
        }
    }
}
