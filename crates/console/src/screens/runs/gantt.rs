//! Gantt chart of a run: for each task, the times in which it waited in the queue, and its attempts.

use queue::run_attempts::RunAttempt;
use queue::run_queries::RunTask;

use crate::screens::prelude::*;

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
    seconds: f64,
    pub(crate) rows: Vec<GanttRow>,
}

/// A row of the chart.
pub(crate) struct GanttRow {
    pub(crate) name: String,
    pub(crate) path: Option<String>,
    pub(crate) critical: bool,
    pub(crate) title: String,
    pub(crate) segments: Vec<Segment>,
    /// Seconds in which the task waited in the queue, over all attempts.
    pub(crate) waited_seconds: f64,
    /// Duration of the last attempt, in seconds.
    pub(crate) seconds: Option<f64>,
}

/// A part of a row: the task waited, or an attempt ran.
pub(crate) struct Segment {
    pub(crate) class: &'static str,
    title: String,
    from: Timestamp,
    to: Timestamp,
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
    let row = |(task, segments): (&RunTask, Vec<Segment>)| {
        let waits = segments.iter().filter(|it| it.class == "wait");
        let parts: Vec<&str> = segments.iter().map(|it| it.title.as_str()).collect();
        let offset = format::span(seconds(from, segments[0].from));
        GanttRow {
            name: task.name.clone(),
            path: task.task_id.map(|id| format!("/tasks/{id}")),
            critical: critical.contains(&task.node),
            title: format!("{}; due after {offset}; {}", task.state, parts.join("; ")),
            waited_seconds: waits.map(|it| seconds(it.from, it.to)).sum(),
            seconds: task.duration.map(|it| it.as_secs_f64()),
            segments,
        }
    };
    let seconds = seconds(from, to).max(f64::EPSILON);
    Some(Gantt { from, seconds, rows: rows.into_iter().map(row).collect() })
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

impl Gantt {
    /// Returns the left end and the width of a segment in user units.
    pub(crate) fn place(&self, it: &Segment) -> (f64, f64) {
        let min_width = if it.class == "wait" { 0.0 } else { MIN_WIDTH };
        let place = |at: Timestamp| seconds(self.from, at) / self.seconds * WIDTH;
        let x = place(it.from).min(WIDTH - min_width);
        (x, (place(it.to) - x).max(min_width))
    }

    /// Returns the marks of the axis: the seconds from its left end, and the place in percent.
    pub(crate) fn marks(&self) -> Vec<(f64, f64)> {
        let fits = |interval: &&f64| self.seconds / **interval <= MAX_INTERVALS;
        let days = || (self.seconds / DAY / MAX_INTERVALS).ceil() * DAY;
        let interval = INTERVALS.iter().find(fits).copied().unwrap_or_else(days);
        // A mark at the right end would be cut off.
        let before_end = |at: &f64| *at <= self.seconds * 0.96;
        let marks = (0..=8_u32).map(|n| f64::from(n) * interval).take_while(before_end);
        marks.map(|at| (at, at / self.seconds * 100.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(seconds: f64) -> Vec<String> {
        let gantt = Gantt { from: Timestamp::UNIX_EPOCH, seconds, rows: Vec::new() };
        gantt.marks().into_iter().map(|(at, _)| format::span(at)).collect()
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
