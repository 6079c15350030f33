//! A run with its workers, advancers and operators: the possible steps, and the rules.

use queue::Outcome;
use queue::run::{Expected, JoinMode, RestartOptions, RunState, RunTaskState};

use super::explore::{Step, System};
use super::tables::{Bug, Edge, Pass, Settings, Tables, is_open};

/// How a task really ended, as opposed to what the tables say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Succeeded,
    Failed,
    Cancelled,
    NeverRan,
}

/// A task that is added to the run.
#[derive(Clone, Debug)]
pub(crate) struct Added {
    /// The task that adds it; `None`: another session.
    pub(crate) by: Option<usize>,
    pub(crate) after: Vec<usize>,
    pub(crate) before: Vec<usize>,
}

/// A graph, and the events that can occur in its run.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) joins: Vec<JoinMode>,
    pub(crate) edges: Vec<Edge>,
    /// Tasks that can fail.
    pub(crate) fails: Vec<usize>,
    /// Tasks whose claims can be released, any number of times.
    pub(crate) released: Vec<usize>,
    pub(crate) added: Option<Added>,
    /// Maximum number of restarts, reruns and retries by operators.
    pub(crate) restarts: u8,
    /// Whether the run, and its tasks in the queue, can be cancelled.
    pub(crate) cancels: bool,
    pub(crate) settings: Settings,
}

/// An advance whose transaction is open. It has locked the row of the run.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Advance {
    tables: Tables,
    pass: Pass,
    counted: bool,
    /// Number of committed events that the transaction has seen.
    seen: usize,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// What is committed.
    pub(crate) tables: Tables,
    advances: Vec<Advance>,
    ends: Vec<Option<End>>,
    /// Tasks that entered the queue since the last restart that includes them.
    entered: Vec<bool>,
    restarts: u8,
    added: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Begins to advance the run: locks it and takes events.
    Begin,
    /// Counts added tasks.
    Count {
        advance: usize,
    },
    /// Propagates, releases and commits.
    Commit {
        advance: usize,
    },
    /// The worker that advances the run dies.
    Crash {
        advance: usize,
    },
    Claim(usize),
    Succeed(usize),
    Fail(usize),
    Release(usize),
    StopCancelled(usize),
    CancelTask(usize),
    CancelRun {
        kill: bool,
    },
    AddTask,
    Restart {
        never_run: bool,
        downstream: bool,
    },
    Rerun {
        task: usize,
        downstream: bool,
    },
    Retry(usize),
}

/// Whether an end is what the edge expects. Written independently of [`super::tables::satisfies`].
fn fits(end: End, expected: Expected) -> bool {
    match expected {
        Expected::Always => true,
        Expected::Finished => end != End::NeverRan,
        Expected::Succeeded => end == End::Succeeded,
        Expected::Failed => end == End::Failed,
    }
}

