//! Statistics of each queue and priority, combined from lanes, settings, workers and the last hour.

use queue::Priority;
use queue::insight::lanes::{self, LaneCount, LaneState, QueueSetting};
use queue::insight::throughput::MinuteStats;
use queue::workers::{self, Worker};

use crate::page::read_request::PageRead;
use crate::screens::prelude::*;
use crate::throughput::cache::ThroughputCache;
use crate::throughput::minutes::HOUR_MINUTES;

/// Number of closed minutes from which the current rates are computed.
const RATE_MINUTES: i64 = 5;

/// A number of tasks; `more` if counting stopped at its limit.
#[derive(Clone, Copy, Debug, Default, Serialize, utoipa::ToSchema)]
pub(crate) struct Count {
    pub(crate) count: i64,
    pub(crate) more: bool,
}

impl Count {
    fn add(&mut self, lane: &LaneCount) {
        self.count += lane.count;
        self.more |= lane.more;
    }

    pub(crate) fn display(&self) -> String {
        format::count(self.count, self.more)
    }
}

/// Statistics of a queue.
#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
pub(crate) struct QueueStats {
    pub(crate) queue: String,
    pub(crate) pending: Count,
    pub(crate) running: Count,
    pub(crate) scheduled: Count,
    pub(crate) blocked: Count,
    /// Seconds since the next task to claim became due.
    pub(crate) oldest_seconds: Option<f64>,
    pub(crate) longest_running_seconds: Option<f64>,
    /// Number of readers of live workers that serve this queue. These workers may serve other
    /// queues, too.
    pub(crate) readers: i64,
    pub(crate) settings: QueueSetting,
    pub(crate) hour: LastHour,
    /// Estimated seconds until the queue is empty, at the arrival and completion rates of the last
    /// minutes. If counting stopped at its limit: a lower bound that assumes no arrivals.
    pub(crate) time_to_empty_seconds: Option<f64>,
    /// Growth in tasks per minute over the last minutes; `None` unless the backlog grows.
    pub(crate) growth_per_minute: Option<f64>,
}

impl QueueStats {
    /// Returns whether the queue has pending tasks that no worker claims.
    pub(crate) fn unserved(&self, workers: &[Worker]) -> bool {
        let claims = |worker: &Worker| worker.serves(&self.queue) && !worker.draining;
        self.pending.count > 0 && !self.settings.stopped() && !workers.iter().any(claims)
    }
}

/// Attempts of the last hour.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct LastHour {
    pub(crate) succeeded: i64,
    pub(crate) failed: i64,
    /// Attempts finished per second, over the last minutes; `None` until these minutes have been
    /// read.
    pub(crate) per_second: Option<f64>,
    /// The first minute in which an attempt failed.
    #[serde(skip)]
    pub(crate) failing_since: Option<Timestamp>,
    #[serde(skip)]
    minutes: Vec<[i64; 2]>,
}

impl Default for LastHour {
    fn default() -> Self {
        let minutes = vec![[0; 2]; usize::try_from(HOUR_MINUTES).unwrap_or(0)];
        Self { succeeded: 0, failed: 0, per_second: None, failing_since: None, minutes }
    }
}

impl LastHour {
    /// Aggregates minutes. `known` tells whether all attempts of the last [`RATE_MINUTES`] are among
    /// them.
    pub(crate) fn of<'a>(
        minutes: impl IntoIterator<Item = &'a MinuteStats>,
        now: Timestamp,
        known: bool,
    ) -> Self {
        let mut hour = Self::default();
        let mut recent = 0;
        for minute in minutes {
            let ago = (now.as_second() - minute.at.as_second()).div_euclid(60);
            if (1..=RATE_MINUTES).contains(&ago) {
                recent += minute.succeeded + minute.failed + minute.cancelled;
            }
            if (0..HOUR_MINUTES).contains(&ago) {
                hour.succeeded += minute.succeeded;
                hour.failed += minute.failed;
                let place = usize::try_from(HOUR_MINUTES - 1 - ago).unwrap_or(0);
                hour.minutes[place][0] += minute.succeeded;
                hour.minutes[place][1] += minute.failed;
                if minute.failed > 0 {
                    let first = hour.failing_since.map_or(minute.at, |at| at.min(minute.at));
                    hour.failing_since = Some(first);
                }
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "displayed rounded")]
        let per_second = recent as f64 / (RATE_MINUTES * 60) as f64;
        Self { per_second: known.then_some(per_second), ..hour }
    }

    /// Formats the rate; a dash while it is unknown.
    pub(crate) fn rate(&self) -> String {
        self.per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}"))
    }

    /// Returns a bar per minute, of succeeded attempts with failed attempts on top: class, left end, top
    /// and height of each part.
    pub(crate) fn bars(&self) -> Vec<(&'static str, usize, i64, i64)> {
        let max = self.minutes.iter().map(|[good, bad]| good + bad).max().unwrap_or(0).max(1);
        let height = |count: i64| if count == 0 { 0 } else { (count * 24 / max).max(1) };
        let parts = self.minutes.iter().enumerate().flat_map(|(minute, [good, bad])| {
            let (good, bad) = (height(*good), height(*bad));
            let top = (25 - good - bad).max(0);
            [("ok", minute * 3, 25 - good, good), ("bad", minute * 3, top, bad)]
        });
        parts.filter(|(.., height)| *height > 0).collect()
    }
}

