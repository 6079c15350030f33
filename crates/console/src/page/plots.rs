//! Throughput of the last hours as columns with one value per minute, the source of the plots and
//! of their data table.

use std::collections::BTreeMap;

use jiff::Timestamp;
use queue::insight::throughput::MinuteStats;
use serde::{Deserialize, Serialize};

use crate::error::HttpError;
use crate::throughput::backlog_history::BacklogQuery;
use crate::throughput::cache::{RETAINED_MINUTES, ThroughputCache};
use crate::throughput::minutes::{HOUR_MINUTES, last_minutes};

/// Time ranges offered on the page, in hours.
pub(crate) const HOUR_CHOICES: [i64; 3] = [1, 3, MAX_HOURS];

const MAX_HOURS: i64 = RETAINED_MINUTES / HOUR_MINUTES;

/// Rows of the data table for every time range.
const ROWS: usize = 12;

/// Query parameters of the plots.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub(crate) struct PlotParams {
    /// number of hours, from 1 to 6; default 1
    #[param(value_type = i64, minimum = 1, maximum = 6)]
    hours: String,
    /// only this queue
    pub(crate) queue: String,
}

impl PlotParams {
    pub(crate) fn hours(&self) -> Result<i64, HttpError> {
        let hours = if self.hours.is_empty() { Ok(1) } else { self.hours.parse() };
        hours.ok().filter(|hours| (1..=MAX_HOURS).contains(hours)).ok_or_else(|| {
            HttpError::bad_request(format!("invalid hours \"{}\"", self.hours))
                .hint(format!("hours must be a whole number from 1 to {MAX_HOURS}"))
        })
    }
}

/// Columns with one value per minute; `None` where a value is not known. For all queues together,
/// wait times and durations are those of the slowest queue.
#[derive(Default, Serialize, utoipa::ToSchema)]
pub(crate) struct ThroughputColumns {
    /// Start of each minute, in seconds since 1970.
    pub(crate) at: Vec<i64>,
    pub(crate) succeeded: Vec<Option<i64>>,
    pub(crate) failed: Vec<Option<i64>>,
    pub(crate) cancelled: Vec<Option<i64>>,
    pub(crate) wait_p50_seconds: Vec<Option<f64>>,
    pub(crate) wait_p95_seconds: Vec<Option<f64>>,
    pub(crate) duration_p50_seconds: Vec<Option<f64>>,
    pub(crate) duration_p95_seconds: Vec<Option<f64>>,
    /// Tasks waiting at the end of the minute.
    pub(crate) waiting: Vec<Option<i64>>,
    /// Whether `waiting` is a lower bound.
    pub(crate) waiting_at_least: Vec<bool>,
    /// Number of complete minutes that are loaded.
    pub(crate) minutes_read: i64,
}

impl ThroughputColumns {
    /// Builds the columns of one queue, or of all queues if `queue` is empty.
    pub(crate) fn of(
        throughput: &ThroughputCache,
        queue: &str,
        hours: i64,
        now: Timestamp,
    ) -> Self {
        let last = hours * HOUR_MINUTES;
        let mut by_minute: BTreeMap<Timestamp, Vec<MinuteStats>> = BTreeMap::new();
        let minutes = throughput.minutes(now, last).into_iter();
        for minute in minutes.filter(|it| queue.is_empty() || it.queue == queue) {
            by_minute.entry(minute.at).or_default().push(minute);
        }
        let known = throughput.complete(last_minutes(now, last));
        let mut columns =
            Self { minutes_read: throughput.read_minutes(now, last), ..Self::default() };
        for (at, known) in last_minutes(now, last).zip(known) {
            let queues = by_minute.get(&at).map_or(&[][..], Vec::as_slice);
            let sum = |part: fn(&MinuteStats) -> i64| known.then(|| queues.iter().map(part).sum());
            let slowest = |part: fn(&MinuteStats) -> Option<f64>| {
                queues.iter().filter_map(part).reduce(f64::max)
            };
            columns.at.push(at.as_second());
            columns.succeeded.push(sum(|it| it.succeeded));
            columns.failed.push(sum(|it| it.failed));
            columns.cancelled.push(sum(|it| it.cancelled));
            columns.wait_p50_seconds.push(slowest(|it| it.wait_seconds.map(|[p50, _]| p50)));
            columns.wait_p95_seconds.push(slowest(|it| it.wait_seconds.map(|[_, p95]| p95)));
            columns
                .duration_p50_seconds
                .push(slowest(|it| it.duration_seconds.map(|[p50, _]| p50)));
            columns
                .duration_p95_seconds
                .push(slowest(|it| it.duration_seconds.map(|[_, p95]| p95)));
        }
        for point in throughput.backlog(&BacklogQuery { queue, now, last }) {
            columns.waiting.push(point.map(|it| it.tasks));
            columns.waiting_at_least.push(point.is_some_and(|it| it.at_least));
        }
        columns
    }

