//! Plot of the durations of a job, or of one of its tasks, in the last runs.

use queue::insight::runs::{self, ComparedRun};

use crate::screens::prelude::*;

/// Size of the plot in user units, and its margins for the labels of the axes.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 200.0;
const FLOOR: f64 = HEIGHT - 22.0;
const LEFT: f64 = 76.0;
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
            for cell in runs::grid_cells(tx, &ids, &[task]).await? {
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

    /// Returns the duration of the longest run.
    pub(crate) fn longest(&self) -> f64 {
        self.points.iter().map(|it| it.seconds).fold(0.001, f64::max)
    }

    /// Returns the top of a bar of this duration.
    fn top(&self, seconds: impl ByValue<f64>) -> f64 {
        let height = FLOOR - TOP;
        FLOOR - (seconds.value() / self.longest() * height).clamp(1.0, height)
    }

    /// Returns the width of the place of a bar.
    #[expect(clippy::cast_precision_loss, reason = "at most a hundred bars")]
    fn slot(&self) -> f64 {
        (WIDTH - LEFT) / self.points.len().max(1) as f64
    }

    fn bar_width(&self) -> f64 {
        (self.slot() - GAP).clamp(1.0, MAX_BAR)
    }

    /// Returns the left end of a bar.
    #[expect(clippy::cast_precision_loss, reason = "at most a hundred bars")]
    fn left(&self, place: &usize) -> f64 {
        LEFT + self.slot() * *place as f64
    }

    /// Returns whether the axis has the date of a bar.
    fn has_date(&self, place: &usize) -> bool {
        place.is_multiple_of(self.points.len().div_ceil(DATES).max(1))
    }
}

/// Plot with a bar per run, linked to the run or to the attempt of the task, and a line at the median.
/// Dates are in the time zone of the viewer.
#[derive(Template)]
#[template(path = "job_durations.html")]
pub(crate) struct DurationPlot<'a> {
    pub(crate) base: &'a str,
    pub(crate) zone: &'a TimeZone,
    pub(crate) durations: &'a Durations,
}

impl DurationPlot<'_> {
    fn date(&self, at: &Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%m-%d %H:%M").to_string()
    }
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
        let plot = DurationPlot { base: "/x", zone: &TimeZone::UTC, durations: &durations };
        let svg = plot.render().unwrap();
        assert_eq!(svg.matches("<rect").count(), 90);
        assert!(svg.contains("class=\"median\"") && svg.contains("href=\"/x/runs/90\""), "{svg}");
        assert_eq!(svg.matches(">01-01 00:00</text>").count(), 8);
    }
}