/// Statistics of a priority.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct PriorityStats {
    pub(crate) priority: Priority,
    pub(crate) pending: Count,
    pub(crate) running: Count,
    pub(crate) oldest_seconds: Option<f64>,
}

/// State of the fleet at one time.
pub(crate) struct FleetSnapshot {
    pub(crate) workers: Vec<Worker>,
    pub(crate) minutes: Vec<MinuteStats>,
    pub(crate) now: Timestamp,
    /// Whether the last [`RATE_MINUTES`] are known.
    rates_known: bool,
    lanes: Vec<LaneCount>,
    settings: Vec<QueueSetting>,
    /// Backlog growth of each queue in tasks per minute; negative if it shrinks.
    growth: BTreeMap<String, f64>,
}

impl FleetSnapshot {
    /// Reads the state of the fleet for a page.
    pub(crate) async fn of(read: &PageRead<'_>) -> Result<Self, QueueError> {
        Self::read(&read.tx, &read.context.app.throughput, read.viewer.now).await
    }

    /// Like [`Self::of`]; after an idle time, waits for a moment until the rates are known.
    pub(crate) async fn read_with_rates(
        tx: &Transaction<'_>,
        throughput: &ThroughputCache,
        now: Timestamp,
    ) -> Result<Self, QueueError> {
        throughput.until_known(now, RATE_MINUTES).await;
        Self::read(tx, throughput, now).await
    }

    async fn read(
        tx: &Transaction<'_>,
        throughput: &ThroughputCache,
        now: Timestamp,
    ) -> Result<Self, QueueError> {
        let rates_known = throughput.knows(now, RATE_MINUTES);
        Ok(Self {
            workers: workers::workers(tx).await?,
            minutes: throughput.minutes(now, HOUR_MINUTES),
            now,
            lanes: lanes::lanes(tx).await?,
            settings: lanes::queue_settings(tx).await?,
            growth: if rates_known {
                throughput.growth(now, RATE_MINUTES)
            } else {
                BTreeMap::new()
            },
            rates_known,
        })
    }

    /// Returns the attempts of the last hour of all queues.
    pub(crate) fn hour(&self) -> LastHour {
        LastHour::of(&self.minutes, self.now, self.rates_known)
    }

    /// Returns every queue with live tasks, a setting, or attempts in the last hour, by name.
    pub(crate) fn queues(&self) -> Vec<QueueStats> {
        let mut queues: BTreeMap<String, QueueStats> = BTreeMap::new();
        for lane in &self.lanes {
            let stats = queues.entry(lane.queue.clone()).or_default();
            match lane.state {
                LaneState::Pending => {
                    stats.pending.add(lane);
                    stats.oldest_seconds = longest(stats.oldest_seconds, lane.age_seconds);
                }
                LaneState::Running => {
                    stats.running.add(lane);
                    let longest = longest(stats.longest_running_seconds, lane.age_seconds);
                    stats.longest_running_seconds = longest;
                }
                LaneState::Scheduled => stats.scheduled.add(lane),
                LaneState::Blocked => stats.blocked.add(lane),
            }
        }
        for set in &self.settings {
            queues.entry(set.queue.clone()).or_default().settings = set.clone();
        }
        let mut minutes: BTreeMap<&str, Vec<&MinuteStats>> = BTreeMap::new();
        for minute in &self.minutes {
            minutes.entry(&minute.queue).or_default().push(minute);
            if !queues.contains_key(&minute.queue) {
                queues.insert(minute.queue.clone(), QueueStats::default());
            }
        }
        let with_rates = |(name, stats): (String, QueueStats)| {
            let minutes = minutes.remove(name.as_str()).unwrap_or_default();
            self.with_rates(name, stats, minutes)
        };
        queues.into_iter().map(with_rates).collect()
    }

