//! A fleet and its tasks: the possible steps, and the rules.

use std::cell::RefCell;
use std::collections::BTreeSet;

use queue::{Mode, Outcome, State};

use crate::FREE;
use crate::explore::{Step, System};
use crate::world::{Backend, BackendActivity, DEPARTED, Fault, Row, Worker, World};

/// A planted bug, which a rule must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Finish, fail and release check only the task id.
    FinishById,
    /// Finish, fail and release check the attempt number instead of the token.
    FenceByAttempt,
    /// The reclaimer does not wait for the end of the backend.
    ReclaimWithoutEnding,
    /// Effects and completion are committed in separate transactions.
    TwoTransactions,
    /// A heartbeat writes the worker's claims into the rows.
    HeartbeatRevives,
    /// An attempt whose worker died is not counted.
    CrashNotCounted,
    /// A completion does not wait for the disk.
    AsynchronousCompletion,
}

/// Size of a fleet, and the faults that occur in it. Every step may happen any number of times,
/// except that a user runs a finished task again at most `again` times.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) workers: u8,
    pub(crate) tasks: u8,
    pub(crate) mode: Mode,
    pub(crate) at_most_once: bool,
    pub(crate) max_attempts: u32,
    /// `mill.settings.max_crashes`.
    pub(crate) max_crashes: u8,
    /// Number of transient failures that each task starts with. Five in a row would produce many
    /// states.
    pub(crate) transient_failures: u8,
    /// Faults that may occur during an attempt. Workers and the server may crash in any case.
    pub(crate) faults: &'static [Fault],
    /// Whether workers may stop for a time.
    pub(crate) stops: bool,
    /// Number of times that a user may run a finished task again.
    pub(crate) again: u8,
    pub(crate) planted: Option<Bug>,
}

/// A fleet of a given size.
pub(crate) struct Model {
    pub(crate) size: Size,
    /// Transitions that the exploration used.
    pub(crate) used: RefCell<BTreeSet<(State, Option<State>)>>,
}

/// A step. Workers and tasks are identified by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The task becomes due.
    Promote {
        task: u8,
    },
    Claim {
        worker: u8,
        task: u8,
    },
    /// The response to the claim is lost.
    ClaimUnheard {
        worker: u8,
        task: u8,
    },
    ReleaseUnknown {
        worker: u8,
        task: u8,
    },
    Start {
        worker: u8,
    },
    /// Stops gracefully, before or after the statement has started.
    Interrupt {
        worker: u8,
    },
    HandleCancel {
        worker: u8,
    },
    ObeyLost {
        worker: u8,
    },
    Deadline {
        worker: u8,
    },
    /// The network cuts the session, but the backend stays.
    Cut {
        worker: u8,
    },
    EndOwnBackend {
        worker: u8,
    },
    /// The worker notices that its backend is gone.
    DetectDisconnect {
        worker: u8,
    },
    /// The worker receives the backend's response, and sends the next command.
    ReceiveAnswer {
        worker: u8,
    },
    ResolveCommit {
        worker: u8,
    },
    /// Completes on a control session, in autocommit mode.
    CompleteApart {
        worker: u8,
    },
    /// Records a failure or a release.
    Record {
        worker: u8,
    },
    /// A heartbeat. It is a step only with the planted bug.
    Heartbeat {
        worker: u8,
    },
    StatementEnds {
        token: u8,
    },
    StatementRaises {
        token: u8,
        fault: Fault,
    },
    BackendCommits {
        token: u8,
    },
    /// The server notices that the client is gone, and rolls back.
    BackendLeaves {
        token: u8,
    },
    EndBackend {
        task: u8,
    },
    Reclaim {
        task: u8,
    },
    /// The worker process dies (kill -9), and a new process starts.
    WorkerDies {
        worker: u8,
    },
    WorkerStops {
        worker: u8,
    },
    WorkerWakes {
        worker: u8,
    },
    /// The server crashes, and loses everything that no commit has flushed.
    ServerCrashes,
    /// The server flushes its WAL on its own.
    Flush,
    Cancel {
        task: u8,
    },
    RunAgain {
        task: u8,
    },
}

