//! Model check of ticks: every order in which two workers tick a schedule and crash, its runs end, a
//! backfill and an operator start runs, and the operator disables and enables the schedule or changes its
//! timing, while time passes.
//!
//! The instants, the due and missed fires, and the policies for overlap are the product's.
//! `schema/39_schedule_ticks.sql` implements the rest. Planted bugs show that the rules detect them.

#![expect(clippy::expect_used, reason = "cannot fail in a small model")]

#[path = "../../queue/tests/model/explore.rs"]
mod explore;

use std::collections::BTreeSet;

use explore::{Step, System, Violation, explore};
use jiff::{SignedDuration, Timestamp};
use schedule::due::{CatchUpPolicy, DueFires, due};
use schedule::enums::{Event, Overlap};
use schedule::{Cadence, Timing};

/// A point in time: the number of steps of 30 s since the start. A fire is missed after 10 s.
type At = u8;

const STEP: SignedDuration = SignedDuration::from_secs(30);
const WORKERS: usize = 2;

/// A planted bug, which a rule must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A tick does not lock the schedule, and nothing else prevents a second run.
    NoLock,
    /// The next fire is stored in a transaction of its own, before the runs.
    NextFireFirst,
    /// A skipped fire is not recorded.
    SkipsSilently,
    /// A fire does not check whether a run is in progress.
    IgnoresRuns,
    /// New fires start before those that wait.
    OvertakesQueue,
    /// The end of a run does not cause a tick for the fire that waits for it.
    EndStartsNothing,
    /// The last fire is evaluated again when it starts after a wait.
    EvaluatesLastAgain,
    /// A change of the timing drops the fires that are due or wait.
    RetimesSilently,
    /// Disabling the schedule drops the fires that are due or wait.
    DisablesSilently,
    /// A backfill starts an instant again.
    BackfillsAgain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Run {
    fire_at: At,
    in_progress: bool,
    backfill: bool,
}

/// The row of the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Row {
    enabled: bool,
    timing: usize,
    new_timing: Option<(usize, At)>,
    planned_from: At,
    next_fire_at: Option<At>,
    next_tick_at: Option<At>,
    /// `queued_fire_at` and `queued_later`.
    queue: Vec<At>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: At,
    row: Row,
    runs: Vec<Run>,
    /// Instants whose fire is recorded as skipped or missed.
    log: BTreeSet<(At, bool)>,
    /// Ticks that have locked the row: the plan, from the row as it was.
    ticks: [Option<(Row, At)>; WORKERS],
    backfill: Option<At>,
    changes: u8,
    /// Instants that have to be fired or recorded.
    expected: BTreeSet<At>,
    /// Last instant of a fire that was not started by hand or by a backfill.
    last_fire: Option<At>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    TimePasses,
    Lock(usize),
    Tick(usize),
    Crash(usize),
    FinishRun(usize),
    Backfill,
    Enable(bool),
    SetTiming(usize),
    RunNow,
}

struct Schedule {
    timings: Vec<Cadence>,
    overlap: Overlap,
    policy: CatchUpPolicy,
    until: At,
    changes: u8,
    backfills: bool,
    planted: Option<Bug>,
}

fn start() -> Timestamp {
    "2026-03-02T09:00:00Z".parse().expect("a timestamp")
}

fn instant(at: At) -> Timestamp {
    start() + STEP * i32::from(at)
}

fn at(instant: Timestamp) -> At {
    let steps = instant.duration_since(start()).as_secs() / STEP.as_secs();
    At::try_from(steps).unwrap_or(At::MAX)
}

impl World {
    fn runs_now(&self) -> bool {
        self.runs.iter().any(|run| run.in_progress && !run.backfill)
    }

    fn record(&mut self, event: Event, at: At) {
        self.log.insert((at, event == Event::Missed));
    }

    /// Records the fires that a change of the schedule drops.
    fn drop_fires(&mut self, instants: Vec<At>) {
        for at in instants {
            self.record(Event::Missed, at);
        }
        for at in std::mem::take(&mut self.row.queue) {
            self.record(Event::Skipped, at);
        }
    }
}

