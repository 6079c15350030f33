//! Model check of limits: every order in which tasks get permits, are claimed, end, are cancelled and
//! are reclaimed, while granters crash, workers die and come back, and an operator changes the limits.
//!
//! Tasks need permits of a concurrency key, of a queue, or of both. The states, their transitions and
//! the order of the kinds of limits are the product's. Planted bugs show that the rules detect them.
//! `schema/14_permits.sql` implements the steps.

#![expect(clippy::expect_used, reason = "cannot fail in a small model")]

#[path = "model/explore.rs"]
mod explore;

use std::cell::RefCell;
use std::collections::BTreeSet;

use queue::{LimitKind, State};

use explore::{Step, System, Violation, explore};

const GRANTED: &str = "a limit has more permits than it allows";
const STARTED: &str = "a task started although its limit was reached";
const OTHER: &str = "a task has other permits than its state says";

const KEY: usize = 0;
const QUEUE: usize = 1;
const KINDS: [LimitKind; 2] = [LimitKind::Key, LimitKind::Queue];
const GRANTERS: usize = 2;
const WORKERS: usize = 2;

/// A planted bug, which a rule must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A granter does not lock the row of the limit.
    GrantsWithoutLock,
    /// A granter counts running tasks instead of permits.
    CountsRunning,
    /// A change of a limit leaves the permits of tasks that have not started.
    SetsWithoutRevoking,
    /// A change of a limit does not count tasks that run already.
    SetsWithoutAdmitting,
    /// A change of a limit does not wait for claims of tasks without a permit of it.
    SetsWithoutWaiting,
    /// The end of an attempt that is retried keeps the permits.
    RetryKeepsPermits,
    /// A reclaim keeps the permits.
    ReclaimKeepsPermits,
    /// A worker that was declared dead releases permits without its token.
    ReleasesById,
    /// A reclaim does not wait for the end of the backend.
    ReclaimsTooEarly,
    /// The second task asks for the limits in another order.
    OtherOrder,
    /// Only the worker that released a permit grants it.
    NoPollForGrants,
    /// Nobody blocks tasks that got a permit of their key after their queue got a limit.
    NeverReconciles,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Task {
    /// `None`: finished.
    state: Option<State>,
    /// Limits that the task needs, in the order of acquisition.
    chain: [Option<usize>; 2],
    /// Number of limits of the chain that have admitted the task.
    admitted: usize,
    /// Rows of `mill.permits`, by limit.
    permits: [u8; 2],
    worker: Option<usize>,
    /// A worker whose claim has locked the row, and is not committed yet.
    claimed_by: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    tasks: Vec<Task>,
    max_running: [Option<usize>; 2],
    /// Open transactions that grant permits: the limit, and the number of free places.
    grants: [Option<(usize, usize)>; GRANTERS],
    alive: [bool; WORKERS],
    /// Tasks that a worker believes to run, although it was declared dead.
    stale: [Option<usize>; WORKERS],
    changes: u8,
    /// Whether a worker that has released a permit is about to grant it.
    grant_due: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Granter and limit.
    BeginGrant(usize, usize),
    CommitGrant(usize),
    CrashGranter(usize),
    /// Worker and task. The claim has read the limits, and locked the row.
    BeginClaim(usize, usize),
    CommitClaim(usize),
    Complete(usize),
    Fail(usize),
    Cancel(usize),
    /// The worker stops for so long that it is declared dead.
    Freeze(usize),
    Reclaim(usize),
    /// The worker returns, and finishes what it believes to run.
    Resume(usize),
    SetMaxRunning(usize, Option<usize>),
    Reconcile,
}

struct Limits {
    tasks: Vec<Vec<usize>>,
    max_running: [Option<usize>; 2],
    changes: u8,
    cancels: bool,
    planted: Option<Bug>,
    used: RefCell<BTreeSet<(State, Option<State>)>>,
}

impl Task {
    fn chain(&self) -> impl Iterator<Item = usize> {
        self.chain.into_iter().flatten()
    }

