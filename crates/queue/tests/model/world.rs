//! State of the model: rows of tasks, their durable copy, backends, and the view of each worker.

use queue::{Outcome, State};

/// Fencing token. It is random in the product. Here it is the smallest number that is not in use,
/// which is just as new, and keeps the number of states finite.
pub(crate) type Token = u8;

/// Number of a worker whose process is gone. Its replacement has another number.
pub(crate) const DEPARTED: u8 = u8::MAX;

/// A task: its row of `mill.tasks` or, once `state` is `None`, its entry in history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) state: Option<State>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) token: Option<Token>,
    pub(crate) claimed_by: Option<u8>,
    pub(crate) attempt: u8,
    pub(crate) failures: u8,
    pub(crate) transient_failures: u8,
    pub(crate) crashes: u8,
    pub(crate) cancel_requested: bool,
    /// Number of times that a user ran the task again after its end.
    pub(crate) again: u8,
    /// Number of committed runs of the statement since then; two stands for more.
    pub(crate) effects: u8,
    /// Number of attempts since then that history records as lost.
    pub(crate) lost: u8,
    /// Number of all attempts since then that history records.
    pub(crate) ended: u8,
}

/// Cause of the end of an attempt. Only the differences on which a rule depends are modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The statement raises an error, such as a division by zero.
    Error,
    /// A serialization failure.
    Serialization,
    /// The task reports a permanent failure.
    Fatal,
    /// The task snoozes.
    Snooze,
    /// No response arrived.
    ConnectionLost,
    /// The deadline passed.
    Timeout,
    /// The task was cancelled.
    Cancelled,
    /// The worker stops gracefully.
    Interrupted,
}

/// Activity of a task session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum BackendActivity {
    Nothing,
    Statement,
    /// The statement is complete. In transaction mode, the transaction is open.
    StatementDone,
    /// The statement raised an error.
    Refused(Fault),
    /// Completion and COMMIT have arrived.
    Completing,
    /// With the planted bug of two transactions: the effects are committed, the completion is not.
    HalfWay,
    /// The response reports that everything is committed, or that the claim is lost and everything
    /// is rolled back.
    Answered,
}

/// A task session, identified by its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) token: Token,
    pub(crate) task: u8,
    pub(crate) attempt: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Backend {
    pub(crate) claim: Claim,
    pub(crate) doing: BackendActivity,
    /// Whether its client is gone.
    pub(crate) orphan: bool,
}

/// Progress of a worker with a task, as known to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WorkerView {
    Claimed,
    Started,
    /// In autocommit mode: the statement has completed, but the task is not completed yet.
    StatementDone,
    /// Completion and COMMIT are sent.
    Committing,
    /// The session was lost; its backend may still live.
    Cut,
    /// The session was lost after COMMIT was sent.
    InDoubt,
    /// The worker knows the error, but has not recorded it yet.
    Failed(Fault),
}

/// A worker process with one reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Worker {
    /// Whether the worker has stopped or is cut off. The other workers consider it dead.
    pub(crate) stopped: bool,
    pub(crate) holds: Option<(Claim, WorkerView)>,
}

/// The state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// The rows that every session sees.
    pub(crate) rows: Vec<Row>,
    /// The rows that a crash of the server leaves.
    pub(crate) durable: Vec<Row>,
    pub(crate) workers: Vec<Worker>,
    /// The backends, in the order of their tokens.
    pub(crate) backends: Vec<Backend>,
}

impl Row {
    /// Returns a newly enqueued task that has this number of transient failures.
    pub(crate) fn new(state: State, transient_failures: u8) -> Self {
        Self {
            state: Some(state),
            outcome: None,
            token: None,
            claimed_by: None,
            attempt: 0,
            failures: 0,
            transient_failures,
            crashes: 0,
            cancel_requested: false,
            again: 0,
            effects: 0,
            lost: 0,
            ended: 0,
        }
    }
}

impl World {
    /// Returns the backend of a claim.
    pub(crate) fn backend(&self, claim: Claim) -> Option<&Backend> {
        self.backends.iter().find(|backend| backend.claim == claim)
    }