    /// Returns the rows of the data table, newest first.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let span = self.at.len().div_ceil(ROWS).max(1);
        let starts = (0..self.at.len()).step_by(span);
        starts.map(|first| self.row(first, (first + span).min(self.at.len()))).rev().collect()
    }

    fn row(&self, first: usize, end: usize) -> Row {
        let sum = |column: &[Option<i64>]| -> Option<i64> {
            let mut known = column[first..end].iter().flatten().peekable();
            known.peek()?;
            Some(known.sum())
        };
        let max_of =
            |column: &[Option<f64>]| column[first..end].iter().flatten().copied().reduce(f64::max);
        Row {
            from: Timestamp::from_second(self.at[first]).unwrap_or_default(),
            succeeded: sum(&self.succeeded),
            failed: sum(&self.failed),
            waiting: self.waiting[end - 1],
            at_least: self.waiting_at_least[end - 1],
            wait_p95_seconds: max_of(&self.wait_p95_seconds),
            duration_p95_seconds: max_of(&self.duration_p95_seconds),
        }
    }
}

/// Consecutive minutes, aggregated for the data table.
pub(crate) struct Row {
    pub(crate) from: Timestamp,
    /// Attempts that succeeded in these minutes.
    pub(crate) succeeded: Option<i64>,
    pub(crate) failed: Option<i64>,
    /// Tasks waiting at the end of the last minute.
    pub(crate) waiting: Option<i64>,
    pub(crate) at_least: bool,
    /// Maximum over the minutes.
    pub(crate) wait_p95_seconds: Option<f64>,
    pub(crate) duration_p95_seconds: Option<f64>,
}

impl Row {
    /// Returns the counts of succeeded, failed and waiting as text; a dash where a count is not
    /// known.
    pub(crate) fn counts(&self) -> [String; 3] {
        let shown = |number: Option<i64>, more: bool| {
            number.map_or_else(|| "–".to_owned(), |number| crate::page::format::count(number, more))
        };
        [
            shown(self.succeeded, false),
            shown(self.failed, false),
            shown(self.waiting, self.at_least),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_whole_and_bounded() {
        let asked = |hours: &str| {
            PlotParams { hours: hours.to_owned(), ..PlotParams::default() }.hours().ok()
        };
        assert_eq!(
            ["", "1", "6", "0", "7", "1.5", "all"].map(asked),
            [Some(1), Some(1), Some(6), None, None, None, None]
        );
    }

    #[test]
    fn the_table_aggregates_all_minutes_into_few_rows() {
        let now: Timestamp = "2026-12-01T03:00:30Z".parse().unwrap();
        let columns = ThroughputColumns {
            at: last_minutes(now, 60).map(Timestamp::as_second).collect(),
            succeeded: (0..60).map(|minute| (minute >= 10).then_some(1)).collect(),
            failed: vec![Some(0); 60],
            waiting: (0..60).map(Some).collect(),
            waiting_at_least: vec![false; 60],
            wait_p95_seconds: (0..60).map(|minute| Some(f64::from(minute))).collect(),
            duration_p95_seconds: vec![None; 60],
            ..ThroughputColumns::default()
        };
        let rows = columns.rows();
        let succeeded: Vec<Option<i64>> = rows.iter().map(|row| row.succeeded).collect();
        assert_eq!(succeeded, [&[Some(5); 10][..], &[None; 2]].concat());
        assert_eq!((rows[0].waiting, rows[0].wait_p95_seconds), (Some(59), Some(59.0)));
        assert_eq!(rows[0].from, "2026-12-01T02:56:00Z".parse().unwrap());
        assert_eq!(rows[0].duration_p95_seconds, None);
    }
}