    fn blocked_by(&self) -> Option<usize> {
        let blocked = self.state == Some(State::Blocked);
        self.chain().nth(self.admitted).filter(|_| blocked)
    }
}

impl World {
    fn permits(&self, limit: usize) -> usize {
        self.tasks.iter().map(|task| usize::from(task.permits[limit])).sum()
    }

    /// Whether the queue has a limit that the task does not know of.
    fn lacks_queue(&self, n: usize) -> bool {
        self.max_running[QUEUE].is_some() && !self.tasks[n].chain().any(|limit| limit == QUEUE)
    }

    fn is_locked(&self, limit: usize) -> bool {
        self.grants.iter().flatten().any(|grant| grant.0 == limit)
    }
}

/// The chain of a task that needs these limits, in the order of their kinds.
fn chain(mut limits: Vec<usize>) -> [Option<usize>; 2] {
    limits.sort_by_key(|limit| KINDS[*limit]);
    [limits.first().copied(), limits.get(1).copied()]
}

impl Limits {
    fn has(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    /// Number of running tasks that the limit applies to, whether they have its permit or not.
    fn running(&self, world: &World, limit: usize) -> usize {
        let runs = |n: &usize| world.tasks[*n].state == Some(State::Running);
        (0..world.tasks.len()).filter(runs).filter(|n| self.tasks[*n].contains(&limit)).count()
    }

    fn change(&self, task: &mut Task, to: Option<State>) {
        let from = task.state.expect("a finished task does not change");
        assert!(from.can_transition_to(to), "{from} -> {to:?}");
        self.used.borrow_mut().insert((from, to));
        task.state = to;
    }

    /// `mill.required_limits`.
    fn required(&self, world: &World, n: usize) -> [Option<usize>; 2] {
        let mut limits = self.tasks[n].clone();
        limits.retain(|limit| *limit != QUEUE || world.max_running[QUEUE].is_some());
        let mut chain = chain(limits);
        if n == 1 && self.has(Bug::OtherOrder) && chain[1].is_some() {
            chain.reverse();
        }
        chain
    }

    /// Returns a task to the queue after an attempt: `mill.initial_state`.
    fn requeue(&self, task: &mut Task, keeps: bool) {
        if !keeps {
            task.permits = [0, 0];
        }
        let limited = task.chain[0].is_some();
        self.change(task, Some(if limited { State::Blocked } else { State::Pending }));
        (task.admitted, task.worker) = (0, None);
    }

    /// `mill.revoke_permits`, and `mill.block_pending` of tasks without the limit of the queue.
    fn block(&self, world: &mut World, revoked: Option<usize>) {
        for n in 0..world.tasks.len() {
            let lacks = world.lacks_queue(n);
            let mut task = world.tasks[n];
            let has = revoked.is_some_and(|limit| task.permits[limit] > 0);
            let locked = task.claimed_by.is_some();
            if task.state == Some(State::Pending) && !locked && (has || lacks) {
                if lacks {
                    task.chain = self.required(world, n);
                }
                self.requeue(&mut task, false);
                world.tasks[n] = task;
            }
        }
    }

    /// `mill.admit_running`.
    fn admit(&self, world: &mut World) {
        for n in 0..world.tasks.len() {
            if world.tasks[n].state == Some(State::Running) && world.lacks_queue(n) {
                let required = self.required(world, n);
                let task = &mut world.tasks[n];
                task.permits[QUEUE] += 1;
                (task.chain, task.admitted) = (required, required.iter().flatten().count());
            }
        }
    }

    fn set(&self, world: &mut World, limit: usize, max_running: Option<usize>) -> Option<()> {
        let new = world.max_running[limit] != max_running && world.changes < self.changes;
        let waits = |task: &Task| {
            task.claimed_by.is_some()
                && (task.permits[limit] > 0 || !self.has(Bug::SetsWithoutWaiting))
        };
        let locked = world.is_locked(limit) && !self.has(Bug::GrantsWithoutLock);
        if !new || locked || world.tasks.iter().any(waits) {
            return None;
        }
        world.max_running[limit] = max_running;
        world.changes += 1;
        self.block(world, Some(limit).filter(|_| !self.has(Bug::SetsWithoutRevoking)));
        if !self.has(Bug::SetsWithoutAdmitting) {
            self.admit(world);
        }
        Some(())
    }

    fn begin(&self, world: &mut World, granter: usize, limit: usize) -> Option<()> {
        let waited_for = world.tasks.iter().any(|task| task.blocked_by() == Some(limit));
        let locked = world.is_locked(limit) && !self.has(Bug::GrantsWithoutLock);
        let polls = !self.has(Bug::NoPollForGrants) || world.grant_due;
        if world.grants[granter].is_some() || !waited_for || locked || !polls {
            return None;
        }
        let used = match self.planted {
            Some(Bug::CountsRunning) => self.running(world, limit),
            _ => world.permits(limit),
        };
        let free = world.max_running[limit].unwrap_or(usize::MAX).saturating_sub(used);
        world.grants[granter] = (free > 0).then_some((limit, free));
        world.grants[granter].map(|_| ())
    }

    fn commit(&self, world: &mut World, granter: usize) -> Option<Result<(), String>> {
        let (limit, free) = world.grants[granter].take()?;
        world.grant_due = false;
        let waits = |task: &&mut Task| task.blocked_by() == Some(limit);
        for task in world.tasks.iter_mut().filter(waits).take(free) {
            task.permits[limit] += 1;
            task.admitted += 1;
            if task.chain().count() == task.admitted {
                self.change(task, Some(State::Pending));
            }
        }
        let exceeded = world.max_running[limit].is_some_and(|max| world.permits(limit) > max);
        Some(if exceeded { Err(GRANTED.to_owned()) } else { Ok(()) })
    }

    fn claim(&self, world: &mut World, worker: usize, n: usize) -> Option<()> {
        let has = |task: &Task| [task.worker, task.claimed_by].contains(&Some(worker));
        let busy = world.stale[worker].is_some() || world.tasks.iter().any(has);
        let may = world.alive[worker] && !busy && !world.lacks_queue(n);
        let task = &mut world.tasks[n];
        let free = task.state == Some(State::Pending) && task.claimed_by.is_none();
        (may && free).then(|| task.claimed_by = Some(worker))
    }

    fn commit_claim(&self, world: &mut World, n: usize) -> Option<Result<(), String>> {
        // If the backend of an earlier attempt lives, two backends run the task.
        let twice = world.stale.contains(&Some(n)) && self.has(Bug::ReclaimsTooEarly);
        let task = &mut world.tasks[n];
        task.worker = Some(task.claimed_by.take()?);
        self.change(task, Some(State::Running));
        let exceeded = |limit: &usize| {
            world.max_running[*limit].is_some_and(|max| self.running(world, *limit) > max)
        };
        let exceeded = self.tasks[n].iter().any(exceeded);
        Some(if twice || exceeded { Err(STARTED.to_owned()) } else { Ok(()) })
    }

    fn end(&self, world: &mut World, n: usize, fails: bool) -> Option<()> {
        let task = &mut world.tasks[n];
        let alive = task.worker.is_some_and(|worker| world.alive[worker]);
        if task.state != Some(State::Running) || !alive {
            return None;
        }
        world.grant_due = true;
        if fails {
            self.requeue(task, self.has(Bug::RetryKeepsPermits));
        } else {
            self.change(task, None);
            (task.permits, task.worker) = ([0, 0], None);
        }
        Some(())
    }

    fn apply(&self, world: &mut World, action: Action) -> Option<Result<(), String>> {
        match action {
            Action::BeginGrant(granter, limit) => self.begin(world, granter, limit)?,
            Action::CommitGrant(granter) => return self.commit(world, granter),
            Action::CrashGranter(granter) => {
                world.grants[granter].take()?;
                world.grant_due = false;
            }
            Action::BeginClaim(worker, task) => self.claim(world, worker, task)?,
            Action::CommitClaim(n) => return self.commit_claim(world, n),
            Action::Complete(n) => self.end(world, n, false)?,
            Action::Fail(n) => self.end(world, n, true)?,
            Action::Cancel(n) => {
                let task = &mut world.tasks[n];
                let waits = task.state.is_some_and(|state| state != State::Running);
                (self.cancels && waits && task.claimed_by.is_none()).then_some(())?;
                self.change(task, None);
                task.permits = [0, 0];
            }
            Action::Freeze(worker) => {
                let claims = world.tasks.iter().any(|task| task.claimed_by == Some(worker));
                (!claims).then_some(())?;
                world.stale[worker] =
                    world.tasks.iter().position(|task| task.worker == Some(worker));
                std::mem::take(&mut world.alive[worker]).then_some(())?;
            }
            Action::Reclaim(n) => {
                let worker = world.tasks[n].worker.filter(|worker| !world.alive[*worker])?;
                assert_eq!(world.stale[worker], Some(n));
                self.requeue(&mut world.tasks[n], self.has(Bug::ReclaimKeepsPermits));
            }
            Action::Resume(worker) => {
                (!std::mem::replace(&mut world.alive[worker], true)).then_some(())?;
                let task = world.stale[worker].take().map(|n| &mut world.tasks[n]);
                // Its token is no longer that of the task, unless nobody has reclaimed the task.
                if let Some(task) = task.filter(|task| task.worker != Some(worker))
                    && self.has(Bug::ReleasesById)
                {
                    task.permits = [0, 0];
                }
            }
            Action::SetMaxRunning(limit, max_running) => self.set(world, limit, max_running)?,
            Action::Reconcile => {
                (!self.has(Bug::NeverReconciles)).then_some(())?;
                self.block(world, None);
                self.admit(world);
            }
        }
        Some(Ok(()))
    }
}

impl System for Limits {
    type State = World;
    type Action = Action;

