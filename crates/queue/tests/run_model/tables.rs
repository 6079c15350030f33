//! The tables of one run, and the functions of `schema/` that change them.
//!
//! `schema/31_run_advance.sql` and `schema/33_run_control.sql` implement the same functions.
//! `tests/runs/run_replay.rs` performs random walks on both, and compares the tables after each step.

use std::collections::{BTreeMap, BTreeSet};

use queue::Outcome;
use queue::run::{Expected, JoinMode, RunState, RunTaskState};

/// A planted bug, which a rule must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The events are deleted in a transaction of their own, before the advance.
    EventsDeletedFirst,
    /// An advance does not lock the row of the run.
    NoLock,
    /// A completion stays to be propagated after its propagation.
    PropagatesTwice,
    /// A task that waits for all parents starts after the first.
    FirstParentSuffices,
    /// An edge that expects `always` needs a parent that ran.
    AlwaysNeedsParent,
    /// A restart keeps the counters of the waiting tasks.
    RestartKeepsCounters,
    /// A restart leaves a task ready that waits for one of the restarted tasks.
    RestartKeepsReady,
    /// An added task is not counted.
    AddedNotCounted,
    /// A completion is propagated to an added task that is not counted yet.
    PropagatesToUncounted,
    /// A restart counts an added task before an advance does.
    RestartCountsUncounted,
    /// A cancel of the run ends an added task that is not counted yet.
    CancelsUncounted,
    /// A search for completions that reaches its bound is taken for complete.
    SearchEndsAtBound,
    /// A task that another session adds is not counted as a parent until an advance counts it.
    AddedParentNotCounted,
    /// A run ends when it has no more events.
    EndsWithoutEvents,
    /// A cancel of the run leaves its waiting tasks.
    CancelLeavesWaiting,
    /// A release does not check whether the run is cancelled.
    ReleasesInCancelledRun,
    /// A pass that reaches its bound adds no event for the next pass.
    NoEventForRest,
}

/// Bound of all that is not a pass of `mill.advance_run`.
pub(crate) const UNBOUNDED: usize = 2000;

/// Bound of a pass, and the planted bug.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// `max_count` of `mill.advance_run`.
    pub(crate) max_count: usize,
    pub(crate) bug: Option<Bug>,
}

impl Settings {
    pub(crate) fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

/// A row of `mill.run_tasks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) state: RunTaskState,
    pub(crate) join: JoinMode,
    pub(crate) parents: usize,
    pub(crate) satisfied: usize,
    pub(crate) unsatisfied: usize,
    pub(crate) parent_failed: bool,
    pub(crate) pending_propagation: bool,
    /// One more than the number of the last child; 0 for none.
    pub(crate) propagated_to: usize,
    /// Whether an attempt has started.
    pub(crate) started: bool,
    /// The task of the run that has added this one.
    pub(crate) added_by: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Edge {
    pub(crate) parent: usize,
    pub(crate) child: usize,
    pub(crate) expected: Expected,
}

/// A row of `mill.tasks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Task {
    pub(crate) running: bool,
    pub(crate) cancel_requested: bool,
}

/// A row of `mill.run_events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Event {
    pub(crate) node: Option<usize>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) started: bool,
}

impl Event {
    const EXAMINE: Self = Self { node: None, outcome: None, started: false };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tables {
    pub(crate) state: RunState,
    pub(crate) cancelled: bool,
    pub(crate) kill: bool,
    pub(crate) open: isize,
    pub(crate) needs_rescan: bool,
    pub(crate) nodes: Vec<Node>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) tasks: Vec<Option<Task>>,
    pub(crate) events: Vec<Event>,
}

/// The variables of an advance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pass {
    pub(crate) ended: Vec<usize>,
    pub(crate) added: Vec<usize>,
    pub(crate) events_left: bool,
    pub(crate) released: Vec<usize>,
    pub(crate) cancelled: Vec<usize>,
    pub(crate) more: bool,
}

pub(crate) fn is_open(state: RunTaskState) -> bool {
    use RunTaskState::{Ready, Released, Waiting};
    matches!(state, Waiting | Ready | Released)
}

fn never_runs(state: RunTaskState) -> bool {
    !matches!(state, RunTaskState::Waiting | RunTaskState::Ready)
}

