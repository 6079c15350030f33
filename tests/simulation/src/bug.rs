//! Bugs that can be planted. Each distorts what a decision is given, ignores what it returns, or
//! weakens the simulated queue; the product's code stays as it is.

use clap::ValueEnum;

/// A bug that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bug {
    /// A poll has no deadline, and a registration at another server closes no session: the fleet
    /// hangs after a primary froze.
    FrozenPrimary,
    /// The failure detector is not told of outages: each worker finds all others dead afterwards.
    OutageUnreported,
    /// The failure detector is not told that the worker has lost its own session: a restart of the
    /// server between two polls goes unnoticed.
    RestartUnreported,
    /// The failure detector takes a long gap between its polls for uninterrupted observation.
    GapUnnoticed,
    /// The age of the last heartbeat is ignored: a worker that registers again counts as silent.
    HeartbeatAgeIgnored,
    /// The age of a heartbeat in the future is zero: a worker that died before the server's clock was
    /// set back counts as alive.
    FutureHeartbeatClamped,
    /// The waits of all workers are the same: the fleet polls and reconnects in lockstep.
    Lockstep,
    /// The poll does not report pending tasks: a task whose notification is lost waits.
    PendingUnreported,
    /// A tick locks no schedule: two workers fire the same instant.
    TickUnlocked,
    /// A tick stores the next instant before it fires: nobody fires if the worker dies in between.
    TickBeforeFire,
    /// A batch for a reader whose session has ended stays claimed.
    BatchKept,
    /// Claims whose answer was lost are not compared with the queue.
    ClaimsUnreconciled,
    /// Tasks are reclaimed while their backends still run.
    BackendsKept,
    /// A reclaim does not check for a new heartbeat.
    ReturnUnchecked,
}
