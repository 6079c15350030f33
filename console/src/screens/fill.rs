//! What each queue and priority has, put together from lanes, settings, workers and the last hour.

use std::collections::BTreeMap;
use std::fmt::Write;

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use queue::insight::lanes::{self, Kind, Lane, QueueSetting};
use queue::insight::tally::Minute;
use queue::roster::{self, Worker};
use queue::{Priority, QueueError};
use serde::Serialize;

use crate::page::Markup;
use crate::tally::KEPT_MINUTES;

/// The rate now is that of so many minutes that are over.
const RATE_MINUTES: i64 = 5;

/// A number of tasks, and whether there are more than were counted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Count {
    pub(crate) count: i64,
    pub(crate) more: bool,
}

impl Count {
    fn add(&mut self, lane: &Lane) {
        self.count += lane.count;
        self.more |= lane.more;
    }

    pub(crate) fn shown(&self) -> String {
        crate::words::count(self.count, self.more)
    }
}

/// A queue.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct QueueFill {
    pub(crate) queue: String,
    pub(crate) pending: Count,
    pub(crate) running: Count,
    pub(crate) scheduled: Count,
    pub(crate) blocked: Count,
    /// Seconds since the task that is claimed next was due.
    pub(crate) oldest_seconds: Option<f64>,
    pub(crate) longest_running_seconds: Option<f64>,
    /// Readers of live workers that serve it, also others.
    pub(crate) readers: i64,
    pub(crate) set: QueueSetting,
    pub(crate) hour: Hour,
    /// At the rate of the last minutes, if nothing is added.
    pub(crate) empty_in_seconds: Option<f64>,
}

/// Attempts of the last hour.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hour {
    pub(crate) succeeded: i64,
    pub(crate) failed: i64,
    /// Ended in a second, over the last minutes.
    pub(crate) per_second: f64,
    #[serde(skip)]
    minutes: Vec<[i64; 2]>,
}

impl Default for Hour {
    fn default() -> Self {
        let minutes = vec![[0; 2]; usize::try_from(KEPT_MINUTES).unwrap_or(0)];
        Self { succeeded: 0, failed: 0, per_second: 0.0, minutes }
    }
}

impl Hour {
    /// Sums up minutes.
    pub(crate) fn of<'a>(minutes: impl Iterator<Item = &'a Minute>, now: Timestamp) -> Self {
        let mut hour = Self::default();
        let mut recent = 0;
        for minute in minutes {
            let ago = (now.as_second() - minute.at.as_second()).div_euclid(60);
            if (1..=RATE_MINUTES).contains(&ago) {
                recent += minute.succeeded + minute.failed + minute.cancelled;
            }
            if (0..KEPT_MINUTES).contains(&ago) {
                hour.succeeded += minute.succeeded;
                hour.failed += minute.failed;
                let place = usize::try_from(KEPT_MINUTES - 1 - ago).unwrap_or(0);
                hour.minutes[place][0] += minute.succeeded;
                hour.minutes[place][1] += minute.failed;
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let per_second = recent as f64 / (RATE_MINUTES * 60) as f64;
        Self { per_second, ..hour }
    }

    /// A bar for each minute: what succeeded, and on top of it what failed.
    pub(crate) fn spark(&self) -> Markup {
        let most = self.minutes.iter().map(|[good, bad]| good + bad).max().unwrap_or(0).max(1);
        let height = |count: i64| if count == 0 { 0 } else { (count * 24 / most).max(1) };
        let mut svg = format!(
            "<svg class=\"spark\" viewBox=\"0 0 180 25\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"last hour: {} succeeded, {} failed\">",
            self.succeeded, self.failed
        );
        for (minute, [good, bad]) in self.minutes.iter().enumerate() {
            let (good, bad) = (height(*good), height(*bad));
            for (class, height, top) in [("ok", good, 25 - good), ("bad", bad, 25 - good - bad)] {
                if height > 0 {
                    let _ = write!(
                        svg,
                        "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"2\" height=\"{height}\"/>",
                        minute * 3,
                        top.max(0),
                    );
                }
            }
        }
        svg.push_str("</svg>");
        Markup(svg)
    }
}

/// A priority.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PriorityFill {
    pub(crate) priority: Priority,
    pub(crate) pending: Count,
    pub(crate) running: Count,
    pub(crate) oldest_seconds: Option<f64>,
}