/// `mill.satisfies`.
pub(crate) fn satisfies(state: RunTaskState, expected: Expected) -> bool {
    match (expected, state) {
        (Expected::Always, state) => !is_open(state),
        (expected, RunTaskState::Succeeded) => expected != Expected::Failed,
        (expected, RunTaskState::Failed) => expected != Expected::Succeeded,
        (expected, RunTaskState::Cancelled) => expected == Expected::Finished,
        _ => false,
    }
}

/// `mill.is_failure`.
pub(crate) fn is_failure(state: RunTaskState) -> bool {
    use RunTaskState::{Cancelled, Failed, UpstreamFailed};
    matches!(state, Failed | Cancelled | UpstreamFailed)
}

/// `mill.evaluate_join`.
pub(crate) fn evaluate_join(node: &Node) -> RunTaskState {
    let any = node.join == JoinMode::Any;
    if node.satisfied == node.parents || any && node.satisfied > 0 {
        RunTaskState::Ready
    } else if node.unsatisfied == node.parents || !any && node.unsatisfied > 0 {
        if node.parent_failed { RunTaskState::UpstreamFailed } else { RunTaskState::Skipped }
    } else {
        RunTaskState::Waiting
    }
}

impl Node {
    /// Counts the end of a parent.
    fn add(&mut self, satisfied: bool, failure: bool) {
        self.satisfied += usize::from(satisfied);
        self.unsatisfied += usize::from(!satisfied);
        self.parent_failed |= failure && !satisfied;
    }

    /// Sets the state that the counters imply.
    fn evaluate(&mut self, settings: Settings) {
        self.state = evaluate_join(self);
        if settings.has(Bug::FirstParentSuffices) && self.satisfied > 0 {
            self.state = RunTaskState::Ready;
        }
        self.pending_propagation = never_runs(self.state);
    }
}

impl Tables {
    /// `mill.create_run`.
    pub(crate) fn new(joins: &[JoinMode], edges: &[Edge]) -> Self {
        let node = |(n, join): (usize, &JoinMode)| {
            let parents = edges.iter().filter(|edge| edge.child == n).count();
            Node {
                state: if parents > 0 { RunTaskState::Waiting } else { RunTaskState::Ready },
                join: *join,
                parents,
                satisfied: 0,
                unsatisfied: 0,
                parent_failed: false,
                pending_propagation: false,
                propagated_to: 0,
                started: false,
                added_by: None,
            }
        };
        let mut tables = Self {
            state: RunState::Running,
            cancelled: false,
            kill: false,
            open: joins.len().cast_signed(),
            needs_rescan: false,
            nodes: joins.iter().enumerate().map(node).collect(),
            edges: edges.to_vec(),
            tasks: vec![None; joins.len()],
            events: vec![Event::EXAMINE],
        };
        tables.needs_rescan = tables.release_ready(BTreeSet::new(), true, UNBOUNDED).1;
        tables
    }

    /// The first statements of `mill.advance_run`: takes events, and ends their tasks. `None`: the run
    /// is not in progress.
    pub(crate) fn take(&mut self, settings: Settings) -> Option<Pass> {
        let count = self.events.len().min(settings.max_count);
        let taken: Vec<Event> = self.events.drain(..count).collect();
        if self.state != RunState::Running {
            return None;
        }
        let mut pass = Pass { events_left: count == settings.max_count, ..Pass::default() };
        for event in taken {
            let (Some(n), Some(outcome)) = (event.node, event.outcome) else {
                pass.added.extend(event.node);
                continue;
            };
            let node = &mut self.nodes[n];
            if node.state != RunTaskState::Released {
                continue;
            }
            node.state = match outcome {
                Outcome::Succeeded => RunTaskState::Succeeded,
                Outcome::Cancelled => RunTaskState::Cancelled,
                _ => RunTaskState::Failed,
            };
            (node.pending_propagation, node.propagated_to) = (true, 0);
            node.started = event.started;
            pass.ended.push(n);
        }
        self.open -= pass.ended.len().cast_signed();
        Some(pass)
    }

    /// Counts added tasks.
    pub(crate) fn count(&mut self, pass: &Pass, settings: Settings) {
        if pass.added.is_empty() || settings.has(Bug::AddedNotCounted) {
            return;
        }
        let after = self.edges.iter().filter(|edge| pass.added.contains(&edge.parent));
        let nodes = after.map(|edge| edge.child).chain(pass.added.iter().copied()).collect();
        self.open += pass.added.len().cast_signed();
        self.open -= self.recount(Some(&nodes), settings).cast_signed();
        self.needs_rescan = true;
    }

