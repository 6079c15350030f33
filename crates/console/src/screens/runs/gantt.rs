//! Gantt chart of a run: for each task, the times in which it waited in the queue, and its attempts.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use jiff::Timestamp;
use queue::run_attempts::RunAttempt;
use queue::run_queries::RunTask;
use queue::{Outcome, TaskId};

use crate::escape::{Markup, escaped};
use crate::page::format;

/// Width of the SVG in user units.
const WIDTH: f64 = 1000.0;

/// Minimum width of an attempt; a narrower one would be invisible.
const MIN_WIDTH: f64 = 4.0;

/// Maximum number of intervals of the time axis.
const MAX_INTERVALS: f64 = 8.0;

/// Lengths of an interval of the time axis, in seconds. A longer chart has intervals of whole days.
const INTERVALS: [f64; 23] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0, 600.0, 1800.0, 3600.0, 7200.0, 21_600.0, 43_200.0,
];
const DAY: f64 = 86_400.0;

/// The chart.
pub(crate) struct Gantt {
    /// Time at the left end of the axis.
    pub(crate) from: Timestamp,
    pub(crate) axis: Markup,
    pub(crate) rows: Vec<GanttRow>,
}

/// A row of the chart.
pub(crate) struct GanttRow {
    pub(crate) name: String,
    pub(crate) path: Option<String>,
    pub(crate) critical: bool,
    pub(crate) svg: Markup,
    /// Seconds in which the task waited in the queue, over all attempts.
    pub(crate) waited_seconds: f64,
    /// Duration of the last attempt, in seconds.
    pub(crate) seconds: Option<f64>,
}

/// A part of a row: the task waited, or an attempt ran.
struct Segment {
    class: &'static str,
    title: String,
    from: Timestamp,
    to: Timestamp,
}

/// Times at the ends of the axis.
struct Scale {
    from: Timestamp,
    seconds: f64,
}