impl Schedule {
    fn has(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    /// Returns the instants of a timing after `from`, up to `to`.
    fn instants(&self, timing: usize, from: Timestamp, to: At) -> Vec<At> {
        self.timings[timing].fires(from).map(at).take_while(|fire| *fire <= to).collect()
    }

    /// The plan of a tick, as `schedule::tick` makes it.
    fn plan(&self, row: &Row, now: At) -> DueFires {
        let cadence = &self.timings[row.timing];
        let first = row.next_fire_at.map(instant);
        match first.or_else(|| cadence.next_fire(instant(row.planned_from))) {
            Some(first) => due(cadence, first, instant(now), self.policy),
            None => DueFires::default(),
        }
    }

    /// `mill.accept_timing`.
    fn accept(&self, world: &mut World) {
        let Some((timing, from)) = world.row.new_timing.take() else { return };
        let dropped = self.undone(world, from);
        if self.has(Bug::RetimesSilently) {
            world.row.queue.clear();
        } else {
            world.drop_fires(dropped);
        }
        world.expected.retain(|at| *at <= from);
        let now = world.now;
        world.expected.extend(self.instants(timing, instant(from), now));
        let row = &mut world.row;
        (row.timing, row.planned_from, row.next_fire_at) = (timing, from, None);
    }

    /// Returns the instants up to `until` that no tick has processed.
    fn undone(&self, world: &World, until: At) -> Vec<At> {
        let first = world.row.next_fire_at.map_or(instant(world.row.planned_from), |next| {
            instant(next) - SignedDuration::from_secs(1)
        });
        self.instants(world.row.timing, first, until)
    }

    /// `mill.fire`.
    fn fire(&self, world: &mut World, fire_at: At) -> Result<bool, String> {
        if world.runs.iter().any(|run| run.fire_at == fire_at) && !self.has(Bug::NoLock) {
            return Ok(false);
        }
        if world.last_fire.is_some_and(|last| last > fire_at) {
            return Err("a fire overtook an earlier one".to_owned());
        }
        world.last_fire = Some(fire_at);
        world.runs.push(Run { fire_at, in_progress: true, backfill: false });
        Ok(true)
    }

    /// Starts fires that wait, as long as no run is in progress.
    fn start_queue(&self, world: &mut World) -> Result<(), String> {
        while !world.row.queue.is_empty() && (!world.runs_now() || self.overlap == Overlap::Allow) {
            let fire_at = world.row.queue.remove(0);
            self.fire(world, fire_at)?;
        }
        Ok(())
    }

    /// `mill.tick`.
    fn tick(&self, world: &mut World, row: &Row, now: At) -> Result<(), String> {
        let mut row = row.clone();
        if let Some((timing, from)) = row.new_timing {
            (row.timing, row.planned_from, row.next_fire_at) = (timing, from, None);
            self.accept(world);
        }
        let plan = self.plan(&row, now);
        if let (Some(from), Some(to)) = (plan.missed_from, plan.missed_to) {
            let before = from - SignedDuration::from_secs(1);
            for missed in self.instants(row.timing, before, at(to)) {
                world.record(Event::Missed, missed);
            }
        }
        if !self.has(Bug::OvertakesQueue) {
            self.start_queue(world)?;
        }
        let mut fired = 0;
        for fire_at in plan.fires.iter().map(|fire| at(*fire)) {
            let blocked = world.runs_now() && self.overlap != Overlap::Allow;
            if !world.row.enabled {
            } else if !blocked || self.has(Bug::IgnoresRuns) {
                fired += usize::from(self.fire(world, fire_at)?);
            } else if fired > 0 || self.overlap == Overlap::Queue && world.row.queue.is_empty() {
                world.row.queue.push(fire_at);
            } else if !self.has(Bug::SkipsSilently) {
                world.record(Event::Skipped, fire_at);
            }
        }
        if self.has(Bug::OvertakesQueue) {
            self.start_queue(world)?;
        }
        let next = plan.next_fire_at.map(at);
        world.row.next_fire_at = next;
        world.row.next_tick_at = next;
        world.row.enabled &= next.is_some();
        if next.is_none() && !self.has(Bug::EvaluatesLastAgain) {
            world.row.planned_from = world.now;
        }
        Ok(())
    }

    fn enable(&self, world: &mut World, enabled: bool) -> Option<()> {
        let finished = world.row.next_tick_at.is_none() && !world.row.enabled && world.now > 0;
        let over = self.timings[world.row.timing].next_fire(instant(world.now)).is_none();
        if world.row.enabled == enabled || world.changes == self.changes || finished && over {
            return None;
        }
        world.changes += 1;
        if !enabled {
            let undone = self.undone(world, world.now);
            if self.has(Bug::DisablesSilently) {
                world.row.queue.clear();
            } else {
                world.drop_fires(undone);
            }
        }
        world.row.enabled = enabled;
        let now = world.now;
        let row = &mut world.row;
        (row.planned_from, row.next_fire_at) = (now, None);
        row.next_tick_at = enabled.then_some(now);
        Some(())
    }

    fn apply(&self, world: &mut World, action: Action) -> Option<Result<(), String>> {
        let unlocked = world.ticks.iter().all(Option::is_none);
        match action {
            Action::TimePasses => {
                (world.now < self.until).then(|| world.now += 1)?;
                let from = instant(world.now) - SignedDuration::from_secs(1);
                if world.row.enabled {
                    let passed = self.instants(world.row.timing, from, world.now);
                    world.expected.extend(passed);
                }
            }
            Action::Lock(worker) => {
                let due = world.row.next_tick_at.is_some_and(|tick| tick <= world.now);
                let free = world.ticks[worker].is_none() && (unlocked || self.has(Bug::NoLock));
                (due && free)
                    .then(|| world.ticks[worker] = Some((world.row.clone(), world.now)))?;
                if self.has(Bug::NextFireFirst) {
                    let next = self.plan(&world.row, world.now).next_fire_at.map(at);
                    (world.row.next_fire_at, world.row.next_tick_at) = (next, next);
                }
            }
            Action::Tick(worker) => {
                let (row, now) = world.ticks[worker].take()?;
                return Some(self.tick(world, &row, now));
            }
            Action::Crash(worker) => world.ticks[worker].take().map(|_| ())?,
            Action::FinishRun(n) => {
                let run = world.runs.get_mut(n).filter(|run| run.in_progress && unlocked)?;
                run.in_progress = false;
                let wakes = !run.backfill && !self.has(Bug::EndStartsNothing);
                if wakes && !world.row.queue.is_empty() {
                    world.row.next_tick_at = Some(world.now);
                }
            }
            Action::Backfill => {
                let next = world.backfill.filter(|at| *at <= world.now && unlocked)?;
                let in_progress = world.runs.iter().any(|run| run.in_progress && run.backfill);
                let exists = world.runs.iter().any(|run| run.fire_at == next);
                if !exists || self.has(Bug::BackfillsAgain) {
                    (!in_progress).then_some(())?;
                    world.runs.push(Run { fire_at: next, in_progress: true, backfill: true });
                }
                world.backfill = Some(next + 2).filter(|next| *next <= 4);
            }
            Action::Enable(enabled) => unlocked.then(|| self.enable(world, enabled))??,
            Action::SetTiming(timing) => {
                let new = world.row.timing != timing && world.row.new_timing.is_none();
                (new && unlocked && world.row.enabled && world.changes < self.changes)
                    .then_some(())?;
                world.changes += 1;
                world.row.new_timing = Some((timing, world.now));
                world.row.next_tick_at = Some(world.now);
            }
            Action::RunNow => {
                // An odd time is not an instant.
                let may = unlocked && !world.runs_now() && world.changes < self.changes;
                (may && world.now % 2 == 1).then_some(())?;
                world.changes += 1;
                world.runs.push(Run { fire_at: world.now, in_progress: true, backfill: false });
            }
        }
        Some(Ok(()))
    }
}

impl System for Schedule {
    type State = World;
    type Action = Action;

