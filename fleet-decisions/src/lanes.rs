//! State of the lanes as the claimer knows it: which lanes have work, up to which id each lane has
//! been read, and which claims the next round makes. Pure.
//!
//! The watermarks are hints. A wrong watermark never makes a claim unsafe, and a sweep finds the
//! tasks that it leaves out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use queue::claim::{Lane, LaneRange};
use queue::{Priority, TaskId};
use rand::Rng;

use crate::batch_size::MAX_CHAIN;
use crate::timing::{MIN_SWEEP_INTERVAL, SWEEP_INTERVAL};
use crate::weights::{Weights, draw, permute};

/// Sweeps take at most this fraction of the time, one part in 20. An old snapshot keeps many dead
/// index entries, which make a sweep slow; sweeps then become less frequent.
const SWEEP_TIME_DIVISOR: u32 = 20;
/// Time after which a lane without work is removed.
const LANE_TTL: Duration = Duration::from_secs(60);
/// Maximum number of rows of one claim. With more rows, the first reader would wait too long until
/// the tasks for the last reader are claimed.
const MAX_CLAIM_ROWS: usize = 200;
/// Maximum number of lanes that a claim may fall back to if the drawn lanes have too few tasks.
const MAX_FALLBACK_LANES: usize = 50;

/// The lanes that one claimer knows.
#[derive(Debug, Default)]
pub struct Lanes {
    /// Ordered, so that the same random numbers give the same claims.
    seen: BTreeMap<Lane, LaneState>,
    swept_at: Option<Instant>,
    sweep_duration: Duration,
}

#[derive(Debug)]
struct LaneState {
    watermark: TaskId,
    /// Time budget of the shared commits of the lane's queue.
    shared_commit_budget: Option<Duration>,
    /// Whether the lane had a pending task at the last check.
    has_work: bool,
    at: Instant,
}

/// A claim of `tasks` tasks for `readers` readers.
#[derive(Debug)]
pub struct ClaimRequest {
    /// Number of readers.
    pub readers: usize,
    /// Number of tasks, at least one for each reader.
    pub tasks: usize,
    /// The parts of lanes to claim from, in this order.
    pub ranges: Vec<LaneRange>,
    /// Whether to read each lane from the beginning.
    pub sweep: bool,
}

/// Parameters of a round of claims.
#[derive(Debug)]
pub struct ClaimRound<'a> {
    /// Number of idle readers.
    pub readers: usize,
    /// Profile of these readers.
    pub run_as: &'a str,
    /// If set, claims tasks of this priority only.
    pub only: Option<Priority>,
    /// Whether to read each lane from the beginning.
    pub sweep: bool,
    /// Weights of the priorities.
    pub weights: &'a Weights,
}

impl Lanes {
    /// Returns whether a sweep is due.
    #[must_use]
    pub fn sweep_due(&self, now: Instant) -> bool {
        self.interval_elapsed(SWEEP_INTERVAL, now)
    }

    /// Returns whether a claim that returned fewer tasks than requested may sweep.
    #[must_use]
    pub fn sweep_allowed(&self, now: Instant) -> bool {
        self.interval_elapsed(MIN_SWEEP_INTERVAL, now)
    }

    fn interval_elapsed(&self, min_interval: Duration, now: Instant) -> bool {
        let rest = min_interval.max(self.sweep_duration * SWEEP_TIME_DIVISOR);
        self.swept_at.is_none_or(|at| now.saturating_duration_since(at) >= rest)
    }

    /// Ends a sweep and records its duration.
    pub fn end_sweep(&mut self, now: Instant) {
        let took = self.swept_at.map(|at| now.saturating_duration_since(at));
        self.sweep_duration = took.unwrap_or_default();
    }

    /// Marks all lanes as possibly having tasks, after a notification.
    pub fn mark_all_nonempty(&mut self) {
        for seen in self.seen.values_mut() {
            seen.has_work = true;
        }
    }

