//! Model check of shared commits: every order in which a worker runs a batch of tasks in one transaction,
//! while a task fails or is cancelled, the worker is declared dead and its tasks are reclaimed, and the
//! connection is cut before or after COMMIT.
//!
//! The product waits for the end of the old transaction before it resolves, reclaims or runs a task alone.
//! The model does not: the tokens and the common completion have to suffice.
//!
//! The results of an in-doubt commit are the product's. Planted bugs show that the rules detect them.
//! `worker/src/attempt/shared_commit.rs`, `mill.complete` and `crates/queue/src/transition/resolve_commit.rs`
//! implement the steps.

#![expect(clippy::expect_used, reason = "cannot fail in a small model")]

#[path = "model/explore.rs"]
mod explore;

use queue::resolve_commit::CommitResolution;
use queue::{Outcome, State};

use explore::{Step, System, Violation, explore};

/// A planted bug, which a rule must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A task that fails is not rolled back to its savepoint.
    NoSavepoint,
    /// A failed task is completed with the others.
    CompletesFailed,
    /// The completion ignores tasks whose claim is lost, and keeps their effects.
    CompletesWithoutLost,
    /// The completion checks only ids.
    CompletesById,
    /// The completions are committed in a second transaction.
    TwoTransactions,
    /// An in-doubt commit counts as committed.
    InDoubtCommits,
    /// A task that was not started is dropped instead of released.
    DropsNotStarted,
}

/// A task: its row of `mill.tasks`, and what is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Task {
    /// `None`: finished.
    state: Option<State>,
    outcome: Option<Outcome>,
    /// Number of the claim. The batch has claim 1.
    claim: u8,
    effects: u8,
    cancel_requested: bool,
    /// Whether the batch has ended the claim of another worker.
    overridden: bool,
}

/// A task in the batch, as its worker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Run {
    NotStarted,
    Executed,
    /// Rolled back to its savepoint.
    RolledBack,
    /// Not known until the commit is resolved.
    InDoubt,
    /// To be run again alone.
    Alone,
    /// The worker has ended or released the task, or has lost its claim.
    Done,
}

/// The transaction of the batch, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Transaction {
    Open,
    /// COMMIT has been sent.
    Committing,
    /// Committed, and the answer is on its way.
    Committed,
    /// Refused, and the answer is on its way.
    Refused,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    tasks: Vec<Task>,
    runs: Vec<Run>,
    /// Effects of each task that the open transaction contains.
    open_effects: Vec<u8>,
    transaction: Transaction,
    /// Tasks whose completions were sent with COMMIT.
    completed: Vec<usize>,
    connected: bool,
    /// Whether the worker is declared dead.
    dead: bool,
    /// The second transaction of the planted bug is due.
    second: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The statement of the next task.
    Execute(usize),
    /// The statement of the next task fails.
    Fail(usize),
    /// An earlier task took too long.
    ReleaseNotStarted(usize),
    SendCommit,
    /// The server commits or refuses.
    ServerCommits,
    Cut,
    /// The server ends the transaction of a cut connection.
    BackendEnds,
    ReceiveAnswer,
    SecondTransaction,
    Resolve(usize),
    RunAlone(usize),
    FailAlone(usize),
    Cancel(usize),
    DeclareDead,
    Reclaim(usize),
    /// Another worker claims the task, and completes it.
    ClaimElsewhere(usize),
    CompleteElsewhere(usize),
}

struct Batch {
    size: usize,
    /// Whether tasks are cancelled, and the worker may be declared dead.
    faults: bool,
    planted: Option<Bug>,
}

