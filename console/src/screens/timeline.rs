//! The attempts of a task along one line: grey while it waited, in colour while it ran.

use std::fmt::Write;

use jiff::Timestamp;
use queue::attempt::Attempt;

use crate::format::span;
use crate::layout::{Markup, escaped};

/// Units of the picture's width.
const WIDTH: f64 = 1000.0;

/// A narrower piece could not be seen.
const MIN_WIDTH: f64 = 3.0;

/// A stretch of the line.
struct Segment {
    class: String,
    title: String,
    from: Timestamp,
    to: Timestamp,
}

/// From the submission to the end, or to now. `running_since`: an attempt goes on.
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
    let going_on =
        running_since.map(|since| ("running".to_owned(), "runs now".to_owned(), since, now));
    for (class, title, from, to) in ended.chain(going_on) {
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
    // What would be too narrow gets its least width, at the cost of the others.
    #[expect(clippy::cast_precision_loss, reason = "a number of attempts")]
    let spare = (WIDTH - MIN_WIDTH * segments.len() as f64).max(0.0);
    let mut svg = format!(
        "<svg class=\"timeline\" viewBox=\"0 0 {WIDTH} 20\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{} over {}\">",
        crate::format::counted(i64::try_from(segments.len()).unwrap_or(0), "part"),
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
