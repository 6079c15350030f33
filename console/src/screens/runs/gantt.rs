//! Gantt chart of a run: one bar per task.

use std::collections::HashSet;
use std::fmt::Write as _;

use jiff::Timestamp;
use queue::run_queries::{Run, RunTask};

use crate::escape::{Markup, escaped};
use crate::page::format;

/// Width of the SVG in user units.
const WIDTH: f64 = 1000.0;

/// Minimum width of a bar; a narrower one would be invisible.
const MIN_WIDTH: f64 = 4.0;

/// A row of the chart.
pub(crate) struct GanttBar {
    pub(crate) name: String,
    pub(crate) path: Option<String>,
    pub(crate) critical: bool,
    pub(crate) svg: Markup,
    pub(crate) seconds: f64,
}

/// Draws the started tasks in the order of their start, scaled from the first start to the last
/// finish.
pub(crate) fn bars(
    run: &Run,
    tasks: &[RunTask],
    critical: &HashSet<i64>,
    now: Timestamp,
) -> Vec<GanttBar> {
    let mut started: Vec<(&RunTask, Timestamp, Timestamp)> = tasks
        .iter()
        .filter_map(|task| {
            let from = task.started_at?;
            let to = task.finished_at.unwrap_or(now);
            Some((task, from, to.max(from)))
        })
        .collect();
    started.sort_by_key(|(task, from, _)| (*from, task.node));
    // The scale starts at the first start shown: after a restart, attempts may start long after the
    // run itself.
    let first = started.iter().map(|it| it.1).min().unwrap_or(run.started_at);
    let last = started.iter().map(|it| it.2).max().unwrap_or(now);
    let all = last.duration_since(first).as_secs_f64().max(f64::EPSILON);
    let part = |at: Timestamp| at.duration_since(first).as_secs_f64() / all;
    let bar = |(task, from, to): (&RunTask, Timestamp, Timestamp)| {
        let seconds = to.duration_since(from).as_secs_f64();
        let width = ((part(to) - part(from)) * WIDTH).max(MIN_WIDTH);
        let x = (part(from) * WIDTH).min(WIDTH - MIN_WIDTH);
        let on_path = critical.contains(&task.node);
        GanttBar {
            name: task.name.clone(),
            path: task.task_id.map(|id| format!("/tasks/{id}")),
            critical: on_path,
            svg: draw(&task.state, (x, width), &title(task, from, first, seconds), on_path),
            seconds,
        }
    };
    started.into_iter().map(bar).collect()
}

fn title(task: &RunTask, from: Timestamp, first: Timestamp, seconds: f64) -> String {
    let offset = from.duration_since(first).as_secs_f64();
    format!("{}, started after {}, ran {}", task.state, format::span(offset), format::span(seconds))
}

fn draw(state: &str, (x, width): (f64, f64), title: &str, critical: bool) -> Markup {
    let mut svg = format!(
        "<svg class=\"bar\" viewBox=\"0 0 {WIDTH} 16\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}\">",
        escaped(title)
    );
    let _ = write!(
        svg,
        "<title>{}</title><rect class=\"{}\" x=\"{x:.1}\" y=\"2\" width=\"{width:.1}\" height=\"{}\"/>",
        escaped(title),
        format::state_class(state),
        if critical { 9 } else { 12 },
    );
    if critical {
        let _ = write!(
            svg,
            "<rect class=\"path\" x=\"{x:.1}\" y=\"11\" width=\"{width:.1}\" height=\"3\"/>"
        );
    }
    svg.push_str("</svg>");
    Markup(svg)
}