impl Batch {
    fn has(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    fn finish(task: &mut Task, outcome: Outcome) {
        (task.state, task.outcome) = (None, Some(outcome));
    }

    /// Whether the row still has the token of the batch.
    fn holds(&self, task: &Task) -> bool {
        task.state == Some(State::Running) && (task.claim == 1 || self.has(Bug::CompletesById))
    }

    /// `mill.complete` and COMMIT: all of the executed tasks, or none.
    fn commit(&self, world: &mut World) {
        let of_batch = world.completed.clone();
        let lost = of_batch.iter().any(|n| !self.holds(&world.tasks[*n]));
        if lost && !self.has(Bug::CompletesWithoutLost) && !self.has(Bug::TwoTransactions) {
            world.transaction = Transaction::Refused;
            return;
        }
        for n in 0..self.size {
            world.tasks[n].effects += world.open_effects[n];
        }
        if self.has(Bug::TwoTransactions) {
            world.second = true;
        } else {
            self.complete(world, &of_batch);
        }
        world.transaction = Transaction::Committed;
    }

    fn complete(&self, world: &mut World, tasks: &[usize]) {
        for n in tasks {
            if self.holds(&world.tasks[*n]) {
                world.tasks[*n].overridden = world.tasks[*n].claim != 1;
                Self::finish(&mut world.tasks[*n], Outcome::Succeeded);
            }
        }
    }

    /// Derives the result of each task from the result of the transaction.
    fn receive(&self, world: &mut World, resolution: CommitResolution) {
        for run in &mut world.runs {
            *run = match (*run, resolution) {
                (Run::Executed, CommitResolution::Committed) => Run::Done,
                (Run::Executed | Run::RolledBack, _) => Run::Alone,
                (other, _) => other,
            };
        }
        world.transaction = Transaction::Ended;
    }

    /// The worker knows that its connection is cut.
    fn cut(&self, world: &mut World) {
        let sent = world.transaction != Transaction::Open;
        world.connected = false;
        for run in &mut world.runs {
            *run = match *run {
                Run::Executed if sent => match self.planted {
                    Some(Bug::InDoubtCommits) => Run::Done,
                    _ => Run::InDoubt,
                },
                Run::Executed | Run::RolledBack => Run::Alone,
                other => other,
            };
        }
    }

    /// `resolve_commit`.
    fn resolution(&self, task: &Task) -> CommitResolution {
        match task.state {
            Some(State::Running) if task.claim == 1 => CommitResolution::RolledBack,
            _ if task.outcome == Some(Outcome::Succeeded) && task.claim == 1 => {
                CommitResolution::Committed
            }
            _ => CommitResolution::Lost,
        }
    }

    fn may_run(&self, world: &World, n: usize) -> bool {
        let next = world.runs.iter().position(|run| *run == Run::NotStarted) == Some(n);
        next && world.transaction == Transaction::Open && world.connected
    }

    fn apply(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Execute(n) => {
                self.may_run(world, n).then_some(())?;
                world.runs[n] = Run::Executed;
                world.open_effects[n] += 1;
            }
            Action::Fail(n) => {
                self.may_run(world, n).then_some(())?;
                world.runs[n] = Run::RolledBack;
                world.open_effects[n] += u8::from(self.has(Bug::NoSavepoint));
            }
            Action::SendCommit => {
                let executed = world.runs.contains(&Run::Executed);
                let open = world.transaction == Transaction::Open && world.connected;
                (executed && open).then_some(())?;
                world.transaction = Transaction::Committing;
                let completes = |n: &usize| match world.runs[*n] {
                    Run::RolledBack => self.has(Bug::CompletesFailed),
                    run => run == Run::Executed,
                };
                world.completed = (0..self.size).filter(completes).collect();
            }
            Action::ServerCommits => {
                (world.transaction == Transaction::Committing).then(|| self.commit(world))?;
            }
            Action::Cut => {
                let busy = world.transaction != Transaction::Ended;
                (busy && world.connected).then(|| self.cut(world))?;
            }
            Action::BackendEnds => {
                let open = !world.connected && world.transaction != Transaction::Ended;
                open.then(|| world.transaction = Transaction::Ended)?;
            }
            Action::ReceiveAnswer => {
                world.connected.then_some(())?;
                match world.transaction {
                    Transaction::Committed => self.receive(world, CommitResolution::Committed),
                    Transaction::Refused => self.receive(world, CommitResolution::RolledBack),
                    // No task was executed, so there is nothing to commit.
                    Transaction::Open
                        if !world.runs.contains(&Run::NotStarted)
                            && !world.runs.contains(&Run::Executed) =>
                    {
                        self.receive(world, CommitResolution::RolledBack);
                    }
                    _ => return None,
                }
            }
            Action::SecondTransaction => {
                std::mem::take(&mut world.second).then_some(())?;
                let completed = world.completed.clone();
                self.complete(world, &completed);
            }
            action => return self.act(world, action),
        }
        Some(())
    }