/// Draws the tasks that have entered the queue, in the order in which they were due. The scale
/// begins when the first of them was due. Of a restarted run, the chart shows the time since the
/// restart, which may be days after the first start.
/// Returns `None` if there are no such tasks.
pub(crate) fn chart(
    tasks: &[RunTask],
    attempts: &[RunAttempt],
    restarted_at: Option<Timestamp>,
    critical: &HashSet<i64>,
    now: Timestamp,
) -> Option<Gantt> {
    let mut by_task: HashMap<TaskId, Vec<&RunAttempt>> = HashMap::new();
    for attempt in attempts {
        by_task.entry(attempt.task_id).or_default().push(attempt);
    }
    let mut rows: Vec<(&RunTask, Vec<Segment>)> = Vec::new();
    let earlier = |at: Timestamp| restarted_at.is_some_and(|restarted_at| at < restarted_at);
    for task in tasks.iter().filter(|task| !task.finished_at.is_some_and(earlier)) {
        let own = task.task_id.and_then(|id| by_task.get(&id)).map_or(&[][..], Vec::as_slice);
        let segments = segments(task, own, now);
        if !segments.is_empty() {
            rows.push((task, segments));
        }
    }
    rows.sort_by_key(|(task, segments)| (segments[0].from, task.node));
    let all = || rows.iter().flat_map(|(_, segments)| segments);
    let from = all().map(|it| it.from).min()?;
    let to = all().map(|it| it.to).max()?;
    let scale = Scale { from, seconds: seconds(from, to).max(f64::EPSILON) };
    let draw = |(task, segments): &(&RunTask, Vec<Segment>)| {
        let on_path = critical.contains(&task.node);
        let waits = segments.iter().filter(|it| it.class == "wait");
        GanttRow {
            name: task.name.clone(),
            path: task.task_id.map(|id| format!("/tasks/{id}")),
            critical: on_path,
            svg: scale.draw(&task.state, segments, on_path),
            waited_seconds: waits.map(|it| seconds(it.from, it.to)).sum(),
            seconds: task.duration.map(|it| it.as_secs_f64()),
        }
    };
    Some(Gantt { from, axis: scale.axis(), rows: rows.iter().map(draw).collect() })
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

/// Returns the waits and the attempts of a task, oldest first. Between a failed attempt and the due
/// time of the next one, there is no segment.
fn segments(task: &RunTask, attempts: &[&RunAttempt], now: Timestamp) -> Vec<Segment> {
    let mut segments = Vec::new();
    for attempt in attempts {
        let claimed = attempt.started_at.or(attempt.finished_at).unwrap_or(now);
        if claimed > attempt.due_at {
            let title = format!("waited {}", format::span(seconds(attempt.due_at, claimed)));
            segments.push(Segment { class: "wait", title, from: attempt.due_at, to: claimed });
        }
        if let Some(started) = attempt.started_at {
            segments.push(ran(attempt.outcome, task, started, attempt.finished_at.unwrap_or(now)));
        }
    }
    // The attempts of an old run may have been dropped with the history.
    if let (true, Some(started)) = (attempts.is_empty(), task.started_at) {
        segments.push(ran(None, task, started, task.finished_at.unwrap_or(now)));
    }
    segments
}

/// Returns the segment of an attempt. Without an outcome, it has the colour of the task's state.
fn ran(outcome: Option<Outcome>, task: &RunTask, from: Timestamp, to: Timestamp) -> Segment {
    let class = match outcome {
        None => format::state_class(&task.state),
        Some(Outcome::Succeeded) => "succeeded",
        Some(Outcome::Cancelled) => "cancelled",
        Some(_) if task.state == "failed, ignored" => "ignored",
        Some(_) => "failed",
    };
    let state = outcome.map_or_else(|| task.state.clone(), |it| it.as_str().replace('_', " "));
    Segment { class, title: format!("{state}, ran {}", format::span(seconds(from, to))), from, to }
}

impl Scale {
    /// Returns the place of a time in user units.
    fn x(&self, at: Timestamp) -> f64 {
        seconds(self.from, at) / self.seconds * WIDTH
    }

    /// Returns the times of the marks of the axis, in seconds from its left end.
    fn marks(&self) -> Vec<f64> {
        let fits = |interval: &&f64| self.seconds / **interval <= MAX_INTERVALS;
        let days = || (self.seconds / DAY / MAX_INTERVALS).ceil() * DAY;
        let interval = INTERVALS.iter().find(fits).copied().unwrap_or_else(days);
        // A mark at the right end would be cut off.
        let before_end = |at: &f64| *at <= self.seconds * 0.96;
        (0..=8_u32).map(|n| f64::from(n) * interval).take_while(before_end).collect()
    }

    /// Draws the labels of the axis. The SVG has no view box, so that the text keeps its shape.
    fn axis(&self) -> Markup {
        let mut svg = "<svg class=\"axis\" aria-hidden=\"true\">".to_owned();
        for at in self.marks() {
            let label = if at > 0.0 { format::span(at) } else { "0".to_owned() };
            let x = at / self.seconds * 100.0;
            let _ = write!(svg, "<text x=\"{x:.2}%\" y=\"11\">{label}</text>");
        }
        svg.push_str("</svg>");
        Markup(svg)
    }

    fn draw(&self, state: &str, segments: &[Segment], critical: bool) -> Markup {
        let parts: Vec<String> = segments.iter().map(|it| it.title.clone()).collect();
        let offset = segments.first().map_or(0.0, |it| seconds(self.from, it.from));
        let title = format!("{state}; due after {}; {}", format::span(offset), parts.join("; "));
        let mut svg = format!(
            "<svg class=\"bar\" viewBox=\"0 0 {WIDTH} 16\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{0}\"><title>{0}</title>",
            escaped(&title)
        );
        for at in self.marks() {
            let x = at / self.seconds * WIDTH;
            let _ = write!(svg, "<line x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"16\"/>");
        }
        for it in segments {
            let waits = it.class == "wait";
            let min_width = if waits { 0.0 } else { MIN_WIDTH };
            let x = self.x(it.from).min(WIDTH - min_width);
            let width = (self.x(it.to) - x).max(min_width);
            let (y, height) = if waits { (6, 4) } else { (2, 12) };
            let _ = write!(
                svg,
                "<rect class=\"{}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\"/>",
                it.class
            );
            if critical {
                let _ = write!(
                    svg,
                    "<rect class=\"path\" x=\"{x:.1}\" y=\"13\" width=\"{width:.1}\" height=\"3\"/>"
                );
            }
        }
        svg.push_str("</svg>");
        Markup(svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(seconds: f64) -> Vec<String> {
        Scale { from: Timestamp::UNIX_EPOCH, seconds }
            .marks()
            .into_iter()
            .map(format::span)
            .collect()
    }

    #[test]
    fn the_axis_has_round_times() {
        assert_eq!(marks(0.9), ["0 ms", "200 ms", "400 ms", "600 ms", "800 ms"]);
        assert_eq!(marks(7.0), ["0 ms", "1.0 s", "2.0 s", "3.0 s", "4.0 s", "5.0 s", "6.0 s"]);
        assert_eq!(marks(3000.0).last().unwrap(), "40 min 0 s");
        assert_eq!(marks(30.0 * DAY)[1], "4 d 0 h");
        assert_eq!(marks(f64::EPSILON).len(), 1);
    }
}