impl World {
    /// Checks what a transaction has committed, and remembers which tasks it has released or ended.
    /// `again`: the tasks that it runs again.
    fn observe(&mut self, new: Tables, again: &[usize]) -> Result<(), String> {
        let old = std::mem::replace(&mut self.tables, new);
        // A restart removes the task that a restarted task has added.
        self.added &= self.tables.nodes.len() >= old.nodes.len();
        self.resize();
        for n in again {
            (self.entered[*n], self.ends[*n]) = (false, None);
        }
        let state_before = |n: usize| match old.nodes.get(n) {
            Some(node) if !again.contains(&n) => node.state,
            _ => Waiting,
        };
        use RunTaskState::{Cancelled, Ready, Released, Skipped, UpstreamFailed, Waiting};
        let changed = (0..self.tables.nodes.len())
            .filter(|n| self.tables.nodes[*n].state != state_before(*n))
            .collect::<Vec<_>>();
        for n in &changed {
            match self.tables.nodes[*n].state {
                UpstreamFailed | Skipped => self.ends[*n] = Some(End::NeverRan),
                Cancelled if matches!(state_before(*n), Waiting | Ready) => {
                    self.ends[*n] = Some(End::Cancelled);
                }
                _ => {}
            }
        }
        for n in changed {
            let join = self.tables.nodes[n].join;
            let edges = self.tables.edges.iter().filter(|edge| edge.child == n);
            let parents: Vec<Option<bool>> = edges
                .map(|edge| self.ends[edge.parent].map(|end| fits(end, edge.expected)))
                .collect();
            let some = |fit| parents.contains(&Some(fit));
            let only = |fit| parents.iter().all(|parent| *parent == Some(fit));
            match self.tables.nodes[n].state {
                Released if std::mem::replace(&mut self.entered[n], true) => {
                    return Err("a task entered the queue twice".to_owned());
                }
                Released if old.cancelled && self.tables.cancelled => {
                    return Err("a task of a cancelled run entered the queue".to_owned());
                }
                Released if !(only(true) || join == JoinMode::Any && some(true)) => {
                    return Err("a task entered the queue before its parents ended".to_owned());
                }
                UpstreamFailed | Skipped
                    if !(only(false) || join == JoinMode::All && some(false)) =>
                {
                    return Err("a task was given up although it could run".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn resize(&mut self) {
        self.ends.resize(self.tables.nodes.len(), None);
        self.entered.resize(self.tables.nodes.len(), false);
    }

    fn is_running(&self, n: usize) -> bool {
        self.tables.tasks[n].is_some_and(|task| task.running)
    }

    fn end(&mut self, n: usize, outcome: Outcome, end: End) {
        self.tables.end(n, outcome);
        self.ends[n] = Some(end);
    }
}

impl Advance {
    /// Each statement sees what other transactions have committed before it.
    fn refresh(&mut self, committed: &Tables) {
        let known = self.tables.nodes.len();
        self.tables.nodes.extend(&committed.nodes[known..]);
        self.tables.edges.clone_from(&committed.edges);
        self.tables.tasks.clone_from(&committed.tasks);
        self.tables.events.extend(committed.events.get(self.seen..).unwrap_or_default());
        self.seen = committed.events.len();
    }
}

impl Graph {
    /// Begins an advance; `cancel`: within a cancel of the run.
    fn begin(&self, world: &mut World, cancel: Option<bool>) -> Option<()> {
        let room = world.advances.is_empty()
            || self.settings.has(Bug::NoLock) && world.advances.len() == 1;
        let mut tables = world.tables.clone();
        let mut seen = tables.events.len();
        if !room || !cancel.map_or(seen > 0, |kill| tables.cancel(kill)) {
            return None;
        }
        let Some(pass) = tables.take(self.settings) else {
            world.tables = tables;
            return Some(());
        };
        if self.settings.has(Bug::EventsDeletedFirst) {
            world.tables.events.clone_from(&tables.events);
            seen = tables.events.len();
        }
        let counted = pass.added.is_empty();
        world.advances.push(Advance { tables, pass, counted, seen });
        Some(())
    }

    /// Applies an action. `None`: it is not possible now.
    fn apply(&self, world: &mut World, action: Action) -> Option<Result<(), String>> {
        let settings = self.settings;
        match action {
            Action::Begin => self.begin(world, None)?,
            Action::CancelRun { kill } => {
                let new = !world.tables.cancelled || kill && !world.tables.kill;
                (self.cancels && new).then(|| self.begin(world, Some(kill)))??;
            }
            Action::Count { advance } => {
                let open = world.advances.get_mut(advance).filter(|open| !open.counted)?;
                open.refresh(&world.tables);
                open.tables.count(&open.pass, settings);
                open.counted = true;
            }
            Action::Commit { advance } => {
                world.advances.get(advance).filter(|open| open.counted)?;
                let mut open = world.advances.remove(advance);
                open.refresh(&world.tables);
                let result = open.tables.work(&mut open.pass, settings);
                for n in &open.pass.cancelled {
                    world.ends[*n] = Some(End::Cancelled);
                }
                return Some(result.and_then(|_| world.observe(open.tables, &[])));
            }
            Action::Crash { advance } => {
                (advance < world.advances.len()).then(|| world.advances.remove(advance))?;
            }
            action => return self.act(world, action),
        }
        Some(Ok(()))
    }

    /// Applies an action of a worker or an operator.
    fn act(&self, world: &mut World, action: Action) -> Option<Result<(), String>> {
        let unlocked = world.advances.is_empty();
        match action {
            Action::Claim(n) => {
                let bounded = self.settings.max_count < world.tables.nodes.len();
                let task = world.tables.tasks[n].as_mut().filter(|task| !task.running)?;
                task.running = true;
                if world.tables.cancelled && !bounded {
                    return Some(Err("a task of a cancelled run started".to_owned()));
                }
            }
            Action::Succeed(n) => {
                world.is_running(n).then(|| world.end(n, Outcome::Succeeded, End::Succeeded))?;
            }
            Action::Fail(n) => {
                let fails = self.fails.contains(&n) && world.is_running(n);
                fails.then(|| world.end(n, Outcome::Failed, End::Failed))?;
            }
            Action::Release(n) => {
                let again = self.released.contains(&n) && world.is_running(n) && unlocked;
                if again.then(|| world.tables.release(n, self.settings))? {
                    world.ends[n] = Some(End::Cancelled);
                }
            }
            Action::StopCancelled(n) => {
                world.tables.tasks[n].filter(|task| task.running && task.cancel_requested)?;
                world.end(n, Outcome::Cancelled, End::Cancelled);
            }
            Action::CancelTask(n) => {
                world.tables.tasks[n].filter(|task| self.cancels && !task.running)?;
                world.end(n, Outcome::Cancelled, End::Cancelled);
                world.tables.events.last_mut()?.started = false;
            }
            Action::AddTask => {
                let Added { by, after, before } = self.added.as_ref().filter(|_| !world.added)?;
                if by.map_or(!unlocked, |by| !world.is_running(by)) {
                    return None;
                }
                world.tables.add(*by, (after, before), self.settings).then_some(())?;
                world.added = true;
                world.resize();
            }
            action => return unlocked.then(|| self.operate(world, action))?,
        }
        Some(Ok(()))
    }

    /// Applies an action of an operator that locks the run.
    fn operate(&self, world: &mut World, action: Action) -> Option<Result<(), String>> {
        let mut tables = world.tables.clone();
        if world.restarts == self.restarts {
            return None;
        }
        let again = match action {
            Action::Restart { never_run, downstream } => {
                let options = RestartOptions { failed: true, never_run, downstream, force: true };
                tables.restart(options, self.settings)
            }
            Action::Rerun { task, downstream } => tables.rerun(task, downstream, self.settings),
            Action::Retry(n) => tables.retry(n, self.settings),
            _ => None,
        }?;
        world.restarts += 1;
        Some(world.observe(tables, &again))
    }

    /// Returns the actions that may be possible.
    fn plausible(&self, world: &World) -> Vec<Action> {
        let mut actions = vec![Action::Begin];
        for advance in 0..world.advances.len() {
            actions.extend([
                Action::Count { advance },
                Action::Commit { advance },
                Action::Crash { advance },
            ]);
        }
        if self.added.is_some() && !world.added {
            actions.push(Action::AddTask);
        }
        let ended = world.tables.state != RunState::Running;
        if self.cancels && !ended {
            actions.extend([false, true].map(|kill| Action::CancelRun { kill }));
        }
        let again = world.restarts < self.restarts && world.advances.is_empty();
        if again && ended {
            let options = [(false, false), (true, false), (false, true), (true, true)];
            let restart = |(never_run, downstream)| Action::Restart { never_run, downstream };
            actions.extend(options.map(restart));
        }
        for n in 0..world.tables.nodes.len() {
            match world.tables.tasks[n] {
                Some(task) if task.running => {
                    actions.extend([Action::Succeed(n), Action::Fail(n)]);
                    actions.extend([Action::Release(n), Action::StopCancelled(n)]);
                }
                Some(_) => actions.extend([Action::Claim(n), Action::CancelTask(n)]),
                None if again => {
                    actions.push(Action::Retry(n));
                    let rerun = |downstream| Action::Rerun { task: n, downstream };
                    actions.extend([false, true].map(rerun));
                }
                None => {}
            }
        }
        actions
    }

    /// How a run with these ends must end.
    fn expected_state(world: &World) -> RunState {
        let has = |end| world.ends.contains(&Some(end));
        match () {
            () if world.tables.cancelled => RunState::Cancelled,
            () if has(End::Failed) => RunState::Failed,
            () if has(End::Cancelled) => RunState::Cancelled,
            () => RunState::Succeeded,
        }
    }
}

impl System for Graph {
    type State = World;
    type Action = Action;

    fn initial(&self) -> World {
        let tables = Tables::new(&self.joins, &self.edges);
        let released = tables.tasks.iter().map(Option::is_some).collect();
        let mut world = World {
            tables,
            advances: Vec::new(),
            ends: Vec::new(),
            entered: released,
            restarts: 0,
            added: false,
        };
        world.resize();
        world
    }

    fn steps(&self, world: &World) -> Vec<Step<Self>> {
        let apply = |action: Action| {
            let mut next = world.clone();
            let applied = self.apply(&mut next, action)?;
            Some((action, applied.map(|()| next)))
        };
        self.plausible(world).into_iter().filter_map(apply).collect()
    }

    fn canonical(&self, world: World) -> World {
        world
    }

    fn broken(&self, world: &World) -> Result<(), String> {
        let tables = &world.tables;
        let open = tables.nodes.iter().filter(|node| is_open(node.state)).count().cast_signed();
        let rests = world.advances.is_empty() && tables.events.is_empty();
        if tables.state == RunState::Running {
            if rests && open != tables.open {
                return Err("the number of open tasks is wrong".to_owned());
            }
            return Ok(());
        }
        if tables.tasks.iter().any(Option::is_some) || world.ends.contains(&None) {
            return Err("a run ended before its tasks".to_owned());
        }
        let state = |end| match end {
            Some(End::Succeeded) => Some(RunTaskState::Succeeded),
            Some(End::Failed) => Some(RunTaskState::Failed),
            Some(End::Cancelled) => Some(RunTaskState::Cancelled),
            _ => None,
        };
        let differs = |(node, end): (&super::tables::Node, &Option<End>)| {
            state(*end).is_some_and(|state| state != node.state)
        };
        if tables.nodes.iter().zip(&world.ends).any(differs) {
            return Err("the state of a task is not its outcome".to_owned());
        }
        if tables.state != Self::expected_state(world) {
            return Err("the state of the run does not follow from its tasks".to_owned());
        }
        Ok(())
    }

    fn ended(&self, world: &World) -> bool {
        world.tables.state != RunState::Running && world.advances.is_empty()
    }
}