    fn initial(&self) -> World {
        let row = Row {
            enabled: true,
            timing: 0,
            new_timing: None,
            planned_from: 1,
            next_fire_at: None,
            next_tick_at: Some(1),
            queue: Vec::new(),
        };
        World {
            now: 1,
            row,
            runs: Vec::new(),
            log: BTreeSet::new(),
            ticks: [const { None }; WORKERS],
            backfill: self.backfills.then_some(0),
            changes: 0,
            expected: BTreeSet::new(),
            last_fire: None,
        }
    }

    fn steps(&self, world: &World) -> Vec<Step<Self>> {
        let mut actions = vec![Action::TimePasses, Action::Backfill, Action::RunNow];
        for worker in 0..WORKERS {
            actions.extend([Action::Lock(worker), Action::Tick(worker), Action::Crash(worker)]);
        }
        actions.extend((0..world.runs.len()).map(Action::FinishRun));
        actions.extend([Action::Enable(false), Action::Enable(true)]);
        actions.extend((0..self.timings.len()).map(Action::SetTiming));
        let apply = |action: Action| {
            let mut next = world.clone();
            let applied = self.apply(&mut next, action)?;
            Some((action, applied.map(|()| next)))
        };
        actions.into_iter().filter_map(apply).collect()
    }

    fn canonical(&self, mut world: World) -> World {
        world.runs.sort_unstable_by_key(|run| (run.fire_at, run.backfill, run.in_progress));
        if world.ticks[0].is_none() {
            world.ticks.swap(0, 1);
        }
        world
    }