/// Everything at once.
pub(crate) struct Fleet {
    pub(crate) workers: Vec<Worker>,
    pub(crate) minutes: Vec<Minute>,
    pub(crate) now: Timestamp,
    lanes: Vec<Lane>,
    settings: Vec<QueueSetting>,
}

impl Fleet {
    pub(crate) async fn look(
        look: &Transaction<'_>,
        minutes: Vec<Minute>,
        now: Timestamp,
    ) -> Result<Self, QueueError> {
        Ok(Self {
            workers: roster::workers(&**look).await?,
            minutes,
            now,
            lanes: lanes::lanes(&**look).await?,
            settings: lanes::queue_settings(&**look).await?,
        })
    }

    /// Every queue that has live tasks, a setting, or attempts in the last hour; by name.
    pub(crate) fn queues(&self) -> Vec<QueueFill> {
        let mut queues: BTreeMap<String, QueueFill> = BTreeMap::new();
        for lane in &self.lanes {
            let fill = queues.entry(lane.queue.clone()).or_default();
            match lane.kind {
                Kind::Pending => {
                    fill.pending.add(lane);
                    fill.oldest_seconds = longest(fill.oldest_seconds, lane.age_seconds);
                }
                Kind::Running => {
                    fill.running.add(lane);
                    let longest = longest(fill.longest_running_seconds, lane.age_seconds);
                    fill.longest_running_seconds = longest;
                }
                Kind::Scheduled => fill.scheduled.add(lane),
                Kind::Blocked => fill.blocked.add(lane),
            }
        }
        for set in &self.settings {
            queues.entry(set.queue.clone()).or_default().set = set.clone();
        }
        for minute in &self.minutes {
            queues.entry(minute.queue.clone()).or_default();
        }
        queues.into_iter().map(|(name, fill)| self.filled(name, fill)).collect()
    }

    fn filled(&self, queue: String, fill: QueueFill) -> QueueFill {
        let hour = Hour::of(self.minutes.iter().filter(|it| it.queue == queue), self.now);
        let serving = self.workers.iter().filter(|it| it.serves(&queue) && !it.draining);
        let readers = serving.map(|it| i64::from(it.readers)).sum();
        #[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
        let empty_in_seconds =
            (fill.pending.count > 0 && hour.per_second > 0.0 && !fill.set.paused)
                .then(|| fill.pending.count as f64 / hour.per_second);
        QueueFill { queue, readers, hour, empty_in_seconds, ..fill }
    }

    /// Every priority, highest first.
    pub(crate) fn priorities(&self) -> Vec<PriorityFill> {
        let fill = |priority: &Priority| {
            let (mut pending, mut running) = (Count::default(), Count::default());
            let mut oldest_seconds = None;
            for lane in self.lanes.iter().filter(|lane| lane.priority == *priority) {
                match lane.kind {
                    Kind::Pending => {
                        pending.add(lane);
                        oldest_seconds = longest(oldest_seconds, lane.age_seconds);
                    }
                    Kind::Running => running.add(lane),
                    Kind::Scheduled | Kind::Blocked => {}
                }
            }
            PriorityFill { priority: *priority, pending, running, oldest_seconds }
        };
        Priority::ALL.iter().rev().map(fill).collect()
    }

    /// Busy readers of live workers, and all of them.
    pub(crate) fn readers(&self) -> (i64, i64) {
        let alive = self.workers.iter().filter(|worker| worker.alive);
        alive.fold((0, 0), |(busy, all), worker| {
            let readers = i64::from(worker.readers);
            (busy + worker.running.min(readers), all + readers)
        })
    }
}

fn longest(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}