    /// Begins a sweep.
    pub fn begin_sweep(&mut self, now: Instant) {
        self.swept_at = Some(now);
    }

    /// Sets the lanes that have work now. Removes lanes that had no work for a minute.
    pub fn set_nonempty(&mut self, lanes: Vec<(Lane, Option<Duration>)>, at: Instant) {
        for seen in self.seen.values_mut() {
            seen.has_work = false;
        }
        for (lane, shared) in lanes {
            let unread = LaneState {
                watermark: TaskId(0),
                shared_commit_budget: shared,
                has_work: true,
                at,
            };
            let seen = self.seen.entry(lane).or_insert(unread);
            (seen.shared_commit_budget, seen.has_work, seen.at) = (shared, true, at);
        }
        self.seen.retain(|_, seen| at.saturating_duration_since(seen.at) < LANE_TTL);
    }

    /// Records a claim of task `id` from the lane.
    pub fn raise_watermark(&mut self, lane: Lane, id: TaskId, at: Instant) {
        let new = LaneState { watermark: id, shared_commit_budget: None, has_work: true, at };
        let seen = self.seen.entry(lane).or_insert(new);
        seen.watermark = seen.watermark.max(id);
        seen.at = at;
    }

    /// Lowers the watermark to the start of the lane. Called after a sweep found as many tasks as
    /// requested, because there may be more tasks near them; the next claims then continue from
    /// these tasks. If the watermark only rose, the remaining tasks would wait for the next sweeps,
    /// and sweeps are too rare for all tasks of a transaction that commits late.
    pub fn reset_watermark(&mut self, lane: &Lane) {
        if let Some(seen) = self.seen.get_mut(lane) {
            seen.watermark = TaskId(0);
        }
    }

    /// Marks the lanes of a claim as empty, after it returned fewer tasks than requested.
    pub fn mark_empty(&mut self, request: &ClaimRequest) {
        for range in &request.ranges {
            if let Some(seen) = self.seen.get_mut(&range.lane) {
                seen.has_work = false;
            }
        }
    }

    /// Returns the claims of one round. A weighted draw selects the lane of each reader. Readers
    /// that draw a queue of short tasks take `size_of` tasks each, in a separate claim.
    #[must_use]
    pub fn requests(
        &self,
        round: &ClaimRound<'_>,
        size_of: impl Fn(&str) -> usize,
        random: &mut impl Rng,
    ) -> Vec<ClaimRequest> {
        let wanted = |lane: &&Lane| {
            lane.run_as == round.run_as && round.only.is_none_or(|only| lane.priority == only)
        };
        let with_work = self.seen.iter().filter(|(_, seen)| seen.has_work).map(|(lane, _)| lane);
        let lanes: Vec<Lane> = with_work.filter(wanted).cloned().collect();
        let drawn = draw(&lanes, round.weights, round.readers, random);
        let size_of = |lane: &Lane| {
            let shared = self.shared_commit_budget(lane).is_some();
            size_of(&lane.queue).min(if shared { MAX_CLAIM_ROWS } else { MAX_CHAIN })
        };
        let mut alone = 0;
        let mut ranges = Vec::new();
        let mut sharing: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (lane, readers) in lanes.iter().zip(&drawn).filter(|(_, readers)| **readers > 0) {
            let size = size_of(lane);
            if size > 1 {
                let (of_queue, each) = sharing.entry(&lane.queue).or_default();
                (*of_queue, *each) = (*of_queue + readers, size);
            } else {
                alone += readers;
                ranges.push(self.range(lane, *readers, round.sweep));
            }
        }
        let mut requests = Vec::new();
        for (queue, (readers, size)) in sharing {
            let tasks = (readers * size).min(MAX_CLAIM_ROWS.max(readers));
            let own: Vec<Lane> = lanes.iter().filter(|lane| lane.queue == queue).cloned().collect();
            let drawn = draw(&own, round.weights, tasks, random);
            let mut ranges: Vec<LaneRange> = own
                .iter()
                .zip(drawn)
                .filter(|(_, tasks)| *tasks > 0)
                .map(|(lane, tasks)| self.range(lane, tasks, round.sweep))
                .collect();
            let rest = lanes_outside(own, &ranges);
            ranges.extend(self.fallback_ranges(rest, tasks, round, random));
            requests.push(ClaimRequest { readers, tasks, ranges, sweep: round.sweep });
        }
        if alone > 0 {
            let rest = lanes_outside(lanes, &ranges);
            ranges.extend(self.fallback_ranges(rest, alone, round, random));
            requests.push(ClaimRequest {
                readers: alone,
                tasks: alone,
                ranges,
                sweep: round.sweep,
            });
        }
        requests
    }