    /// The rest of `mill.advance_run`. Returns whether the run has ended.
    pub(crate) fn work(&mut self, pass: &mut Pass, settings: Settings) -> Result<bool, String> {
        if self.cancelled {
            self.cancel_open_tasks(pass, settings);
            self.needs_rescan = true;
        } else {
            let mut found = BTreeSet::new();
            let mut parents = pass.ended.clone();
            let unfinished = loop {
                let (full, ready, never_run) =
                    self.propagate(&parents, self.needs_rescan, settings);
                found.extend(ready);
                self.open -= never_run.len().cast_signed();
                let unfinished = full || found.len() >= settings.max_count;
                if unfinished || never_run.is_empty() {
                    break unfinished;
                }
                parents = never_run;
            };
            let (released, full) = self.release_ready(found, self.needs_rescan, settings.max_count);
            pass.released = released?;
            self.needs_rescan = unfinished || full;
            pass.more = self.needs_rescan;
        }
        pass.more |= pass.events_left;
        if pass.more && !settings.has(Bug::NoEventForRest) {
            self.events.push(Event::EXAMINE);
        }
        let ends = self.open == 0 || settings.has(Bug::EndsWithoutEvents) && self.events.is_empty();
        if !pass.more && ends {
            self.finish()?;
        }
        Ok(self.state != RunState::Running)
    }

    /// `mill.recount_dependencies`. Returns the number of tasks that will never run.
    pub(crate) fn recount(&mut self, nodes: Option<&BTreeSet<usize>>, settings: Settings) -> usize {
        let before = self.nodes.clone();
        let mut never_run = 0;
        for n in 0..before.len() {
            let included = match nodes {
                Some(nodes) => nodes.contains(&n),
                None => !self.is_uncounted(n),
            };
            if before[n].state != RunTaskState::Waiting || !included {
                continue;
            }
            let node = &mut self.nodes[n];
            (node.parents, node.satisfied, node.unsatisfied) = (0, 0, 0);
            node.parent_failed = false;
            for edge in self.edges.iter().filter(|edge| edge.child == n) {
                node.parents += 1;
                let parent = &before[edge.parent];
                let propagates = parent.pending_propagation && parent.propagated_to < n + 1;
                if !is_open(parent.state) && !propagates {
                    node.add(satisfies(parent.state, edge.expected), is_failure(parent.state));
                }
            }
            node.evaluate(settings);
            never_run += usize::from(never_runs(node.state));
        }
        never_run
    }

    /// `mill.propagate_completion`. Returns whether it has reached its bound, and the children that
    /// became ready or will never run.
    pub(crate) fn propagate(
        &mut self,
        parents: &[usize],
        search: bool,
        settings: Settings,
    ) -> (bool, Vec<usize>, Vec<usize>) {
        let pending =
            (0..self.nodes.len()).filter(|n| search && self.nodes[*n].pending_propagation);
        let found: Vec<usize> = pending.take(settings.max_count).collect();
        let source: BTreeSet<usize> = found.iter().chain(parents).copied().collect();
        let mut edges: Vec<Edge> = Vec::new();
        for parent in &source {
            let after = |edge: &&Edge| {
                edge.parent == *parent && edge.child + 1 > self.nodes[*parent].propagated_to
            };
            let mut own: Vec<Edge> = self.edges.iter().filter(after).copied().collect();
            own.sort_by_key(|edge| edge.child);
            edges.extend(own.iter().take(settings.max_count));
        }
        edges.truncate(settings.max_count);
        let full = edges.len() == settings.max_count;
        let searched = found.len() == settings.max_count && !settings.has(Bug::SearchEndsAtBound);
        let mut children: BTreeMap<usize, Node> = BTreeMap::new();
        for edge in &edges {
            if self.nodes[edge.child].state != RunTaskState::Waiting
                || self.is_uncounted(edge.child) && !settings.has(Bug::PropagatesToUncounted)
            {
                continue;
            }
            let mut satisfied = satisfies(self.nodes[edge.parent].state, edge.expected);
            if settings.has(Bug::AlwaysNeedsParent) && edge.expected == Expected::Always {
                satisfied = satisfies(self.nodes[edge.parent].state, Expected::Finished);
            }
            let failure = is_failure(self.nodes[edge.parent].state);
            children.entry(edge.child).or_insert(self.nodes[edge.child]).add(satisfied, failure);
        }
        let (mut ready, mut never_run) = (Vec::new(), Vec::new());
        for (n, mut node) in children {
            node.evaluate(settings);
            match node.state {
                RunTaskState::Waiting => {}
                RunTaskState::Ready => ready.push(n),
                _ => never_run.push(n),
            }
            self.nodes[n] = node;
        }
        let last = edges.last().copied();
        for n in source {
            if !full || last.is_some_and(|last| n < last.parent) {
                self.nodes[n].pending_propagation = settings.has(Bug::PropagatesTwice);
                self.nodes[n].propagated_to = 0;
            }
        }
        if let Some(last) = last.filter(|_| full) {
            self.nodes[last.parent].propagated_to = last.child + 1;
        }
        (full || searched, ready, never_run)
    }