    /// Applies an action on one task.
    fn act(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::ReleaseNotStarted(n) => {
                let started =
                    !world.connected || world.runs.iter().any(|run| *run != Run::NotStarted);
                (started && world.runs[n] == Run::NotStarted).then_some(())?;
                world.runs[n] = Run::Done;
                if self.holds(&world.tasks[n]) && !self.has(Bug::DropsNotStarted) {
                    self.release(world, n);
                }
            }
            Action::Resolve(n) => {
                (world.runs[n] == Run::InDoubt).then_some(())?;
                world.runs[n] = match self.resolution(&world.tasks[n]) {
                    CommitResolution::RolledBack => Run::Alone,
                    CommitResolution::Committed | CommitResolution::Lost => Run::Done,
                };
            }
            Action::RunAlone(n) => {
                (world.runs[n] == Run::Alone).then_some(())?;
                world.runs[n] = Run::Done;
                if self.holds(&world.tasks[n]) {
                    world.tasks[n].effects += 1;
                    Self::finish(&mut world.tasks[n], Outcome::Succeeded);
                }
            }
            Action::FailAlone(n) => {
                (world.runs[n] == Run::Alone).then_some(())?;
                world.runs[n] = Run::Done;
                if self.holds(&world.tasks[n]) {
                    Self::finish(&mut world.tasks[n], Outcome::Failed);
                }
            }
            Action::Cancel(n) => {
                let task = &mut world.tasks[n];
                match task.state.filter(|_| self.faults)? {
                    State::Running if task.cancel_requested => return None,
                    State::Running => task.cancel_requested = true,
                    _ => Self::finish(task, Outcome::Cancelled),
                }
            }
            Action::DeclareDead => {
                (self.faults && !std::mem::replace(&mut world.dead, true)).then_some(())?;
            }
            Action::Reclaim(n) => {
                let holds =
                    world.tasks[n].claim == 1 && world.tasks[n].state == Some(State::Running);
                (world.dead && holds).then(|| self.release(world, n))?;
            }
            Action::ClaimElsewhere(n) => {
                let task = &mut world.tasks[n];
                (task.state == Some(State::Pending)).then_some(())?;
                (task.state, task.claim) = (Some(State::Running), 2);
            }
            Action::CompleteElsewhere(n) => {
                let task = &mut world.tasks[n];
                (task.state == Some(State::Running) && task.claim == 2).then_some(())?;
                task.effects += 1;
                Self::finish(task, Outcome::Succeeded);
            }
            _ => return None,
        }
        Some(())
    }

    /// Ends the claim: the task runs again, unless it is cancelled.
    fn release(&self, world: &mut World, n: usize) {
        let task = &mut world.tasks[n];
        task.claim = 0;
        if task.cancel_requested {
            Self::finish(task, Outcome::Cancelled);
        } else {
            task.state = Some(State::Pending);
        }
    }
}

impl System for Batch {
    type State = World;
    type Action = Action;

    fn initial(&self) -> World {
        let task = Task { state: Some(State::Running), claim: 1, ..Task::default() };
        World {
            tasks: vec![task; self.size],
            runs: vec![Run::NotStarted; self.size],
            open_effects: vec![0; self.size],
            transaction: Transaction::Open,
            completed: Vec::new(),
            connected: true,
            dead: false,
            second: false,
        }
    }

    fn steps(&self, world: &World) -> Vec<Step<Self>> {
        let mut actions = vec![Action::SendCommit, Action::ServerCommits, Action::Cut];
        actions.extend([Action::BackendEnds, Action::ReceiveAnswer]);
        actions.extend([Action::SecondTransaction, Action::DeclareDead]);
        for n in 0..self.size {
            actions.extend([Action::Execute(n), Action::Fail(n), Action::ReleaseNotStarted(n)]);
            actions.extend([Action::Resolve(n), Action::RunAlone(n), Action::FailAlone(n)]);
            actions.push(Action::CompleteElsewhere(n));
            actions.extend([Action::Cancel(n), Action::Reclaim(n), Action::ClaimElsewhere(n)]);
        }
        let apply = |action| {
            let mut next = world.clone();
            self.apply(&mut next, action).map(|()| (action, Ok(next)))
        };
        actions.into_iter().filter_map(apply).collect()
    }

    fn canonical(&self, world: World) -> World {
        world
    }

    fn broken(&self, world: &World) -> Result<(), String> {
        for task in &world.tasks {
            let succeeded = task.outcome == Some(Outcome::Succeeded);
            if task.overridden {
                return Err("a lost claim ended the task".to_owned());
            } else if task.effects > 1 {
                return Err("an effect was committed twice".to_owned());
            } else if (task.effects > 0) != succeeded {
                return Err("effects and success do not match".to_owned());
            }
        }
        Ok(())
    }

    fn ended(&self, world: &World) -> bool {
        world.tasks.iter().all(|task| task.state.is_none())
    }
}

#[test]
fn every_task_of_a_batch_commits_at_most_once_and_can_end() {
    for (size, faults) in [(1, true), (2, true), (1, false), (2, false), (3, false)] {
        let timer = std::time::Instant::now();
        let batch = Batch { size, faults, planted: None };
        let found = explore(&batch).unwrap_or_else(|violation| panic!("{size}: {violation}"));
        let time = timer.elapsed();
        println!(
            "{size} tasks, {faults}: {} states, {} steps, {time:?}",
            found.states, found.steps
        );
    }
}

fn found(bug: Bug, faults: bool) -> Violation {
    let violation =
        explore(&Batch { size: 2, faults, planted: Some(bug) }).expect_err("it breaks a rule");
    println!("{bug:?}: {violation}");
    violation
}

#[test]
fn planted_bugs_are_found() {
    const MATCH: &str = "effects and success do not match";
    const STUCK: &str = "no end is reachable from this state";
    for (bug, rule) in [
        (Bug::NoSavepoint, MATCH),
        (Bug::CompletesFailed, MATCH),
        (Bug::CompletesWithoutLost, MATCH),
        (Bug::CompletesById, "a lost claim ended the task"),
        (Bug::TwoTransactions, MATCH),
        (Bug::InDoubtCommits, STUCK),
        (Bug::DropsNotStarted, STUCK),
    ] {
        assert_eq!(found(bug, rule != STUCK).rule, rule, "{bug:?}");
    }
}