    /// Returns ranges of lanes that were not drawn. The claim uses them if the drawn lanes have too
    /// few tasks.
    fn fallback_ranges(
        &self,
        mut lanes: Vec<Lane>,
        limit: usize,
        round: &ClaimRound<'_>,
        random: &mut impl Rng,
    ) -> Vec<LaneRange> {
        permute(&mut lanes, round.weights, random);
        lanes
            .iter()
            .take(MAX_FALLBACK_LANES)
            .map(|lane| self.range(lane, limit, round.sweep))
            .collect()
    }

    fn range(&self, lane: &Lane, limit: usize, sweep: bool) -> LaneRange {
        let seen = self.seen.get(lane).filter(|_| !sweep);
        let after = seen.map_or(TaskId(0), |seen| seen.watermark);
        LaneRange { lane: lane.clone(), after, limit }
    }

    /// Returns the time budget of the shared commits of the lane's queue; `None` if each task
    /// commits alone.
    #[must_use]
    pub fn shared_commit_budget(&self, lane: &Lane) -> Option<Duration> {
        self.seen.get(lane).and_then(|seen| seen.shared_commit_budget)
    }
}

fn lanes_outside(mut lanes: Vec<Lane>, ranges: &[LaneRange]) -> Vec<Lane> {
    lanes.retain(|lane| ranges.iter().all(|range| range.lane != *lane));
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(queue: &str) -> Lane {
        Lane { queue: queue.to_owned(), priority: Priority::Normal, run_as: String::new() }
    }

    fn requests(lanes: &Lanes, readers: usize, sweep: bool, size: usize) -> Vec<ClaimRequest> {
        let weights = Weights::default();
        let round = ClaimRound { readers, run_as: "", only: None, sweep, weights: &weights };
        lanes.requests(&round, |_| size, &mut rand::rng())
    }

    fn requested(requests: &[ClaimRequest]) -> Vec<(&str, i64)> {
        let ranges = requests.iter().flat_map(|request| &request.ranges);
        let mut requested: Vec<_> =
            ranges.map(|range| (range.lane.queue.as_str(), range.after.0)).collect();
        requested.sort_unstable();
        requested
    }

    #[test]
    fn a_watermark_rises_and_a_sweep_reads_below_it() {
        let mut lanes = Lanes::default();
        lanes.raise_watermark(lane("a"), TaskId(7), Instant::now());
        lanes.raise_watermark(lane("a"), TaskId(3), Instant::now());
        assert_eq!(requested(&requests(&lanes, 1, false, 1)), [("a", 7)]);
        assert_eq!(requested(&requests(&lanes, 1, true, 1)), [("a", 0)]);
    }

    #[test]
    fn after_a_full_sweep_claims_continue_where_it_found_tasks() {
        let mut lanes = Lanes::default();
        lanes.raise_watermark(lane("a"), TaskId(900), Instant::now());
        lanes.raise_watermark(lane("b"), TaskId(800), Instant::now());
        lanes.reset_watermark(&lane("a"));
        lanes.raise_watermark(lane("a"), TaskId(16), Instant::now());
        assert_eq!(requested(&requests(&lanes, 1, false, 1)), [("a", 16), ("b", 800)]);
        assert!(requests(&lanes, 1, true, 1)[0].sweep);
    }

    #[test]
    fn a_sweep_brings_new_lanes_and_keeps_the_watermarks() {
        let mut lanes = Lanes::default();
        assert!(lanes.sweep_due(Instant::now()));
        lanes.begin_sweep(Instant::now());
        lanes.raise_watermark(lane("a"), TaskId(7), Instant::now());
        lanes.set_nonempty(vec![(lane("a"), None), (lane("b"), None)], Instant::now());
        assert!(!lanes.sweep_due(Instant::now()));
        assert_eq!(requested(&requests(&lanes, 1, false, 1)), [("a", 7), ("b", 0)]);
    }

    #[test]
    fn lanes_without_work_are_not_claimed_from() {
        let mut lanes = Lanes::default();
        lanes.set_nonempty(vec![(lane("a"), None), (lane("b"), None)], Instant::now());
        lanes.set_nonempty(vec![(lane("b"), None)], Instant::now());
        let round = requests(&lanes, 3, false, 1);
        assert_eq!(requested(&round), [("b", 0)]);
        lanes.mark_empty(&round[0]);
        assert!(requests(&lanes, 3, false, 1).is_empty());
        lanes.mark_all_nonempty();
        assert_eq!(requested(&requests(&lanes, 3, false, 1)), [("a", 0), ("b", 0)]);
    }

    #[test]
    fn every_reader_gets_one_claim_and_queues_of_short_tasks_are_claimed_separately() {
        let mut lanes = Lanes::default();
        lanes.set_nonempty(
            vec![(lane("a"), Some(Duration::from_millis(10))), (lane("b"), None)],
            Instant::now(),
        );
        for _ in 0..20 {
            let weights = Weights::default();
            let round =
                ClaimRound { readers: 8, run_as: "", only: None, sweep: false, weights: &weights };
            let size = |queue: &str| if queue == "a" { 5 } else { 1 };
            let round = lanes.requests(&round, size, &mut rand::rng());
            assert_eq!(round.iter().map(|request| request.readers).sum::<usize>(), 8);
            for request in round {
                let shares = request.ranges.iter().all(|range| range.lane.queue == "a");
                let size = if shares && request.ranges.len() == 1 { 5 } else { 1 };
                assert!(request.tasks == request.readers * size || request.ranges.len() == 2);
            }
        }
    }

    #[test]
    fn a_reader_takes_a_limited_number_of_tasks_of_a_queue_without_shared_commits() {
        let mut lanes = Lanes::default();
        lanes.set_nonempty(vec![(lane("a"), Some(Duration::from_millis(10)))], Instant::now());
        assert_eq!(requests(&lanes, 2, false, 50)[0].tasks, 100);
        lanes.set_nonempty(vec![(lane("a"), None)], Instant::now());
        assert_eq!(requests(&lanes, 2, false, 50)[0].tasks, 2 * MAX_CHAIN);
    }

    #[test]
    fn a_reserved_reader_claims_no_other_priority() {
        let mut lanes = Lanes::default();
        let reserved = Lane { priority: Priority::Reserved, ..lane("a") };
        lanes.set_nonempty(vec![(lane("a"), None), (reserved.clone(), None)], Instant::now());
        let weights = Weights::default();
        let only = Some(Priority::Reserved);
        let round = ClaimRound { readers: 2, run_as: "", only, sweep: false, weights: &weights };
        let requests = lanes.requests(&round, |_| 1, &mut rand::rng());
        let requested: Vec<&Lane> =
            requests.iter().flat_map(|request| &request.ranges).map(|range| &range.lane).collect();
        assert_eq!(requested, [&reserved]);
    }
}