    pub(crate) fn doing(&self, claim: Claim) -> Option<BackendActivity> {
        self.backend(claim).map(|backend| backend.doing)
    }

    pub(crate) fn set_doing(&mut self, claim: Claim, doing: BackendActivity) {
        let found = self.backends.iter_mut().find(|backend| backend.claim == claim);
        found.into_iter().for_each(|backend| backend.doing = doing);
    }

    /// Marks the claim's backend as abandoned by its client.
    pub(crate) fn orphan(&mut self, claim: Claim) {
        let found = self.backends.iter_mut().find(|backend| backend.claim == claim);
        found.into_iter().for_each(|backend| backend.orphan = true);
    }

    pub(crate) fn end_backend(&mut self, claim: Claim) {
        self.backends.retain(|backend| backend.claim != claim);
    }

    /// Returns a token that is not in use.
    pub(crate) fn fresh_token(&self) -> Token {
        let rows = self.rows.iter().chain(&self.durable).filter_map(|row| row.token);
        let workers = self.workers.iter().filter_map(|worker| Some(worker.holds?.0.token));
        let backends = self.backends.iter().map(|backend| backend.claim.token);
        let held: Vec<Token> = rows.chain(workers).chain(backends).collect();
        (0..).find(|token| !held.contains(token)).expect("fewer claims than numbers")
    }

    /// Clears the attempt numbers, because nothing depends on them.
    pub(crate) fn forget_attempts(&mut self) {
        self.rows.iter_mut().chain(&mut self.durable).for_each(|row| row.attempt = 0);
        let claims =
            self.workers.iter_mut().filter_map(|worker| Some(&mut worker.holds.as_mut()?.0));
        let claims = claims.chain(self.backends.iter_mut().map(|backend| &mut backend.claim));
        claims.for_each(|claim| claim.attempt = 0);
    }

    /// Returns an equal state, with the workers ordered by their activity, and the tokens by their
    /// first appearance.
    pub(crate) fn in_order(mut self) -> Self {
        let shape = |n: u8| {
            let Worker { stopped, holds } = self.workers[usize::from(n)];
            let holds = holds.map(|(claim, knows)| {
                let doing = self.backend(claim).map(|backend| (backend.doing, backend.orphan));
                let rows = [&self.rows, &self.durable].map(|rows| rows[usize::from(claim.task)]);
                let live = rows.map(|row| row.token == Some(claim.token));
                (claim.task, claim.attempt, knows, doing, live)
            });
            let rows = self.rows.iter().chain(&self.durable);
            let claims: Vec<bool> = rows.map(|row| row.claimed_by == Some(n)).collect();
            (stopped, holds, claims)
        };
        let mut order: Vec<u8> = (0..).take(self.workers.len()).collect();
        order.sort_by_cached_key(|n| shape(*n));
        self.workers = order.iter().map(|n| self.workers[usize::from(*n)]).collect();
        let place = |n: u8| order.iter().position(|was| *was == n);
        let renamed = |n: u8| place(n).and_then(|n| u8::try_from(n).ok()).unwrap_or(DEPARTED);
        let mut tokens: Vec<Token> = Vec::new();
        let mut number = |token: Token| {
            let known = tokens.iter().position(|known| *known == token).unwrap_or_else(|| {
                tokens.push(token);
                tokens.len() - 1
            });
            u8::try_from(known).expect("fewer claims than numbers")
        };
        for row in self.rows.iter_mut().chain(&mut self.durable) {
            row.token = row.token.map(&mut number);
            row.claimed_by = row.claimed_by.map(renamed);
        }
        let claims =
            self.workers.iter_mut().filter_map(|worker| Some(&mut worker.holds.as_mut()?.0));
        for claim in claims.chain(self.backends.iter_mut().map(|backend| &mut backend.claim)) {
            claim.token = number(claim.token);
        }
        self.backends.sort_unstable_by_key(|backend| backend.claim);
        self
    }
}
