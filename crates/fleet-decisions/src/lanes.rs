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
use crate::weights::{Class, Weights, draw, others};

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

/// Maximum number of empty lanes in which a notification or a poll makes a worker look for tasks. With
/// more lanes, a sweep is cheaper, because it reads only lanes that have tasks.
const MAX_REVISITED_LANES: usize = MAX_FALLBACK_LANES;

/// The lanes that one claimer knows. The cost of a claim does not depend on their number.
#[derive(Debug, Default)]
pub struct Lanes {
    /// Ordered, so that the same random numbers give the same claims.
    seen: BTreeMap<Lane, LaneState>,
    /// The lanes that had a pending task at the last check, by profile and priority.
    with_work: BTreeMap<String, BTreeMap<Priority, Vec<Lane>>>,
    /// The lane after which the next sweep continues, if the last one has read a part of the lanes.
    next_after: Option<Lane>,
    /// Number of times that sweeps have read all lanes.
    rounds: u64,
    swept_at: Option<Instant>,
    sweep_duration: Duration,
}

#[derive(Debug)]
struct LaneState {
    watermark: TaskId,
    /// Time budget of the shared commits of the lane's queue.
    shared_commit_budget: Option<Duration>,
    /// Place among the lanes with work; `None` if the lane had no pending task at the last check.
    place: Option<usize>,
    /// [`Lanes::rounds`] at the last sweep that found a task in the lane; `None` before the first.
    found_in: Option<u64>,
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
    /// Returns whether a sweep is due. A sweep that has read a part of the lanes is continued soon.
    #[must_use]
    pub fn sweep_due(&self, now: Instant) -> bool {
        let interval = if self.next_after.is_some() { MIN_SWEEP_INTERVAL } else { SWEEP_INTERVAL };
        self.interval_elapsed(interval, now)
    }

    /// Returns the lane after which the next sweep begins; `None` for the first lane.
    #[must_use]
    pub fn next_after(&self) -> Option<&Lane> {
        self.next_after.as_ref()
    }