    /// Whether the task was added, and no pass has counted it yet.
    pub(crate) fn is_uncounted(&self, n: usize) -> bool {
        self.events.iter().any(|event| event.node == Some(n) && event.outcome.is_none())
    }

    /// `mill.release_ready`. Returns the released tasks, and whether there may be more.
    pub(crate) fn release_ready(
        &mut self,
        mut nodes: BTreeSet<usize>,
        search: bool,
        max_count: usize,
    ) -> (Result<Vec<usize>, String>, bool) {
        let is_ready = |n: &usize| self.nodes[*n].state == RunTaskState::Ready;
        nodes.extend((0..self.nodes.len()).filter(|n| search && is_ready(n)).take(max_count));
        let picked: Vec<usize> = nodes.into_iter().take(max_count).filter(is_ready).collect();
        let full = picked.len() == max_count;
        for n in &picked {
            if self.tasks[*n].is_some() {
                return (
                    Err("a task entered the queue while it was in the queue".to_owned()),
                    full,
                );
            }
            self.nodes[*n].state = RunTaskState::Released;
            self.tasks[*n] = Some(Task::default());
        }
        (Ok(picked), full)
    }

    /// `mill.cancel_open_tasks`.
    fn cancel_open_tasks(&mut self, pass: &mut Pass, settings: Settings) {
        use RunTaskState::{Ready, Waiting};
        let cancels = |n: &usize| {
            matches!(self.nodes[*n].state, Waiting | Ready)
                && !settings.has(Bug::CancelLeavesWaiting)
                && (!self.is_uncounted(*n) || settings.has(Bug::CancelsUncounted))
        };
        let waiting: Vec<usize> =
            (0..self.nodes.len()).filter(cancels).take(settings.max_count).collect();
        let waited = waiting.len();
        for n in waiting {
            self.nodes[n].state = RunTaskState::Cancelled;
        }
        self.open -= waited.cast_signed();
        let idle = |task: &Option<Task>| task.is_some_and(|task| !task.running);
        let live: Vec<usize> = (0..self.tasks.len())
            .filter(|n| idle(&self.tasks[*n]))
            .take(settings.max_count)
            .collect();
        for n in &live {
            self.tasks[*n] = None;
            let outcome = Some(Outcome::Cancelled);
            self.events.push(Event { node: Some(*n), outcome, started: false });
        }
        for task in self.tasks.iter_mut().flatten().filter(|task| task.running) {
            task.cancel_requested |= self.kill;
        }
        pass.more = waited == settings.max_count || !live.is_empty() || self.tasks.iter().any(idle);
        pass.cancelled = live;
    }

    /// `mill.finish_run`.
    fn finish(&mut self) -> Result<(), String> {
        let has = |state| self.nodes.iter().any(|node| node.state == state);
        if self.nodes.iter().any(|node| is_open(node.state)) {
            return Err("a run ended before its tasks (every_task_counts)".to_owned());
        }
        self.state = match () {
            () if self.cancelled => RunState::Cancelled,
            () if has(RunTaskState::Failed) => RunState::Failed,
            () if has(RunTaskState::Cancelled) => RunState::Cancelled,
            () => RunState::Succeeded,
        };
        self.open = 0;
        Ok(())
    }

    /// Returns these nodes, and the nodes after them that `follow` accepts.
    pub(crate) fn downstream(
        &self,
        first: impl Iterator<Item = usize>,
        follow: impl Fn(&Node) -> bool,
    ) -> BTreeSet<usize> {
        let mut chosen: BTreeSet<usize> = first.collect();
        loop {
            let after = self.edges.iter().filter(|edge| chosen.contains(&edge.parent));
            let after = after.map(|edge| edge.child).filter(|n| follow(&self.nodes[*n]));
            let more: Vec<usize> = after.filter(|n| !chosen.contains(n)).collect();
            if more.is_empty() {
                return chosen;
            }
            chosen.extend(more);
        }
    }
}
