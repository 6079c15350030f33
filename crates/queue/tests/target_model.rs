//! Model check of tasks in targets: every order in which two workers can run one task in another
//! database, die, lose answers, and resolve each other's attempts, while the task is cancelled and
//! the queue is restored to an earlier time. Planted bugs show that the rules detect them.
//!
//! A dead worker's session in the target may outlive the worker: its receipt and COMMIT can arrive at
//! any later moment. `crates/queue/src/receipt/schema.sql` implements the row of the receipt.

#![expect(clippy::expect_used, reason = "cannot fail in a small model")]

use std::collections::{HashMap, VecDeque};

const WORKERS: usize = 2;
/// Largest epoch that the model visits. A higher one would repeat what lower ones show.
const MAX_EPOCH: u8 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Pending,
    Running { worker: usize, epoch: u8 },
    Succeeded,
    Cancelled,
}

/// The row of the receipt, as committed, and the attempt that has locked it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Row {
    epoch: u8,
    done: bool,
    locked_by: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Attempt {
    Idle,
    /// The statement has run, in an open transaction.
    Ran(u8),
    /// The receipt is written in the open transaction.
    Written(u8),
    /// Committed, and the answer is on its way.
    Committed(u8),
    /// The connection was lost before an answer to COMMIT.
    Unknown(u8),
    /// The attempt with this epoch was resolved: whether the receipt exists.
    Resolved(u8, bool),
    /// The attempt of the other, dead worker was resolved.
    ResolvedOther(u8, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    task: Task,
    next_epoch: u8,
    cancel_requested: bool,
    row: Row,
    attempts: [Attempt; WORKERS],
    alive: [bool; WORKERS],
    effects: u8,
    restored: bool,
}

/// A bug that the rules must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// An attempt writes its receipt although its epoch is too low.
    IgnoresEpoch,
    /// An attempt writes its receipt although the task has one.
    IgnoresReceipt,
    /// A dead worker's task runs again without a look at the target.
    ReclaimsWithoutResolving,
    /// A resolution reads the row although an attempt has locked it.
    DoesNotWait,
    /// The success is recorded before the commit in the target.
    RecordsFirst,
}

const START: World = World {
    task: Task::Pending,
    next_epoch: 1,
    cancel_requested: false,
    row: Row { epoch: 0, done: false, locked_by: None },
    attempts: [Attempt::Idle; WORKERS],
    alive: [true; WORKERS],
    effects: 0,
    restored: false,
};

impl World {
    /// Ends the attempt without success: the task runs again, or is cancelled.
    fn release(&mut self) {
        self.task = if self.cancel_requested { Task::Cancelled } else { Task::Pending };
    }

    fn holds(&self, worker: usize, epoch: u8) -> bool {
        self.task == Task::Running { worker, epoch }
    }

    /// Writes a higher epoch into the row; returns whether the receipt exists. `None`: the row is
    /// locked, so the resolution waits.
    fn resolve(&mut self, epoch: u8, bug: Option<Bug>) -> Option<bool> {
        if self.row.locked_by.is_some() && bug != Some(Bug::DoesNotWait) {
            return None;
        }
        if !self.row.done {
            self.row.epoch = self.row.epoch.max(epoch);
        }
        Some(self.row.done)
    }

    fn take_epoch(&mut self) -> u8 {
        self.next_epoch += 1;
        self.next_epoch - 1
    }
}

/// The steps that can follow a state.
struct Steps {
    now: World,
    next: Vec<(String, World)>,
}

impl Steps {
    /// Adds the step, unless the change is `None`: then it cannot happen now.
    fn add(&mut self, name: String, change: impl FnOnce(&mut World) -> Option<()>) {
        let mut world = self.now;
        if change(&mut world).is_some() && world.next_epoch <= MAX_EPOCH {
            self.next.push((name, world));
        }
    }
}

/// Returns every state that can follow, with the name of the step.
fn steps(now: World, bug: Option<Bug>) -> Vec<(String, World)> {
    let mut steps = Steps { now, next: Vec::new() };
    interruptions(&mut steps);
    for n in 0..WORKERS {
        deaths(&mut steps, n);
        claim_and_write(&mut steps, n, bug);
        commit_and_record(&mut steps, n);
        resolutions(&mut steps, n, bug);
    }
    steps.next
}

