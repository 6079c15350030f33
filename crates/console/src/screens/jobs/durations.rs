//! Plot of the durations of a job, or of one of its tasks, in the last runs.

use std::fmt::Write;

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use queue::insight::runs::{self, ComparedRun};
use queue::{QueueError, RunId, TaskId};

use crate::escape::{Markup, escaped};
use crate::page::format;

/// Size of the plot in user units, and its margins for the labels of the axes.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 76.0;
const BOTTOM: f64 = 22.0;
const TOP: f64 = 8.0;

/// Maximum width of a bar, and the gap between two bars.
const MAX_BAR: f64 = 22.0;
const GAP: f64 = 2.0;

/// Number of dates on the axis.
const DATES: usize = 8;

/// Durations in the last runs, oldest first.
pub(crate) struct Durations {
    pub(crate) points: Vec<DurationPoint>,
    /// Median of the runs that succeeded, in seconds.
    pub(crate) median: Option<f64>,
}

/// A run, or the last attempt of a task in a run.
pub(crate) struct DurationPoint {
    pub(crate) run: RunId,
    pub(crate) task: Option<TaskId>,
    pub(crate) at: Timestamp,
    pub(crate) state: String,
    pub(crate) seconds: f64,
}

impl Durations {
    /// Reads the durations of a task in these runs, which are sorted newest first; of the whole runs
    /// if `task` is empty.
    pub(crate) async fn read(
        tx: &Transaction<'_>,
        runs: &[ComparedRun],
        task: &str,
    ) -> Result<Self, QueueError> {
        let at = |run: &ComparedRun| run.fire_at.unwrap_or(run.started_at);
        let mut points: Vec<DurationPoint> = Vec::new();
        if task.is_empty() {
            points.extend(runs.iter().map(|run| DurationPoint {
                run: run.id,
                task: None,
                at: at(run),
                state: run.state.to_string(),
                seconds: run.duration_seconds,
            }));
        } else {
            let ids: Vec<i64> = runs.iter().map(|run| run.id.0).collect();
            for cell in runs::grid_cells(&**tx, &ids, &[task]).await? {
                let run = runs.iter().find(|run| run.id == cell.run);
                let (Some(run), Some(seconds)) = (run, cell.duration_seconds) else { continue };
                points.push(DurationPoint {
                    run: run.id,
                    task: cell.task_id,
                    at: at(run),
                    state: cell.state,
                    seconds,
                });
            }
        }
        points.sort_by_key(|point| point.run.0);
        let succeeded = points.iter().filter(|point| point.state == "succeeded");
        let median = median(succeeded.map(|point| point.seconds).collect());
        Ok(Self { points, median })
    }

    /// Draws a bar per run, linked to the run or to the attempt of the task, with a line at the
    /// median. Dates are in the time zone of the viewer.
    pub(crate) fn plot(&self, base: &str, zone: &TimeZone) -> Markup {
        let longest = self.points.iter().map(|it| it.seconds).fold(0.001, f64::max);
        let floor = HEIGHT - BOTTOM;
        let top =
            |seconds: f64| floor - (seconds / longest * (floor - TOP)).clamp(1.0, floor - TOP);
        #[expect(clippy::cast_precision_loss, reason = "at most a hundred bars")]
        let slot = (WIDTH - LEFT) / self.points.len().max(1) as f64;
        #[expect(clippy::cast_precision_loss, reason = "at most a hundred bars")]
        let left = |place: usize| LEFT + slot * place as f64;
        let mut svg = format!(
            "<svg class=\"run-durations\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"group\" aria-label=\"durations of {}, at most {}\">",
            format::counted(i64::try_from(self.points.len()).unwrap_or(0), "run"),
            format::span(longest),
        );
        for (seconds, at) in [(longest, TOP), (0.0, floor)] {
            let _ = write!(
                svg,
                "<line class=\"axis-line\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at}\" y2=\"{at}\"/>\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                if seconds > 0.0 { format::span(seconds) } else { "0".to_owned() },
            );
        }
        for (place, point) in self.points.iter().enumerate() {
            let (x, y) = (left(place), top(point.seconds));
            let path = point
                .task
                .map_or_else(|| format!("/runs/{}", point.run), |task| format!("/tasks/{task}"));
            let _ = write!(
                svg,
                "<a href=\"{}{path}\"><rect class=\"{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
                 <title>{}</title></rect></a>",
                escaped(base),
                format::state_class(&point.state),
                (slot - GAP).clamp(1.0, MAX_BAR),
                floor - y,
                escaped(&format!(
                    "run {}, {}: {}, {}",
                    point.run,
                    date(point.at, zone),
                    point.state,
                    format::span(point.seconds)
                )),
            );
        }
        for place in (0..self.points.len()).step_by(self.points.len().div_ceil(DATES).max(1)) {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\">{}</text>",
                left(place),
                HEIGHT - 6.0,
                date(self.points[place].at, zone),
            );
        }
        if let Some(median) = self.median {
            let y = top(median);
            let _ = write!(
                svg,
                "<line class=\"median\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
            );
        }
        svg.push_str("</svg>");
        Markup(svg)
    }
}

fn date(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%m-%d %H:%M").to_string()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle() {
        assert_eq!(
            [vec![], vec![3.0, 1.0], vec![5.0, 1.0, 2.0]].map(median),
            [None, Some(2.0), Some(2.0)]
        );
    }

    #[test]
    fn a_plot_has_a_bar_per_run_and_a_line_at_the_median() {
        let point = |run: i64| DurationPoint {
            run: RunId(run),
            task: None,
            at: Timestamp::UNIX_EPOCH,
            state: "succeeded".to_owned(),
            seconds: 60.0,
        };
        let durations = Durations { points: (1..=90).map(point).collect(), median: Some(60.0) };
        let svg = durations.plot("/x", &TimeZone::UTC).to_string();
        assert_eq!(svg.matches("<rect").count(), 90);
        assert!(svg.contains("class=\"median\"") && svg.contains("href=\"/x/runs/90\""), "{svg}");
        assert_eq!(svg.matches(">01-01 00:00</text>").count(), 8);
    }
}
