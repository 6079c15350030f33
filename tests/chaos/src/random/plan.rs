//! The plan of a run, determined by the seed alone.

use std::fmt::{self, Display, Formatter};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::work_item::{KEYS, LIMITED_QUEUE, SHARED, WorkItem};

/// Numbers of tasks and faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) tasks: usize,
    pub(crate) kills: usize,
    pub(crate) crashes: usize,
    pub(crate) promote: bool,
}

/// Kind of fault. `draw` selects among the workers present at that moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// SIGKILL for a worker.
    Kill { draw: u32 },
    /// SIGSTOP for a worker, and SIGCONT after `ms` milliseconds.
    Stop { draw: u32, ms: u64 },
    /// `pg_terminate_backend` for `count` sessions.
    EndSessions { count: i64 },
    /// `pg_ctl stop -m immediate`, and start.
    Immediate,
    /// SIGKILL for the whole server, and start.
    Crash,
    /// The primary is lost, and the standby is promoted.
    Promote,
    /// SIGKILL for the whole server of the target, and start.
    CrashTarget,
    /// SIGSTOP for the server of the target, and SIGCONT after `ms` milliseconds.
    FreezeTarget { ms: u64 },
}

/// Kind of operator action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OperatorAction {
    Cancel {
        draw: u32,
    },
    /// Cancels several tasks of one queue in one call.
    CancelMany {
        queue: &'static str,
        count: i64,
    },
    Retry {
        draw: u32,
    },
    CancelRun {
        draw: u32,
        kill: bool,
    },
    RestartRun {
        draw: u32,
    },
    Pause {
        queue: &'static str,
    },
    Resume,
    Drain,
    Undrain,
    /// SIGTERM for a worker with an immediate replacement: a deploy.
    Deploy {
        draw: u32,
    },
    Limit {
        kind: &'static str,
        name: &'static str,
        max_running: i32,
    },
    SetSharedCommit {
        on: bool,
    },
}

/// One step of the plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Load(Vec<WorkItem>),
    Break(Fault),
    OperatorAction(OperatorAction),
    /// Milliseconds in which the fleet works undisturbed.
    Wait(u64),
}

/// A whole plan.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) steps: Vec<Step>,
}

impl Plan {
    /// Draws a plan; equal seeds and sizes produce equal plans.
    pub(crate) fn draw(seed: u64, size: Size) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let events = events(size, &mut random);
        let items = items(size.tasks, &mut random);
        let mut items = items.into_iter().peekable();
        let mut steps = Vec::new();
        let (places, mut asked) = (events.len() + 1, 0);
        for (n, event) in events.into_iter().map(Some).chain([None]).enumerate() {
            let until = size.tasks * (n + 1) / places;
            let mut chunk = Vec::new();
            while asked < until
                && let Some(item) = items.next()
            {
                asked += item.tasks();
                chunk.push(item);
            }
            steps.push(Step::Load(chunk));
            let Some(event) = event else { break };
            let rest = match event {
                Step::Break(Fault::Immediate | Fault::Crash | Fault::Promote) => 1000..2500,
                Step::Break(_) => 50..700,
                _ => 0..200,
            };
            steps.extend([event, Step::Wait(random.random_range(rest))]);
        }
        Self { seed, steps }
    }
}

/// Returns faults and actions in random order, with the promotion in the last third.
fn events(size: Size, random: &mut StdRng) -> Vec<Step> {
    let mut events = Vec::new();
    for n in 0..size.crashes {
        events.push(Step::Break(if n % 2 == 0 { Fault::Immediate } else { Fault::Crash }));
        events.push(Step::Break(if n % 2 == 0 {
            Fault::CrashTarget
        } else {
            Fault::FreezeTarget { ms: random.random_range(100..4000) }
        }));
    }
    events.extend((0..size.kills).map(|_| Step::Break(Fault::Kill { draw: random.random() })));
    for _ in 0..size.kills.div_ceil(20) {
        let (draw, ms) = (random.random(), random.random_range(500..8000));
        events.push(Step::Break(Fault::Stop { draw, ms }));
        let count = random.random_range(1..8);
        events.push(Step::Break(Fault::EndSessions { count }));
    }
    events.extend((0..size.tasks.div_ceil(100)).map(|_| Step::OperatorAction(act(random))));
    events.shuffle(random);
    if size.promote {
        let place = random.random_range(events.len() * 2 / 3..=events.len());
        events.insert(place, Step::Break(Fault::Promote));
    }
    events
}