/// An operator cancels the task, or restores the queue.
fn interruptions(steps: &mut Steps) {
    steps.add("cancel".to_owned(), |w| {
        (!w.cancel_requested && matches!(w.task, Task::Pending | Task::Running { .. })).then(|| {
            w.cancel_requested = true;
            if w.task == Task::Pending {
                w.task = Task::Cancelled;
            }
        })
    });
    steps.add("restore the queue".to_owned(), |w| {
        // No worker keeps its claim, and sessions in the target may outlive this.
        (!w.restored && w.task != Task::Pending).then(|| {
            *w = World {
                task: Task::Pending,
                next_epoch: 1,
                restored: true,
                cancel_requested: false,
                ..*w
            };
            w.alive = [false; WORKERS];
        })
    });
}

/// Workers start and die, and sessions in the target end.
fn deaths(steps: &mut Steps, n: usize) {
    steps.add(format!("{n} starts"), |w| {
        (!w.alive[n] && w.attempts[n] == Attempt::Idle).then(|| w.alive[n] = true)
    });
    steps.add(format!("{n} dies"), |w| {
        w.alive[n].then(|| {
            w.alive[n] = false;
            if !matches!(w.attempts[n], Attempt::Ran(_) | Attempt::Written(_)) {
                w.attempts[n] = Attempt::Idle;
            }
        })
    });
    steps.add(format!("the session of {n} ends"), |w| {
        let (Attempt::Ran(epoch) | Attempt::Written(epoch)) = w.attempts[n] else {
            return None;
        };
        if w.row.locked_by == Some(n) {
            w.row.locked_by = None;
        }
        w.attempts[n] = if w.alive[n] { Attempt::Unknown(epoch) } else { Attempt::Idle };
        Some(())
    });
}

fn claim_and_write(steps: &mut Steps, n: usize, bug: Option<Bug>) {
    steps.add(format!("{n} claims"), |w| {
        (w.alive[n] && w.attempts[n] == Attempt::Idle && w.task == Task::Pending).then(|| {
            let epoch = w.take_epoch();
            w.task = Task::Running { worker: n, epoch };
            w.attempts[n] = Attempt::Ran(epoch);
        })
    });
    steps.add(format!("{n} writes the receipt"), |w| {
        let Attempt::Ran(epoch) = w.attempts[n] else { return None };
        if w.row.locked_by.is_some() {
            return None;
        }
        let fenced = w.row.epoch >= epoch && bug != Some(Bug::IgnoresEpoch);
        let done = w.row.done && bug != Some(Bug::IgnoresReceipt);
        if !(done || fenced && !w.row.done) {
            w.row.locked_by = Some(n);
            w.attempts[n] = Attempt::Written(epoch);
            if bug == Some(Bug::RecordsFirst) && w.alive[n] && w.holds(n, epoch) {
                w.task = Task::Succeeded;
            }
            return Some(());
        }
        // The transaction is rolled back.
        w.attempts[n] = Attempt::Idle;
        if w.alive[n] && done {
            w.attempts[n] = Attempt::Unknown(epoch);
        } else if w.alive[n] {
            w.next_epoch = w.next_epoch.max(w.row.epoch + 1);
            if w.holds(n, epoch) {
                w.release();
            }
        }
        Some(())
    });
}

fn commit_and_record(steps: &mut Steps, n: usize) {
    steps.add(format!("the target commits {n}"), |w| {
        let Attempt::Written(epoch) = w.attempts[n] else { return None };
        w.row = Row { epoch, done: true, locked_by: None };
        w.effects += 1;
        w.attempts[n] = if w.alive[n] { Attempt::Committed(epoch) } else { Attempt::Idle };
        Some(())
    });
    steps.add(format!("the answer for {n} is lost"), |w| {
        let Attempt::Committed(epoch) = w.attempts[n] else { return None };
        w.attempts[n] = Attempt::Unknown(epoch);
        Some(())
    });
    steps.add(format!("{n} records its success"), |w| {
        let Attempt::Committed(epoch) = w.attempts[n] else { return None };
        if w.holds(n, epoch) {
            w.task = Task::Succeeded;
        }
        w.attempts[n] = Attempt::Idle;
        Some(())
    });
}