    fn with_rates(
        &self,
        queue: String,
        stats: QueueStats,
        minutes: Vec<&MinuteStats>,
    ) -> QueueStats {
        let hour = LastHour::of(minutes, self.now, self.rates_known);
        let serving = self.workers.iter().filter(|it| it.serves(&queue) && !it.draining);
        let readers = serving.map(|it| i64::from(it.readers)).sum();
        let growth = self.growth.get(&queue).copied();
        let time_to_empty_seconds = time_to_empty(&stats, hour.per_second, growth);
        let growth_per_minute = growth.filter(|growth| *growth > 0.0);
        QueueStats { queue, readers, hour, time_to_empty_seconds, growth_per_minute, ..stats }
    }

    /// Returns every priority, highest first.
    pub(crate) fn priorities(&self) -> Vec<PriorityStats> {
        let stats = |priority: &Priority| {
            let (mut pending, mut running) = (Count::default(), Count::default());
            let mut oldest_seconds = None;
            for lane in self.lanes.iter().filter(|lane| lane.priority == *priority) {
                match lane.state {
                    LaneState::Pending => {
                        pending.add(lane);
                        oldest_seconds = longest(oldest_seconds, lane.age_seconds);
                    }
                    LaneState::Running => running.add(lane),
                    LaneState::Scheduled | LaneState::Blocked => {}
                }
            }
            PriorityStats { priority: *priority, pending, running, oldest_seconds }
        };
        Priority::ALL.iter().rev().map(stats).collect()
    }

    /// Returns the number of busy readers and of all readers of live workers.
    pub(crate) fn readers(&self) -> (i64, i64) {
        let alive = self.workers.iter().filter(|worker| worker.alive);
        alive.fold((0, 0), |(busy, all), worker| {
            let readers = i64::from(worker.readers);
            (busy + worker.running.min(readers), all + readers)
        })
    }
}

/// Returns the seconds until no task waits, given `per_second` finished attempts and a growth per
/// minute, as far as they are known. `None` if the queue does not shrink or the time is unknown.
fn time_to_empty(stats: &QueueStats, per_second: Option<f64>, growth: Option<f64>) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "an estimate, displayed rounded")]
    let waits = (stats.pending.count + stats.blocked.count) as f64;
    // The growth is usable only if the counts are exact.
    let known = growth.filter(|_| !stats.pending.more && !stats.blocked.more);
    let rate = known.map(|growth| -growth / 60.0).or(per_second)?;
    (stats.pending.count > 0 && !stats.settings.stopped() && rate > 0.0).then(|| waits / rate)
}

fn longest(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(pending: i64, more: bool) -> QueueStats {
        QueueStats { pending: Count { count: pending, more }, ..QueueStats::default() }
    }

    #[test]
    fn time_to_empty_follows_from_backlog_and_growth() {
        assert_eq!(time_to_empty(&stats(600, false), Some(2.0), Some(-60.0)), Some(600.0));
        // Arrivals equal or exceed completions.
        assert_eq!(time_to_empty(&stats(600, false), Some(2.0), Some(0.0)), None);
        assert_eq!(time_to_empty(&stats(600, false), Some(2.0), Some(60.0)), None);
        // Unknown arrivals.
        assert_eq!(time_to_empty(&stats(600, false), Some(2.0), None), Some(300.0));
        assert_eq!(time_to_empty(&stats(10_000, true), Some(2.0), Some(-1.0)), Some(5000.0));
        assert_eq!(time_to_empty(&stats(0, false), Some(2.0), Some(-60.0)), None);
        assert_eq!(time_to_empty(&stats(600, false), None, None), None, "nothing is known yet");
        let paused = QueueSetting { paused: true, ..QueueSetting::default() };
        let paused = QueueStats { settings: paused, ..stats(600, false) };
        assert_eq!(time_to_empty(&paused, Some(2.0), Some(-60.0)), None);
    }
}