impl Model {
    /// Returns the maximum number of ended attempts: failures, transient failures, crashes, and the
    /// last one.
    pub(crate) fn max_attempts(&self) -> u8 {
        let failures = u8::try_from(self.size.max_attempts).expect("a small model") - 1;
        let transient_failures = FREE - self.size.transient_failures;
        failures + transient_failures + self.size.max_crashes
    }

    /// Returns whether a backend is working on the task.
    fn at_work(&self, backend: &Backend) -> bool {
        match backend.doing {
            BackendActivity::Statement | BackendActivity::Completing | BackendActivity::HalfWay => {
                true
            }
            BackendActivity::StatementDone => self.size.mode == Mode::Transaction,
            BackendActivity::Nothing | BackendActivity::Refused(_) | BackendActivity::Answered => {
                false
            }
        }
    }

    fn effects_fit(&self, row: &Row) -> Result<(), String> {
        let succeeded = row.outcome == Some(Outcome::Succeeded);
        match self.size.mode {
            Mode::Transaction if row.effects > 1 => Err("effects are committed twice".into()),
            Mode::Transaction if (row.effects > 0) != succeeded => {
                Err("effects and success do not match".into())
            }
            Mode::Autocommit if self.size.at_most_once && row.effects > 1 => {
                Err("an at-most-once statement completed twice".into())
            }
            Mode::Autocommit if succeeded && row.effects == 0 => {
                Err("a statement that never completed succeeded".into())
            }
            Mode::Transaction | Mode::Autocommit => Ok(()),
        }
    }
}

impl System for Model {
    type State = World;
    type Action = Action;

    fn initial(&self) -> World {
        // The last task is due later.
        let state =
            |task| if task + 1 < self.size.tasks { State::Pending } else { State::Scheduled };
        let row = |task| Row::new(state(task), self.size.transient_failures);
        let rows: Vec<Row> = (0..self.size.tasks).map(row).collect();
        World {
            durable: rows.clone(),
            rows,
            workers: vec![Worker::default(); self.size.workers.into()],
            backends: Vec::new(),
        }
    }

    fn steps(&self, world: &World) -> Vec<Step<Self>> {
        let mut actions = Vec::new();
        (0..self.size.workers).for_each(|worker| self.of_worker(world, worker, &mut actions));
        world.backends.iter().for_each(|backend| self.of_backend(backend, &mut actions));
        (0..self.size.tasks).for_each(|task| self.of_task(world, task, &mut actions));
        if world.rows != world.durable {
            actions.push(Action::Flush);
        }
        if world.rows != world.durable || !world.backends.is_empty() {
            actions.push(Action::ServerCrashes);
        }
        let step = |action| {
            let mut next = world.clone();
            let done = self.apply(&mut next, action);
            let done = done.and_then(|()| nothing_ended_changed(world, &next, action));
            (action, done.map(|()| next))
        };
        actions.into_iter().map(step).collect()
    }

    fn canonical(&self, mut world: World) -> World {
        if self.size.planted != Some(Bug::FenceByAttempt) {
            world.forget_attempts();
        }
        world.in_order()
    }

    fn broken(&self, world: &World) -> Result<(), String> {
        for (task, row) in (0..).zip(&world.rows) {
            self.effects_fit(row)?;
            let at_work = |backend: &&Backend| backend.claim.task == task && self.at_work(backend);
            if world.backends.iter().filter(at_work).count() > 1 {
                return Err("two backends run one task".into());
            }
            let running = row.state == Some(State::Running);
            if (running, running) != (row.token.is_some(), row.claimed_by.is_some()) {
                return Err("a claim without a running task, or vice versa".into());
            }
        }
        Ok(())
    }

    fn ended(&self, world: &World) -> bool {
        world.rows.iter().all(|row| row.state.is_none())
    }
}

/// Only a user may change an ended task.
fn nothing_ended_changed(before: &World, after: &World, action: Action) -> Result<(), String> {
    for (task, (before, after)) in (0..).zip(before.rows.iter().zip(&after.rows)) {
        let again = action == Action::RunAgain { task };
        if before.state.is_none() && before != after && !again {
            return Err("an ended task changed".into());
        }
    }
    Ok(())
}

/// Returns whether the other workers consider the worker of this task dead.
pub(crate) fn claimed_by_dead(world: &World, row: &Row) -> bool {
    match row.claimed_by {
        Some(DEPARTED) => true,
        Some(worker) => world.workers[usize::from(worker)].stopped,
        None => false,
    }
}