/// A worker resolves its own attempt, or that of the other, dead worker.
fn resolutions(steps: &mut Steps, n: usize, bug: Option<Bug>) {
    steps.add(format!("{n} resolves its attempt"), |w| {
        let Attempt::Unknown(epoch) = w.attempts[n] else { return None };
        w.attempts[n] = Attempt::Resolved(epoch, w.resolve(epoch, bug)?);
        Some(())
    });
    steps.add(format!("{n} records what it found"), |w| {
        let Attempt::Resolved(epoch, done) = w.attempts[n] else { return None };
        w.attempts[n] = Attempt::Idle;
        if w.holds(n, epoch) && done {
            w.task = Task::Succeeded;
        } else if w.holds(n, epoch) {
            w.release();
        }
        Some(())
    });
    let other = 1 - n;
    steps.add(format!("{n} resolves the attempt of {other}"), |w| {
        let Task::Running { worker, epoch } = w.task else { return None };
        let may =
            w.alive[n] && w.attempts[n] == Attempt::Idle && worker == other && !w.alive[other];
        if !may {
            return None;
        }
        let higher = w.take_epoch();
        let done = match bug {
            Some(Bug::ReclaimsWithoutResolving) => false,
            _ => w.resolve(higher, bug)?,
        };
        w.attempts[n] = Attempt::ResolvedOther(epoch, done);
        Some(())
    });
    steps.add(format!("{n} records what it found about {other}"), |w| {
        let Attempt::ResolvedOther(epoch, done) = w.attempts[n] else { return None };
        w.attempts[n] = Attempt::Idle;
        if w.holds(other, epoch) && done {
            w.task = Task::Succeeded;
        } else if w.holds(other, epoch) {
            w.release();
        }
        Some(())
    });
}

/// Returns the rule that the state violates.
fn violated(world: &World) -> Option<&'static str> {
    if world.effects > 1 {
        Some("the effect was committed twice")
    } else if world.task == Task::Succeeded && world.effects == 0 {
        Some("the task succeeded without its effect")
    } else if world.task == Task::Cancelled && world.effects > 0 && !world.restored {
        Some("the task was cancelled, but its effect was committed")
    } else {
        None
    }
}

/// Visits every state. Returns their number, or the path to a violated rule, or to a state from which
/// the task can no longer end.
fn explore(bug: Option<Bug>) -> Result<usize, String> {
    let mut from: HashMap<World, Option<(World, String)>> = HashMap::from([(START, None)]);
    let mut before: HashMap<World, Vec<World>> = HashMap::new();
    let (mut open, mut ended) = (VecDeque::from([START]), VecDeque::new());
    let path = |from: &HashMap<World, Option<(World, String)>>, mut at: World| {
        let mut names = Vec::new();
        while let Some(Some((earlier, name))) = from.get(&at) {
            names.push(name.clone());
            at = *earlier;
        }
        names.reverse();
        names.join(", ")
    };
    while let Some(world) = open.pop_front() {
        if let Some(rule) = violated(&world) {
            return Err(format!("{rule}: {}", path(&from, world)));
        }
        if matches!(world.task, Task::Succeeded | Task::Cancelled) {
            ended.push_back(world);
        }
        for (name, next) in steps(world, bug) {
            before.entry(next).or_default().push(world);
            from.entry(next).or_insert_with(|| {
                open.push_back(next);
                Some((world, name))
            });
        }
    }
    // Near the largest epoch, steps are left out. States before it have to reach an end.
    let mut can_end: std::collections::HashSet<World> = ended.iter().copied().collect();
    while let Some(world) = ended.pop_front() {
        for earlier in before.get(&world).into_iter().flatten() {
            if can_end.insert(*earlier) {
                ended.push_back(*earlier);
            }
        }
    }
    let stuck = from.keys().find(|world| world.next_epoch <= 2 && !can_end.contains(world));
    match stuck {
        Some(world) => Err(format!("the task can no longer end: {}", path(&from, *world))),
        None => Ok(from.len()),
    }
}

#[test]
fn a_task_in_a_target_commits_at_most_once_and_can_always_end() {
    let states = explore(None).expect("the rules hold");
    println!("{states} states");
    assert!(states > 1000, "{states}");
}

#[test]
fn planted_bugs_are_found() {
    for (bug, rule) in [
        (Bug::IgnoresEpoch, "cancelled"),
        (Bug::IgnoresReceipt, "twice"),
        (Bug::ReclaimsWithoutResolving, "cancelled"),
        (Bug::DoesNotWait, "cancelled"),
        (Bug::RecordsFirst, "without its effect"),
    ] {
        let found = explore(Some(bug)).expect_err("the bug is found");
        println!("{bug:?}: {found}");
        assert!(found.contains(rule), "{bug:?}: {found}");
    }
}
