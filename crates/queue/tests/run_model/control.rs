//! The actions of operators, of workers and of tasks on the tables of a run.

use std::collections::BTreeSet;

use queue::Outcome;
use queue::run::{Expected, JoinMode, RestartOptions, RunState, RunTaskState};

use super::tables::{Bug, Edge, Event, Node, Settings, Tables, UNBOUNDED, is_open};

impl Tables {
    /// A worker ends a running task.
    pub(crate) fn end(&mut self, n: usize, outcome: Outcome) {
        self.tasks[n] = None;
        self.events.push(Event { node: Some(n), outcome: Some(outcome), started: true });
    }

    /// A worker releases a running task, unless it is cancelled: `mill.release_claim`. Returns whether
    /// the task has ended.
    pub(crate) fn release(&mut self, n: usize, settings: Settings) -> bool {
        let requested = self.tasks[n].is_some_and(|task| task.cancel_requested);
        if requested || self.cancelled && !settings.has(Bug::ReleasesInCancelledRun) {
            self.end(n, Outcome::Cancelled);
            return true;
        }
        if let Some(task) = &mut self.tasks[n] {
            task.running = false;
        }
        false
    }

    /// The first statements of `mill.cancel_run`, which then advances the run. Returns `false` if the
    /// run is not in progress.
    pub(crate) fn cancel(&mut self, kill: bool) -> bool {
        if self.state != RunState::Running {
            return false;
        }
        self.cancelled = true;
        self.kill |= kill;
        self.events.push(Event { node: None, outcome: None, started: false });
        true
    }

    /// `mill.restart_run`. Returns the names of the tasks; `None` if it is refused.
    pub(crate) fn restart(
        &mut self,
        options: RestartOptions,
        settings: Settings,
    ) -> Option<Vec<usize>> {
        use RunTaskState::{Cancelled, Failed, Skipped, UpstreamFailed};
        if self.state == RunState::Running || self.state == RunState::Cancelled && !options.force {
            return None;
        }
        let chosen = |node: &Node| {
            let failed = matches!(node.state, Failed | Cancelled) && node.started;
            let never_ran =
                matches!(node.state, Cancelled | UpstreamFailed | Skipped) && !node.started;
            (options.failed || options.downstream) && failed || options.never_run && never_ran
        };
        let first = (0..self.nodes.len()).filter(|n| chosen(&self.nodes[*n]));
        let nodes = self.downstream(first, |node| {
            options.downstream || matches!(node.state, UpstreamFailed | Skipped)
        });
        if nodes.is_empty() { None } else { self.run_again(&nodes, settings) }
    }

    /// `mill.rerun_run` for one task; `downstream`: also for all tasks after it.
    pub(crate) fn rerun(
        &mut self,
        n: usize,
        downstream: bool,
        settings: Settings,
    ) -> Option<Vec<usize>> {
        let nodes = self.downstream(std::iter::once(n), |_| downstream);
        self.run_again(&nodes, settings)
    }

    /// `mill.retry_run_task`.
    pub(crate) fn retry(&mut self, n: usize, settings: Settings) -> Option<Vec<usize>> {
        use RunTaskState::{Cancelled, Failed, Skipped, UpstreamFailed};
        if !matches!(self.nodes[n].state, Failed | Cancelled) {
            return None;
        }
        let never_ran = |node: &Node| matches!(node.state, UpstreamFailed | Skipped);
        let nodes = self.downstream(std::iter::once(n), never_ran);
        self.run_again(&nodes, settings)
    }