    fn initial(&self) -> World {
        let mut world = World {
            tasks: vec![Task::default(); self.tasks.len()],
            max_running: self.max_running,
            grants: [None; GRANTERS],
            alive: [true; WORKERS],
            stale: [None; WORKERS],
            changes: 0,
            grant_due: true,
        };
        for n in 0..self.tasks.len() {
            let chain = self.required(&world, n);
            let state = if chain[0].is_some() { State::Blocked } else { State::Pending };
            world.tasks[n] = Task { chain, state: Some(state), ..Task::default() };
        }
        world
    }

    fn steps(&self, world: &World) -> Vec<Step<Self>> {
        let mut actions = vec![Action::Reconcile];
        for granter in 0..GRANTERS {
            actions.extend([KEY, QUEUE].map(|limit| Action::BeginGrant(granter, limit)));
            actions.extend([Action::CommitGrant(granter), Action::CrashGranter(granter)]);
        }
        for worker in 0..WORKERS {
            actions.extend([Action::Freeze(worker), Action::Resume(worker)]);
            actions.extend((0..self.tasks.len()).map(|task| Action::BeginClaim(worker, task)));
        }
        for n in 0..self.tasks.len() {
            actions.extend([Action::CommitClaim(n), Action::Complete(n), Action::Fail(n)]);
            actions.extend([Action::Cancel(n), Action::Reclaim(n)]);
        }
        for max_running in [None, Some(0), Some(1), Some(2)] {
            actions.push(Action::SetMaxRunning(QUEUE, max_running));
        }
        actions.push(Action::SetMaxRunning(KEY, Some(2)));
        let apply = |action: Action| {
            let mut next = world.clone();
            let applied = self.apply(&mut next, action)?;
            Some((action, applied.map(|()| next)))
        };
        actions.into_iter().filter_map(apply).collect()
    }

