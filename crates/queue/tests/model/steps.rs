//! The possible steps of a state, and their effects.

use queue::{Mode, State};

use crate::model::{Action, Bug, Model, claimed_by_dead};
use crate::transitions::RuleViolation;
use crate::world::{Backend, BackendActivity, Claim, DEPARTED, Fault, Worker, WorkerView, World};

impl Model {
    fn meets(&self, fault: Fault) -> bool {
        self.size.faults.contains(&fault)
    }

    /// Adds the steps of a worker, and the faults that may hit it.
    pub(crate) fn of_worker(&self, world: &World, worker: u8, actions: &mut Vec<Action>) {
        let Worker { stopped, holds } = world.workers[usize::from(worker)];
        let claims = world.rows.iter().any(|row| row.claimed_by == Some(worker));
        if stopped {
            return actions.push(Action::WorkerWakes { worker });
        }
        if holds.is_some() || claims {
            actions.push(Action::WorkerDies { worker });
            actions.extend(self.size.stops.then_some(Action::WorkerStops { worker }));
        }
        for (task, row) in (0..).zip(&world.rows) {
            if row.state == Some(State::Pending) && holds.is_none() {
                actions.push(Action::Claim { worker, task });
                if self.meets(Fault::ConnectionLost) {
                    actions.push(Action::ClaimUnheard { worker, task });
                }
            }
            let held = holds.is_some_and(|(claim, _)| Some(claim.token) == row.token);
            if row.claimed_by == Some(worker) && !held {
                actions.push(Action::ReleaseUnknown { worker, task });
            }
        }
        let Some((claim, knows)) = holds else { return };
        let row = &world.rows[usize::from(claim.task)];
        if self.size.planted == Some(Bug::HeartbeatRevives)
            && matches!(row.state, Some(State::Pending | State::Running))
            && row.token != Some(claim.token)
        {
            actions.push(Action::Heartbeat { worker });
        }
        if matches!(knows, WorkerView::Claimed | WorkerView::Started) {
            if self.meets(Fault::Interrupted) {
                actions.push(Action::Interrupt { worker });
            }
            if row.token != Some(claim.token) {
                actions.push(Action::ObeyLost { worker });
            } else if row.cancel_requested {
                actions.push(Action::HandleCancel { worker });
            }
        }
        self.of_claim(worker, knows, world.doing(claim), actions);
    }

    fn of_claim(
        &self,
        worker: u8,
        knows: WorkerView,
        doing: Option<BackendActivity>,
        actions: &mut Vec<Action>,
    ) {
        match (knows, doing) {
            (WorkerView::Claimed, Some(BackendActivity::Nothing)) => {
                actions.push(Action::Start { worker });
            }
            // The session ended before the statement began, so the task is released.
            (WorkerView::Claimed, None) if !self.meets(Fault::Interrupted) => {
                actions.push(Action::Interrupt { worker });
            }
            (WorkerView::Started | WorkerView::Committing, None) => {
                actions.push(Action::DetectDisconnect { worker });
            }
            (
                WorkerView::Started,
                Some(BackendActivity::StatementDone | BackendActivity::Refused(_)),
            )
            | (WorkerView::Committing, Some(BackendActivity::Answered)) => {
                actions.push(Action::ReceiveAnswer { worker });
            }
            (WorkerView::Cut, _) => actions.push(Action::EndOwnBackend { worker }),
            (WorkerView::InDoubt, _) => actions.push(Action::ResolveCommit { worker }),
            (WorkerView::StatementDone, _) => actions.push(Action::CompleteApart { worker }),
            (WorkerView::Failed(_), _) => actions.push(Action::Record { worker }),
            _ => {}
        }
        if matches!(knows, WorkerView::Started | WorkerView::Committing)
            && doing.is_some()
            && self.meets(Fault::ConnectionLost)
        {
            actions.push(Action::Cut { worker });
        }
        if knows == WorkerView::Started && self.meets(Fault::Timeout) {
            actions.push(Action::Deadline { worker });
        }
    }

    pub(crate) fn of_backend(&self, backend: &Backend, actions: &mut Vec<Action>) {
        let token = backend.claim.token;
        match backend.doing {
            BackendActivity::Statement => {
                actions.push(Action::StatementEnds { token });
                let raised = |fault: &&Fault| {
                    matches!(
                        fault,
                        Fault::Error | Fault::Serialization | Fault::Fatal | Fault::Snooze
                    )
                };
                let raised = self.size.faults.iter().filter(raised);
                actions
                    .extend(raised.map(|fault| Action::StatementRaises { token, fault: *fault }));
            }
            BackendActivity::Completing | BackendActivity::HalfWay => {
                actions.push(Action::BackendCommits { token });
            }
            _ if backend.orphan => actions.push(Action::BackendLeaves { token }),
            _ => {}
        }
    }

