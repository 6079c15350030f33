//! Timeline of a task as SVG: grey while the task waited, coloured while an attempt ran.

use queue::attempt::Attempt;

use crate::screens::prelude::*;

/// Width of the SVG in user units.
const WIDTH: f64 = 1000.0;

/// Minimum width of a segment; a narrower one would be invisible.
const MIN_WIDTH: f64 = 3.0;

/// The segments, oldest first, and their duration.
pub(crate) struct Timeline {
    pub(crate) segments: Vec<Segment>,
    pub(crate) seconds: f64,
}

pub(crate) struct Segment {
    pub(crate) class: String,
    pub(crate) title: String,
    pub(crate) seconds: f64,
    pub(crate) x: f64,
    pub(crate) width: f64,
}

impl Segment {
    fn new(class: String, title: String, from: Timestamp, to: Timestamp) -> Self {
        let seconds = to.duration_since(from).as_secs_f64().max(0.0);
        Self { class, title, seconds, x: 0.0, width: 0.0 }
    }
}

/// Returns the time from enqueueing to the end of the task, or to now. `running_since` is the start
/// of the running attempt.
pub(crate) fn timeline(
    enqueued_at: Timestamp,
    attempts: &[Attempt],
    running_since: Option<Timestamp>,
    now: Timestamp,
) -> Timeline {
    let mut segments = Vec::new();
    let mut at = enqueued_at;
    let ended = attempts.iter().map(|it| {
        let title = format!("attempt {}: {}", it.attempt, it.outcome.as_str().replace('_', " "));
        (it.outcome.to_string(), title, it.started_at.unwrap_or(it.finished_at), it.finished_at)
    });
    let running =
        running_since.map(|since| ("running".to_owned(), "running".to_owned(), since, now));
    for (class, title, from, to) in ended.chain(running) {
        if from > at {
            segments.push(Segment::new("wait".to_owned(), "waited".to_owned(), at, from));
        }
        segments.push(Segment::new(class, title, from, to));
        at = at.max(to);
    }
    let all: f64 = segments.iter().map(|it| it.seconds).sum();
    // Narrow segments get the minimum width at the expense of the others.
    #[expect(clippy::cast_precision_loss, reason = "a number of attempts")]
    let spare = (WIDTH - MIN_WIDTH * segments.len() as f64).max(0.0);
    let mut x = 0.0;
    for it in &mut segments {
        let part = if all > 0.0 { it.seconds / all } else { 0.0 };
        (it.x, it.width) = (x, MIN_WIDTH + spare * part);
        x += it.width;
    }
    Timeline { segments, seconds: all }
}
