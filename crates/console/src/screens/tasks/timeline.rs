//! Timeline of a task as SVG: grey while the task waited, coloured while an attempt ran.

use std::fmt::Write;

use jiff::Timestamp;
use queue::attempt::Attempt;

use crate::escape::{Markup, escaped};
use crate::page::format::span;

/// Width of the SVG in user units.
const WIDTH: f64 = 1000.0;

/// Minimum width of a segment; a narrower one would be invisible.
const MIN_WIDTH: f64 = 3.0;

/// A segment of the timeline.
struct Segment {
    class: String,
    title: String,
    from: Timestamp,
    to: Timestamp,
}

/// Draws the time from enqueueing to the end of the task, or to now. `running_since` is the start
/// of the running attempt.
pub(crate) fn timeline(
    enqueued_at: Timestamp,
    attempts: &[Attempt],
    running_since: Option<Timestamp>,
    now: Timestamp,
) -> Markup {
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
            segments.push(Segment {
                class: "wait".to_owned(),
                title: "waited".to_owned(),
                from: at,
                to: from,
            });
        }
        segments.push(Segment { class, title, from, to });
        at = at.max(to);
    }
    draw(&segments)
}

fn draw(segments: &[Segment]) -> Markup {
    let seconds = |it: &Segment| it.to.duration_since(it.from).as_secs_f64().max(0.0);
    let all: f64 = segments.iter().map(seconds).sum();
    if segments.is_empty() {
        return Markup(String::new());
    }
    // Narrow segments get the minimum width at the expense of the others.
    #[expect(clippy::cast_precision_loss, reason = "a number of attempts")]
    let spare = (WIDTH - MIN_WIDTH * segments.len() as f64).max(0.0);
    let mut svg = format!(
        "<svg class=\"timeline\" viewBox=\"0 0 {WIDTH} 20\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{} over {}\">",
        crate::page::format::counted(i64::try_from(segments.len()).unwrap_or(0), "segment"),
        span(all)
    );
    let mut x = 0.0;
    for it in segments {
        let part = if all > 0.0 { seconds(it) / all } else { 0.0 };
        let width = MIN_WIDTH + spare * part;
        let _ = write!(
            svg,
            "<rect class=\"{}\" x=\"{x:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\">\
             <title>{}, {}</title></rect>",
            it.class,
            if it.class == "wait" { 8 } else { 2 },
            if it.class == "wait" { 4 } else { 16 },
            escaped(&it.title),
            span(seconds(it)),
        );
        x += width;
    }
    svg.push_str("</svg>");
    Markup(svg)
}