    /// `mill.run_again`. Changes nothing if it is refused.
    fn run_again(&mut self, nodes: &BTreeSet<usize>, settings: Settings) -> Option<Vec<usize>> {
        use RunTaskState::{Ready, Released, Skipped, UpstreamFailed, Waiting};
        let settings = Settings { max_count: UNBOUNDED, ..settings };
        let is_added = |n: &usize| self.nodes[*n].added_by.is_some_and(|by| nodes.contains(&by));
        let added: BTreeSet<usize> = (0..self.nodes.len()).filter(is_added).collect();
        let busy = |n: &usize| matches!(self.nodes[*n].state, Ready | Released);
        if self.state == RunState::Running && self.cancelled || nodes.union(&added).any(busy) {
            return None;
        }
        let mut new = self.clone();
        new.remove(&added);
        let nodes: BTreeSet<usize> = nodes.difference(&added).copied().collect();
        if new.state != RunState::Running {
            (new.state, new.cancelled, new.kill) = (RunState::Running, false, false);
        }
        for n in nodes.iter().filter(|n| !self.is_uncounted(**n)) {
            let node = &mut new.nodes[*n];
            (node.state, node.started) = (Waiting, false);
            (node.pending_propagation, node.propagated_to) = (false, 0);
        }
        if !settings.has(Bug::RestartKeepsReady) {
            for edge in self.edges.iter().filter(|edge| nodes.contains(&edge.parent)) {
                let child = new.nodes.get_mut(edge.child).filter(|it| it.state == Ready);
                child.into_iter().for_each(|it| it.state = Waiting);
            }
        }
        if !settings.has(Bug::RestartKeepsCounters) {
            new.recount(None, settings);
        }
        loop {
            let (full, _, never_run) = new.propagate(&[], true, settings);
            if !full && never_run.is_empty() {
                break;
            }
        }
        let never_ran = |n: &usize| matches!(new.nodes[*n].state, UpstreamFailed | Skipped);
        let names: Vec<usize> = nodes.iter().filter(|n| !never_ran(n)).copied().collect();
        if names.is_empty() {
            return None;
        }
        new.release_ready(BTreeSet::new(), true, UNBOUNDED).0.ok()?;
        new.needs_rescan = true;
        let counted = |n: &usize| {
            is_open(new.nodes[*n].state)
                && (!new.is_uncounted(*n) || settings.has(Bug::RestartCountsUncounted))
        };
        new.open = (0..new.nodes.len()).filter(counted).count().cast_signed();
        new.events.push(Event { node: None, outcome: None, started: false });
        *self = new;
        Some(names)
    }

    /// Removes added tasks, which are the last ones.
    fn remove(&mut self, added: &BTreeSet<usize>) {
        self.edges.retain(|edge| !added.contains(&edge.parent) && !added.contains(&edge.child));
        self.events.retain(|event| event.node.is_none_or(|n| !added.contains(&n)));
        self.nodes.truncate(self.nodes.len() - added.len());
        self.tasks.truncate(self.nodes.len());
    }

    /// `mill.add_run_task`, called by a task of the run (`by`) or by another session. Returns whether
    /// the task was added.
    pub(crate) fn add(
        &mut self,
        by: Option<usize>,
        (after, before): (&[usize], &[usize]),
        settings: Settings,
    ) -> bool {
        let follows = |n: usize| {
            self.nodes[n].state == RunTaskState::Waiting
                && by.is_none_or(|by| {
                    n != by && self.downstream(std::iter::once(by), |_| true).contains(&n)
                })
        };
        if self.state != RunState::Running
            || self.cancelled
            || !before.iter().all(|n| follows(*n))
            || after.iter().any(|after| {
                let upstream = self.downstream(before.iter().copied(), |_| true);
                upstream.contains(after)
            })
        {
            return false;
        }
        let added = self.nodes.len();
        self.nodes.push(Node {
            state: RunTaskState::Waiting,
            join: JoinMode::All,
            parents: after.len(),
            satisfied: 0,
            unsatisfied: 0,
            parent_failed: false,
            pending_propagation: false,
            propagated_to: 0,
            started: false,
            added_by: by,
        });
        let edge = |parent, child| Edge { parent, child, expected: Expected::Succeeded };
        self.edges.extend(after.iter().map(|parent| edge(*parent, added)));
        self.edges.extend(before.iter().map(|child| edge(added, *child)));
        if by.is_none() && !settings.has(Bug::AddedParentNotCounted) {
            before.iter().for_each(|child| self.nodes[*child].parents += 1);
        }
        self.tasks.push(None);
        self.events.push(Event { node: Some(added), outcome: None, started: false });
        true
    }
}