    fn broken(&self, world: &World) -> Result<(), String> {
        let regular = world.runs.iter().filter(|run| run.in_progress && !run.backfill).count();
        if regular > 1 && self.overlap != Overlap::Allow {
            return Err("two runs overlap".to_owned());
        }
        let runs = |at: At| world.runs.iter().filter(|run| run.fire_at == at).count();
        if world.expected.iter().any(|at| runs(*at) > 1) {
            return Err("an instant has two runs".to_owned());
        }
        let fired = |at: At| world.runs.iter().any(|run| run.fire_at == at && !run.backfill);
        if world.log.iter().any(|(at, missed)| *missed && fired(*at)) {
            return Err("a fire was recorded as missed, but was started".to_owned());
        }
        let due = world.row.next_tick_at.is_some_and(|tick| tick <= world.now);
        let busy = due || world.ticks.iter().any(Option::is_some);
        let recorded = |at: At| world.log.iter().any(|entry| entry.0 == at);
        let done = |at: &At| runs(*at) > 0 || recorded(*at) || world.row.queue.contains(at);
        if !busy && !world.expected.iter().all(done) {
            return Err("an instant was neither fired nor recorded".to_owned());
        }
        Ok(())
    }

    fn ended(&self, world: &World) -> bool {
        let in_progress = world.runs.iter().any(|run| run.in_progress);
        world.now == self.until && world.row.queue.is_empty() && !in_progress
    }
}

fn schedule(timings: &[&str], overlap: Overlap) -> Schedule {
    let cadence = |timing: &&str| {
        let timing = Timing::parse(timing).expect("a timing");
        timing.cadence().expect("a cadence").clone()
    };
    Schedule {
        timings: timings.iter().map(cadence).collect(),
        overlap,
        policy: CatchUpPolicy { catch_up: 1, max_lateness: None },
        until: 5,
        changes: 1,
        backfills: false,
        planted: None,
    }
}

const MINUTELY: &str = "every(1 minute)";
const ONCE: &str = "once(2026-03-02 09:01)";

#[test]
fn every_instant_is_fired_once_or_recorded() {
    let two = CatchUpPolicy { catch_up: 2, max_lateness: None };
    let none = CatchUpPolicy { catch_up: 0, max_lateness: None };
    let mut all = Vec::new();
    for overlap in Overlap::ALL {
        let simple = || schedule(&[MINUTELY], *overlap);
        all.push(("changes", simple()));
        all.push(("catch-up of two", Schedule { policy: two, until: 6, changes: 0, ..simple() }));
        all.push(("a backfill", Schedule { backfills: true, changes: 0, ..simple() }));
        all.push(("a new timing", schedule(&[MINUTELY, "every(2 minutes)"], *overlap)));
        all.push(("once", Schedule { policy: none, ..schedule(&[ONCE], *overlap) }));
    }
    for (name, schedule) in all {
        let timer = std::time::Instant::now();
        let overlap = schedule.overlap;
        let found =
            explore(&schedule).unwrap_or_else(|violation| panic!("{name}, {overlap}: {violation}"));
        let time = timer.elapsed();
        println!("{name}, {overlap}: {} states, {} steps, {time:?}", found.states, found.steps);
    }
}

fn found(bug: Bug, schedule: Schedule) -> Violation {
    let schedule = Schedule { planted: Some(bug), ..schedule };
    let violation = explore(&schedule).expect_err("it breaks a rule");
    println!("{bug:?}: {violation}");
    violation
}

#[test]
fn planted_bugs_are_found() {
    const LOST: &str = "an instant was neither fired nor recorded";
    let simple = |overlap| schedule(&[MINUTELY], overlap);
    let two = CatchUpPolicy { catch_up: 2, max_lateness: None };
    let none = CatchUpPolicy { catch_up: 0, max_lateness: None };
    let once = || Schedule { policy: none, ..schedule(&[ONCE], Overlap::Queue) };
    for (bug, schedule, rule) in [
        (Bug::NoLock, simple(Overlap::Allow), "an instant has two runs"),
        (Bug::NextFireFirst, simple(Overlap::Allow), LOST),
        (Bug::SkipsSilently, simple(Overlap::Skip), LOST),
        (Bug::IgnoresRuns, simple(Overlap::Queue), "two runs overlap"),
        (
            Bug::OvertakesQueue,
            Schedule { policy: two, until: 6, ..simple(Overlap::Queue) },
            "a fire overtook an earlier one",
        ),
        (Bug::EndStartsNothing, once(), "no end is reachable from this state"),
        (Bug::EvaluatesLastAgain, once(), "a fire was recorded as missed, but was started"),
        (Bug::RetimesSilently, schedule(&[MINUTELY, "every(2 minutes)"], Overlap::Queue), LOST),
        (Bug::DisablesSilently, simple(Overlap::Skip), LOST),
        (
            Bug::BackfillsAgain,
            Schedule { backfills: true, ..simple(Overlap::Skip) },
            "an instant has two runs",
        ),
    ] {
        assert_eq!(found(bug, schedule).rule, rule, "{bug:?}");
    }
}