    pub(crate) fn of_task(&self, world: &World, task: u8, actions: &mut Vec<Action>) {
        let row = &world.rows[usize::from(task)];
        match row.state {
            Some(State::Scheduled) => actions.push(Action::Promote { task }),
            None if row.again < self.size.again => actions.push(Action::RunAgain { task }),
            _ => {}
        }
        if row.state.is_some() && !row.cancel_requested && self.meets(Fault::Cancelled) {
            actions.push(Action::Cancel { task });
        }
        if claimed_by_dead(world, row) {
            let there = world.backends.iter().any(|b| Some(b.claim.token) == row.token);
            if there {
                actions.push(Action::EndBackend { task });
            }
            if !there || self.size.planted == Some(Bug::ReclaimWithoutEnding) {
                actions.push(Action::Reclaim { task });
            }
        }
    }

    pub(crate) fn apply(&self, world: &mut World, action: Action) -> Result<(), RuleViolation> {
        match action {
            Action::Claim { worker, task } => self.claim(world, worker, task).map(|claim| {
                let backend = Backend { claim, doing: BackendActivity::Nothing, orphan: false };
                world.backends.push(backend);
                world.backends.sort_unstable_by_key(|backend| backend.claim);
                world.workers[usize::from(worker)].holds = Some((claim, WorkerView::Claimed));
            }),
            Action::ClaimUnheard { worker, task } => self.claim(world, worker, task).map(drop),
            Action::ReleaseUnknown { task, .. } => {
                let row = &world.rows[usize::from(task)];
                let (token, attempt) = (row.token.expect("the task is claimed"), row.attempt);
                self.release(world, Claim { token, task, attempt }, State::Pending)
            }
            Action::Cancel { task } => self.cancel(world, task),
            Action::Promote { task } | Action::RunAgain { task } => self.retry(world, task),
            Action::Reclaim { task } => self.reclaim(world, task),
            Action::EndBackend { task } => {
                let token = world.rows[usize::from(task)].token;
                world.backends.retain(|backend| Some(backend.claim.token) != token);
                Ok(())
            }
            Action::Flush => {
                world.durable.clone_from(&world.rows);
                Ok(())
            }
            Action::ServerCrashes => {
                world.rows.clone_from(&world.durable);
                world.backends.clear();
                Ok(())
            }
            Action::WorkerDies { worker } => {
                depart(world, worker);
                Ok(())
            }
            Action::WorkerStops { worker } | Action::WorkerWakes { worker } => {
                world.workers[usize::from(worker)].stopped ^= true;
                Ok(())
            }
            Action::StatementEnds { token }
            | Action::StatementRaises { token, .. }
            | Action::BackendCommits { token }
            | Action::BackendLeaves { token } => self.backend_does(world, token, action),
            Action::Start { worker }
            | Action::Interrupt { worker }
            | Action::HandleCancel { worker }
            | Action::ObeyLost { worker }
            | Action::Deadline { worker }
            | Action::Cut { worker }
            | Action::EndOwnBackend { worker }
            | Action::DetectDisconnect { worker }
            | Action::ReceiveAnswer { worker }
            | Action::ResolveCommit { worker }
            | Action::CompleteApart { worker }
            | Action::Record { worker }
            | Action::Heartbeat { worker } => self.worker_does(world, worker, action),
        }
    }

    /// Claims a task. The commit does not wait for the disk.
    fn claim(&self, world: &mut World, worker: u8, task: u8) -> Result<Claim, RuleViolation> {
        let token = world.fresh_token();
        let row = &mut world.rows[usize::from(task)];
        self.change(row, Some(State::Running))?;
        row.attempt += 1;
        (row.token, row.claimed_by) = (Some(token), Some(worker));
        Ok(Claim { token, task, attempt: row.attempt })
    }

    fn backend_does(
        &self,
        world: &mut World,
        token: u8,
        action: Action,
    ) -> Result<(), RuleViolation> {
        let found = world.backends.iter().find(|backend| backend.claim.token == token);
        let Backend { claim, doing, orphan } = *found.expect("only existing backends act");
        let next = match action {
            Action::StatementEnds { .. } => {
                if self.size.mode == Mode::Autocommit {
                    effect(world, claim);
                }
                BackendActivity::StatementDone
            }
            Action::StatementRaises { fault, .. } => BackendActivity::Refused(fault),
            Action::BackendCommits { .. } if self.size.planted == Some(Bug::TwoTransactions) => {
                if doing == BackendActivity::Completing {
                    effect(world, claim);
                    BackendActivity::HalfWay
                } else {
                    self.complete(world, claim)?;
                    BackendActivity::Answered
                }
            }
            Action::BackendCommits { .. } => {
                // Effects and completion are in one transaction, so either both are committed or
                // neither is.
                let task = usize::from(claim.task);
                let before = world.rows[task].effects;
                world.rows[task].effects = (before + 1).min(2);
                if !self.complete(world, claim)? {
                    world.rows[task].effects = before;
                }
                BackendActivity::Answered
            }
            _ => {
                world.end_backend(claim);
                return Ok(());
            }
        };
        world.set_doing(claim, next);
        if orphan && !matches!(next, BackendActivity::HalfWay) {
            world.end_backend(claim);
        }
        Ok(())
    }