fn act(random: &mut StdRng) -> OperatorAction {
    let draw = random.random();
    let queue = ["default", SHARED, LIMITED_QUEUE.0][random.random_range(0..3)];
    match random.random_range(0..100) {
        0..=19 => OperatorAction::Cancel { draw },
        20..=24 => OperatorAction::CancelMany { queue, count: random.random_range(1..30) },
        25..=44 => OperatorAction::Retry { draw },
        45..=52 => OperatorAction::CancelRun { draw, kill: random.random() },
        53..=60 => OperatorAction::RestartRun { draw },
        61..=64 => OperatorAction::Pause { queue },
        65..=72 => OperatorAction::Resume,
        73..=75 => OperatorAction::Drain,
        76..=80 => OperatorAction::Undrain,
        81..=86 => OperatorAction::Deploy { draw },
        87..=96 => {
            let (kind, (name, max_running)) = match random.random_range(0..=KEYS.len()) {
                n if n < KEYS.len() => ("key", KEYS[n]),
                _ => ("queue", LIMITED_QUEUE),
            };
            OperatorAction::Limit { kind, name, max_running: random.random_range(1..=max_running) }
        }
        _ => OperatorAction::SetSharedCommit { on: random.random() },
    }
}

fn items(tasks: usize, random: &mut StdRng) -> Vec<WorkItem> {
    let mut items = Vec::new();
    let mut asked = 0;
    while asked < tasks {
        let item = WorkItem::draw(items.len(), random);
        asked += item.tasks();
        items.push(item);
    }
    items
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        for step in &self.steps {
            match step {
                Step::Load(items) => {
                    for item in items {
                        writeln!(f, "load {}", item.call())?;
                    }
                }
                Step::Break(fault) => writeln!(f, "break {fault:?}")?,
                Step::OperatorAction(act) => writeln!(f, "act {act:?}")?,
                Step::Wait(ms) => writeln!(f, "wait {ms} ms")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { tasks: 3000, kills: 20, crashes: 2, promote: true };

    #[test]
    fn equal_seeds_make_equal_plans_and_others_do_not() {
        let plan = Plan::draw(7, SIZE);
        assert_eq!(plan, Plan::draw(7, SIZE));
        assert_eq!(plan.to_string(), Plan::draw(7, SIZE).to_string());
        assert_ne!(plan.steps, Plan::draw(8, SIZE).steps);
    }

    #[test]
    fn a_plan_has_the_requested_size() {
        for seed in 0..20 {
            let plan = Plan::draw(seed, SIZE);
            let count = |what: fn(&Fault) -> bool| {
                let broken = |step: &&Step| matches!(step, Step::Break(fault) if what(fault));
                plan.steps.iter().filter(broken).count()
            };
            assert_eq!(count(|fault| matches!(fault, Fault::Kill { .. })), 20);
            assert_eq!(count(|fault| matches!(fault, Fault::Immediate | Fault::Crash)), 2);
            assert_eq!(count(|fault| matches!(fault, Fault::Promote)), 1);
            let tasks: usize = plan
                .steps
                .iter()
                .filter_map(|step| match step {
                    Step::Load(items) => Some(items.iter().map(WorkItem::tasks).sum::<usize>()),
                    _ => None,
                })
                .sum();
            assert!((3000..3050).contains(&tasks), "{tasks}");
            let promoted =
                plan.steps.iter().position(|step| matches!(step, Step::Break(Fault::Promote)));
            assert!(promoted.is_some_and(|n| n > plan.steps.len() * 6 / 10));
        }
    }
}