    /// Returns whether a claim that returned fewer tasks than requested may sweep. `notified`: the claim
    /// follows a notification of tasks, which may be in an unknown lane.
    #[must_use]
    pub fn sweep_allowed(&self, notified: bool, now: Instant) -> bool {
        self.interval_elapsed(if notified { Duration::ZERO } else { MIN_SWEEP_INTERVAL }, now)
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

    /// Marks all lanes as possibly having tasks, after a notification or before a poll. If many lanes are
    /// empty, leaves them to the next sweep, which follows if a claim finds too few tasks in the other lanes.
    pub fn mark_all_nonempty(&mut self) {
        let with_work: usize =
            self.with_work.values().flat_map(BTreeMap::values).map(Vec::len).sum();
        if self.seen.len() - with_work <= MAX_REVISITED_LANES {
            let empty = self.seen.iter().filter(|(_, seen)| seen.place.is_none());
            let empty: Vec<_> = empty.map(|(lane, seen)| (lane.clone(), seen.at)).collect();
            for (lane, at) in empty {
                self.add_work(lane, at);
            }
        }
    }

    /// Returns the known lanes, unless they are so many that a claim does not look at all of them.
    #[must_use]
    pub fn watchable(&self) -> Vec<&Lane> {
        if self.seen.len() > MAX_REVISITED_LANES { Vec::new() } else { self.seen.keys().collect() }
    }

    /// Begins a sweep.
    pub fn begin_sweep(&mut self, now: Instant) {
        self.swept_at = Some(now);
    }

    /// Records the lanes that have work now, as a sweep that began after [`Lanes::next_after`] has
    /// found them. `next_after`: the lane up to which the sweep has read; `None` if it has read all.
    /// In that case, marks the lanes that were not found as empty, and removes lanes that had no
    /// work for a minute.
    pub fn set_nonempty(
        &mut self,
        lanes: Vec<(Lane, Option<Duration>)>,
        next_after: Option<Lane>,
        at: Instant,
    ) {
        let round = Some(self.rounds);
        for (lane, shared) in lanes {
            let seen = self.add_work(lane, at);
            (seen.shared_commit_budget, seen.found_in, seen.at) = (shared, round, at);
        }
        self.next_after = next_after;
        if self.next_after.is_none() {
            let missed = self.seen.iter().filter(|(_, seen)| seen.found_in != round);
            let missed: Vec<Lane> = missed.map(|(lane, _)| lane.clone()).collect();
            missed.iter().for_each(|lane| self.remove_work(lane));
            self.seen.retain(|_, seen| {
                seen.place.is_some() || at.saturating_duration_since(seen.at) < LANE_TTL
            });
            self.rounds += 1;
        }
    }

    /// Marks the lane as having work.
    fn add_work(&mut self, lane: Lane, at: Instant) -> &mut LaneState {
        let of_profile = self.with_work.entry(lane.run_as.clone()).or_default();
        let members = of_profile.entry(lane.priority).or_default();
        let new = LaneState {
            watermark: TaskId(0),
            shared_commit_budget: None,
            place: None,
            found_in: None,
            at,
        };
        let seen = self.seen.entry(lane.clone()).or_insert(new);
        if seen.place.is_none() {
            seen.place = Some(members.len());
            members.push(lane);
        }
        seen
    }

    /// Marks the lane as empty.
    fn remove_work(&mut self, lane: &Lane) {
        let place = self.seen.get_mut(lane).and_then(|seen| seen.place.take());
        let of_profile = self.with_work.get_mut(&lane.run_as);
        let members = of_profile.and_then(|priorities| priorities.get_mut(&lane.priority));
        let (Some(place), Some(members)) = (place, members) else { return };
        members.swap_remove(place);
        if let Some(seen) = members.get(place).and_then(|moved| self.seen.get_mut(moved)) {
            seen.place = Some(place);
        }
    }

    /// Records a claim of task `id` from the lane.
    pub fn raise_watermark(&mut self, lane: Lane, id: TaskId, at: Instant) {
        let seen = match self.seen.get_mut(&lane) {
            Some(seen) => seen,
            None => self.add_work(lane, at),
        };
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
        request.ranges.iter().for_each(|range| self.remove_work(&range.lane));
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
        let of_profile = self.with_work.get(round.run_as).into_iter().flatten();
        let classes: Vec<Class<'_>> = of_profile
            .filter(|(priority, lanes)| {
                !lanes.is_empty() && round.only.is_none_or(|only| **priority == only)
            })
            .map(|(priority, lanes)| (*priority, &lanes[..]))
            .collect();
        let size_of = |lane: &Lane| {
            let shared = self.shared_commit_budget(lane).is_some();
            size_of(&lane.queue).min(if shared { MAX_CLAIM_ROWS } else { MAX_CHAIN })
        };
        let mut alone = BTreeMap::new();
        let mut sharing: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (lane, readers) in draw(&classes, round.weights, round.readers, random) {
            let size = size_of(lane);
            if size > 1 {
                let (of_queue, each) = sharing.entry(&lane.queue).or_default();
                (*of_queue, *each) = (*of_queue + readers, size);
            } else {
                alone.insert(lane, readers);
            }
        }
        let mut requests = Vec::new();
        for (queue, (readers, size)) in sharing {
            let tasks = (readers * size).min(MAX_CLAIM_ROWS.max(readers));
            let own: Vec<&Lane> = classes
                .iter()
                .filter_map(|(priority, _)| self.with_work(queue, *priority, round))
                .collect();
            let own: Vec<Class<'_>> =
                own.iter().map(|lane| (lane.priority, std::slice::from_ref(*lane))).collect();
            let drawn = draw(&own, round.weights, tasks, random);
            requests.push(self.request(round, (&own, &drawn), (readers, tasks), random));
        }
        if !alone.is_empty() {
            let readers = alone.values().sum();
            requests.push(self.request(round, (&classes, &alone), (readers, readers), random));
        }
        requests
    }

    /// Returns the lane of the queue, if it has work.
    fn with_work(&self, queue: &str, priority: Priority, round: &ClaimRound<'_>) -> Option<&Lane> {
        let lane = Lane { queue: queue.to_owned(), priority, run_as: round.run_as.to_owned() };
        self.seen
            .get_key_value(&lane)
            .filter(|(_, seen)| seen.place.is_some())
            .map(|(lane, _)| lane)
    }

    /// Returns a claim from the drawn lanes, and from some others in case that these have too few
    /// tasks.
    fn request(
        &self,
        round: &ClaimRound<'_>,
        (classes, drawn): (&[Class<'_>], &BTreeMap<&Lane, usize>),
        (readers, tasks): (usize, usize),
        random: &mut impl Rng,
    ) -> ClaimRequest {
        let others = others(classes, round.weights, drawn, MAX_FALLBACK_LANES, random);
        let drawn = drawn.iter().map(|(lane, tasks)| (*lane, *tasks));
        let ranges = drawn
            .chain(others.into_iter().map(|lane| (lane, tasks)))
            .map(|(lane, limit)| self.range(lane, limit, round.sweep))
            .collect();
        ClaimRequest { readers, tasks, ranges, sweep: round.sweep }
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use rand::rngs::StdRng;
    use rand::{SeedableRng, TryRng};

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
        lanes.set_nonempty(vec![(lane("a"), None), (lane("b"), None)], None, Instant::now());
        assert!(!lanes.sweep_due(Instant::now()));
        assert_eq!(requested(&requests(&lanes, 1, false, 1)), [("a", 7), ("b", 0)]);
    }

    #[test]
    fn lanes_without_work_are_not_claimed_from() {
        let mut lanes = Lanes::default();
        lanes.set_nonempty(vec![(lane("a"), None), (lane("b"), None)], None, Instant::now());
        lanes.set_nonempty(vec![(lane("b"), None)], None, Instant::now());
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
            None,
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
        lanes.set_nonempty(
            vec![(lane("a"), Some(Duration::from_millis(10)))],
            None,
            Instant::now(),
        );
        assert_eq!(requests(&lanes, 2, false, 50)[0].tasks, 100);
        lanes.set_nonempty(vec![(lane("a"), None)], None, Instant::now());
        assert_eq!(requests(&lanes, 2, false, 50)[0].tasks, 2 * MAX_CHAIN);
    }

    #[test]
    fn a_reserved_reader_claims_no_other_priority() {
        let mut lanes = Lanes::default();
        let reserved = Lane { priority: Priority::Reserved, ..lane("a") };
        lanes.set_nonempty(vec![(lane("a"), None), (reserved.clone(), None)], None, Instant::now());
        let weights = Weights::default();
        let only = Some(Priority::Reserved);
        let round = ClaimRound { readers: 2, run_as: "", only, sweep: false, weights: &weights };
        let requests = lanes.requests(&round, |_| 1, &mut rand::rng());
        let requested: Vec<&Lane> =
            requests.iter().flat_map(|request| &request.ranges).map(|range| &range.lane).collect();
        assert_eq!(requested, [&reserved]);
    }

    /// Counts how many random numbers it has given.
    struct Counting(StdRng, usize);

    impl TryRng for Counting {
        type Error = Infallible;

        fn try_next_u32(&mut self) -> Result<u32, Infallible> {
            self.1 += 1;
            self.0.try_next_u32()
        }

        fn try_next_u64(&mut self) -> Result<u64, Infallible> {
            self.1 += 1;
            self.0.try_next_u64()
        }

        fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
            self.1 += 1;
            self.0.try_fill_bytes(bytes)
        }
    }

    #[test]
    fn a_claim_draws_as_many_lanes_as_it_needs_however_many_have_work() {
        let drawn = [100, 10_000].map(|count| {
            let mut lanes = Lanes::default();
            let all = (0..count).map(|n| (lane(&format!("q{n}")), None)).collect();
            lanes.set_nonempty(all, None, Instant::now());
            let weights = Weights::default();
            let round =
                ClaimRound { readers: 8, run_as: "", only: None, sweep: false, weights: &weights };
            let mut random = Counting(StdRng::seed_from_u64(1), 0);
            let requests = lanes.requests(&round, |_| 1, &mut random);
            let ranges = &requests[0].ranges;
            assert!(ranges.len() > MAX_FALLBACK_LANES && ranges.len() <= MAX_FALLBACK_LANES + 8);
            random.1
        });
        assert!(drawn[1] < 2 * drawn[0], "{drawn:?} random numbers for 100 and 10,000 lanes");
    }

    #[test]
    fn a_notification_revisits_few_empty_lanes_and_leaves_many_to_a_sweep() {
        for (count, revisited) in [(MAX_REVISITED_LANES, true), (MAX_REVISITED_LANES + 1, false)] {
            let mut lanes = Lanes::default();
            let all = (0..count).map(|n| (lane(&format!("q{n}")), None)).collect();
            lanes.set_nonempty(all, None, Instant::now());
            lanes.set_nonempty(Vec::new(), None, Instant::now());
            lanes.mark_all_nonempty();
            assert_eq!(!requests(&lanes, 1, false, 1).is_empty(), revisited, "{count} lanes");
        }
    }

    #[test]
    fn a_sweep_in_parts_keeps_the_lanes_of_the_other_parts() {
        let mut lanes = Lanes::default();
        let at = Instant::now();
        lanes.set_nonempty(vec![(lane("a"), None), (lane("c"), None)], None, at);
        lanes.set_nonempty(vec![(lane("b"), None)], Some(lane("b")), at);
        assert_eq!(lanes.next_after(), Some(&lane("b")));
        assert_eq!(requested(&requests(&lanes, 3, false, 1)), [("a", 0), ("b", 0), ("c", 0)]);
        lanes.begin_sweep(at);
        lanes.end_sweep(at);
        assert!(lanes.sweep_due(at + MIN_SWEEP_INTERVAL));
        lanes.set_nonempty(vec![(lane("c"), None)], None, at);
        assert_eq!(requested(&requests(&lanes, 3, false, 1)), [("b", 0), ("c", 0)]);
        assert!(!lanes.sweep_due(at + MIN_SWEEP_INTERVAL));
    }
}