    fn canonical(&self, mut world: World) -> World {
        world.grants.sort_unstable();
        world
    }

    fn broken(&self, world: &World) -> Result<(), String> {
        for task in &world.tasks {
            let mut expected = [0, 0];
            if task.state.is_some() {
                task.chain().take(task.admitted).for_each(|limit| expected[limit] = 1);
            }
            if task.permits != expected {
                return Err(OTHER.to_owned());
            }
        }
        Ok(())
    }

    fn ended(&self, world: &World) -> bool {
        // A limit of 0 is a pause.
        let paused = world.max_running.contains(&Some(0)) && world.changes == self.changes;
        paused || world.tasks.iter().all(|task| task.state.is_none())
    }
}

fn limits(tasks: &[&[usize]], max_running: [Option<usize>; 2], changes: u8) -> Limits {
    let tasks = tasks.iter().map(|limits| limits.to_vec()).collect();
    Limits { tasks, max_running, changes, cancels: false, planted: None, used: RefCell::default() }
}

fn two() -> Limits {
    limits(&[BOTH, BOTH], [Some(1), Some(1)], 1)
}

/// A queue without a limit at first.
fn late() -> Limits {
    limits(&[&[QUEUE], BOTH], [Some(1), None], 2)
}

const BOTH: &[usize] = &[KEY, QUEUE];

#[test]
fn limits_are_kept_and_no_task_waits_forever() {
    let mut used = BTreeSet::new();
    for (name, limits) in [
        ("two keys and a queue", two()),
        ("three tasks of a queue", limits(&[&[QUEUE], &[QUEUE], BOTH], [Some(1), Some(2)], 0)),
        ("two tasks that are cancelled", Limits { cancels: true, ..two() }),
        ("a queue that gets a limit", late()),
    ] {
        let timer = std::time::Instant::now();
        let found = explore(&limits).unwrap_or_else(|violation| panic!("{name}: {violation}"));
        println!("{name}: {} states, {} steps, {:?}", found.states, found.steps, timer.elapsed());
        used.extend(limits.used.into_inner());
    }
    let missing = |(from, to): &(State, Option<State>)| {
        from.can_transition_to(*to) && !used.contains(&(*from, *to))
    };
    // The model of claims has the transitions of scheduled tasks.
    let states = [State::Blocked, State::Pending, State::Running];
    let ends = states.map(Some).into_iter().chain([None]);
    let all = states.into_iter().flat_map(|from| ends.clone().map(move |to| (from, to)));
    assert_eq!(all.filter(missing).collect::<Vec<_>>(), []);
}

fn found(bug: Bug, limits: Limits) -> Violation {
    let limits = Limits { planted: Some(bug), ..limits };
    let violation = explore(&limits).expect_err("it breaks a rule");
    println!("{bug:?}: {violation}");
    violation
}

#[test]
fn planted_bugs_are_found() {
    const STUCK: &str = "no end is reachable from this state";
    let unchanged = || limits(&[BOTH, BOTH], [Some(1), Some(1)], 0);
    for (bug, limits, rule) in [
        (Bug::GrantsWithoutLock, two(), GRANTED),
        (Bug::CountsRunning, two(), GRANTED),
        (Bug::SetsWithoutRevoking, limits(&[&[QUEUE], &[QUEUE]], [None, Some(2)], 1), STARTED),
        (Bug::SetsWithoutAdmitting, late(), GRANTED),
        (Bug::SetsWithoutWaiting, late(), STARTED),
        (Bug::RetryKeepsPermits, two(), OTHER),
        (Bug::ReclaimKeepsPermits, two(), OTHER),
        (Bug::ReleasesById, two(), OTHER),
        (Bug::ReclaimsTooEarly, two(), STARTED),
        (Bug::OtherOrder, unchanged(), STUCK),
        (Bug::NoPollForGrants, unchanged(), STUCK),
        (Bug::NeverReconciles, late(), STUCK),
    ] {
        assert_eq!(found(bug, limits).rule, rule, "{bug:?}");
    }
}