    fn worker_does(
        &self,
        world: &mut World,
        worker: u8,
        action: Action,
    ) -> Result<(), RuleViolation> {
        let held = world.workers[usize::from(worker)].holds;
        let (claim, knows) = held.expect("only the holder of a claim acts on it");
        let doing = world.doing(claim);
        let knows = match action {
            Action::Start { .. } => {
                world.set_doing(claim, BackendActivity::Statement);
                Some(WorkerView::Started)
            }
            Action::Interrupt { .. } | Action::HandleCancel { .. } | Action::Deadline { .. } => {
                world.end_backend(claim);
                Some(WorkerView::Failed(match action {
                    // The statement had begun, so it is unknown how far it got.
                    Action::Interrupt { .. }
                        if self.size.at_most_once && knows == WorkerView::Started =>
                    {
                        Fault::ConnectionLost
                    }
                    Action::Interrupt { .. } => Fault::Interrupted,
                    Action::HandleCancel { .. } => Fault::Cancelled,
                    _ => Fault::Timeout,
                }))
            }
            Action::ObeyLost { .. } => {
                world.end_backend(claim);
                None
            }
            Action::Cut { .. } => {
                world.orphan(claim);
                Some(if knows == WorkerView::Started {
                    WorkerView::Cut
                } else {
                    WorkerView::InDoubt
                })
            }
            Action::EndOwnBackend { .. } => {
                world.end_backend(claim);
                Some(WorkerView::Failed(Fault::ConnectionLost))
            }
            Action::DetectDisconnect { .. } if knows == WorkerView::Committing => {
                Some(WorkerView::InDoubt)
            }
            Action::DetectDisconnect { .. } => Some(WorkerView::Failed(Fault::ConnectionLost)),
            Action::ReceiveAnswer { .. } => self.receive_answer(world, claim, doing),
            Action::ResolveCommit { .. } => {
                world.end_backend(claim);
                let row = &world.rows[usize::from(claim.task)];
                self.fence(row, claim)?.then_some(WorkerView::Failed(Fault::ConnectionLost))
            }
            Action::CompleteApart { .. } => self.complete(world, claim).map(|_| None)?,
            Action::Record { .. } => {
                let WorkerView::Failed(fault) = knows else { return Ok(()) };
                self.record(world, claim, fault)?;
                None
            }
            _ => {
                self.revive(world, worker, claim)?;
                Some(knows)
            }
        };
        world.workers[usize::from(worker)].holds = knows.map(|knows| (claim, knows));
        Ok(())
    }

    /// Handles the backend's response and sends the next command at once.
    fn receive_answer(
        &self,
        world: &mut World,
        claim: Claim,
        doing: Option<BackendActivity>,
    ) -> Option<WorkerView> {
        match (doing, self.size.mode) {
            (Some(BackendActivity::StatementDone), Mode::Transaction) => {
                world.set_doing(claim, BackendActivity::Completing);
                Some(WorkerView::Committing)
            }
            (Some(BackendActivity::StatementDone), Mode::Autocommit) => {
                world.end_backend(claim);
                Some(WorkerView::StatementDone)
            }
            (Some(BackendActivity::Refused(fault)), _) => {
                world.end_backend(claim);
                Some(WorkerView::Failed(fault))
            }
            _ => {
                world.end_backend(claim);
                None
            }
        }
    }

    /// The heartbeat with the planted bug: restores every claim that this worker believes it holds.
    fn revive(&self, world: &mut World, worker: u8, claim: Claim) -> Result<(), RuleViolation> {
        let row = &mut world.rows[usize::from(claim.task)];
        if row.state == Some(State::Pending) {
            self.change(row, Some(State::Running))?;
        }
        (row.token, row.claimed_by) = (Some(claim.token), Some(worker));
        world.durable.clone_from(&world.rows);
        Ok(())
    }
}

/// Commits one run of the statement.
fn effect(world: &mut World, claim: Claim) {
    let row = &mut world.rows[usize::from(claim.task)];
    row.effects = (row.effects + 1).min(2);
    world.durable.clone_from(&world.rows);
}

/// The process is gone. Its replacement has another id.
fn depart(world: &mut World, worker: u8) {
    for row in world.rows.iter_mut().chain(&mut world.durable) {
        if row.claimed_by == Some(worker) {
            row.claimed_by = Some(DEPARTED);
        }
    }
    let Worker { holds, .. } = std::mem::take(&mut world.workers[usize::from(worker)]);
    if let Some((claim, _)) = holds {
        world.orphan(claim);
    }
}
