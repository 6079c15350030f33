//! What a cell is: one fault, at one moment of a task's way, in one mode; and what is promised of it.

use std::fmt;
use std::time::Duration;

use proxy::Cut;

/// How the task is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Transaction,
    AtLeastOnce,
    AtMostOnce,
}

/// Where on its way the task is when the fault comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// It is being submitted; the client tries again with the same key until it has an answer.
    Enqueue,
    /// Claimed; BEGIN is on its way to the server.
    Claimed,
    /// Its statement has left an effect and goes on.
    Executing,
    /// Its statement is through. In a transaction COMMIT is being carried out (a deferred trigger
    /// waits); otherwise the completion is on its way.
    Completing,
    /// It is committed, or in autocommit mode completed, and the answer is on its way.
    CommitSent,
    /// It is executing, and a beat of its worker is on its way.
    Heartbeat,
    /// There is none; it comes after the fault or under it.
    Idle,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    WorkerKilled,
    WorkerStopped,
    Drain,
    ShutdownTimeout,
    TermThenKill,
    OutOfMemory,
    ClockAhead,
    ClockBehind,
    BackendEnded,
    BackendKilled,
    BackendStopped,
    BackendStoppedPastTimeout,
    ServerKilled,
    ServerImmediate,
    ServerRestart,
    ServerFrozen,
    StandbyMissing,
    Promotion,
    /// Sessions with this application_name.
    Sessions(&'static str),
    Message(Cut),
    NetworkCut,
    NetworkOneWay,
    NetworkReset,
    PacketLoss,
    SlowLink,
    Latency,
    Refused,
    TooMany,
    DataDiskFull,
    WalDiskFull,
    TasksLocked,
    WorkersLocked,
    NeverEnds,
    Deadlock,
    Serialization,
    OwnCommit,
    OwnCommitInBlock,
}

/// What a cell needs under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Setup {
    /// A cluster.
    Plain,
    /// Each worker in a network namespace of its own.
    Network,
    /// The database on a small disk of its own.
    DataDisk,
    /// The log of the cluster on a small disk of its own.
    WalDisk,
    /// A standby that every commit waits for.
    Standby,
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) fault: Fault,
    pub(crate) moment: Moment,
    pub(crate) mode: Mode,
}

impl Cell {
    /// Whether an effect may be there twice, by the mode's own promise.
    pub(crate) fn may_duplicate(&self) -> bool {
        self.mode == Mode::AtLeastOnce
    }

    /// Whether the task may end as `unknown`, by the mode's own promise.
    pub(crate) fn may_be_unknown(&self) -> bool {
        self.mode == Mode::AtMostOnce
    }

    /// Each try leaves an attempt that did not succeed: what tells that the fault has met its task.
    /// Elsewhere the task may also get through, or has no attempt to lose.
    pub(crate) fn interrupts(&self) -> bool {
        let unhurt = self.fault.is_tolerated()
            || matches!(
                self.fault,
                Fault::Drain
                    | Fault::ShutdownTimeout
                    | Fault::BackendStopped
                    | Fault::Sessions("pgmill control" | "pgmill claimer" | "pgmill listener")
                    | Fault::TasksLocked
                    | Fault::WorkersLocked
                    | Fault::ServerFrozen
                    | Fault::StandbyMissing
            );
        // Commits of claims do not wait for the disk: a crash may take one along, and the attempt with
        // it. An effect in autocommit mode has brought its claim to the disk.
        let forgotten = self.mode == Mode::Transaction
            && matches!(
                self.fault,
                Fault::BackendKilled
                    | Fault::ServerKilled
                    | Fault::ServerImmediate
                    | Fault::Promotion
                    | Fault::WalDiskFull
            );
        let unhurt = unhurt || forgotten;
        self.moment == Moment::Executing && !unhurt
    }

    /// What the table says is promised.
    pub(crate) fn promise(&self) -> &'static str {
        match (self.fault, self.mode) {
            (Fault::OwnCommit | Fault::OwnCommitInBlock, _) => "refused, no effect",
            (_, Mode::Transaction) => "exactly once",
            (_, Mode::AtLeastOnce) => "may duplicate",
            (_, Mode::AtMostOnce) => "may be unknown",
        }
    }
}

impl Fault {
    pub(crate) fn kind(self) -> Setup {
        match self {
            Self::NetworkCut
            | Self::NetworkOneWay
            | Self::NetworkReset
            | Self::PacketLoss
            | Self::SlowLink
            | Self::Refused => Setup::Network,
            Self::DataDiskFull => Setup::DataDisk,
            Self::WalDiskFull => Setup::WalDisk,
            Self::Promotion => Setup::Standby,
            _ => Setup::Plain,
        }
    }

    /// The database is away while it lasts: nothing can be submitted, and recovery counts from its
    /// end.
    pub(crate) fn makes_database_unavailable(self) -> bool {
        matches!(
            self,
            Self::BackendKilled
                | Self::ServerKilled
                | Self::ServerImmediate
                | Self::ServerRestart
                | Self::ServerFrozen
                | Self::StandbyMissing
                | Self::Promotion
                | Self::DataDiskFull
                | Self::WalDiskFull
                | Self::TasksLocked
        )
    }

    /// The fleet stands still while it lasts, for the database refuses it: recovery counts from its end.
    pub(crate) fn blocks_all_workers(self) -> bool {
        self.makes_database_unavailable()
            || matches!(
                self,
                Self::Refused
                    | Self::TooMany
                    | Self::BackendStopped
                    | Self::BackendStoppedPastTimeout
            )
    }

    /// It hits one worker, and another one can take over while it lasts.
    pub(crate) fn other_worker_can_take_over(self) -> bool {
        matches!(
            self,
            Self::WorkerStopped | Self::NetworkCut | Self::NetworkOneWay | Self::NetworkReset
        )
    }

    /// The work has to go on under it.
    pub(crate) fn is_tolerated(self) -> bool {
        matches!(
            self,
            Self::PacketLoss
                | Self::SlowLink
                | Self::Latency
                | Self::ClockAhead
                | Self::ClockBehind
        )
    }

    /// The statement itself is the fault: nothing is done to anybody.
    pub(crate) fn is_caused_by_task(self) -> bool {
        matches!(
            self,
            Self::NeverEnds
                | Self::OutOfMemory
                | Self::OwnCommit
                | Self::OwnCommitInBlock
                | Self::Deadlock
        )
    }

    /// It lasts this long, or if another worker can take over, until it has, and this long at most.
    pub(crate) fn duration(self, short: bool) -> Duration {
        let seconds = match self {
            Self::WorkerStopped | Self::NetworkCut | Self::NetworkOneWay | Self::NetworkReset => 12,
            Self::BackendStoppedPastTimeout => 18,
            Self::PacketLoss | Self::SlowLink | Self::Latency => 30,
            Self::TasksLocked if !short => 10,
            Self::ServerFrozen => 8,
            Self::BackendStopped
            | Self::Refused
            | Self::TooMany
            | Self::TasksLocked
            | Self::StandbyMissing
            | Self::ClockAhead
            | Self::ClockBehind
            | Self::WorkersLocked => 4,
            Self::DataDiskFull => 3,
            // Longer than the grace.
            Self::ShutdownTimeout => 2,
            Self::ServerKilled | Self::ServerImmediate | Self::WalDiskFull | Self::Sessions(_) => 1,
            _ => 0,
        };
        Duration::from_secs(seconds)
    }

    /// Too slow for the short form.
    pub(crate) fn slow(self) -> bool {
        matches!(self, Self::BackendStoppedPastTimeout)
    }

    /// The longest that the tasks may take to end, from where recovery counts.
    pub(crate) fn bound(self) -> Duration {
        let seconds = match self {
            Self::SlowLink | Self::PacketLoss | Self::Latency => 30,
            Self::BackendStoppedPastTimeout => 20,
            _ => 15,
        };
        Duration::from_secs(seconds)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WorkerKilled => "worker: SIGKILL",
            Self::WorkerStopped => "worker: SIGSTOP past the orphan timeout, SIGCONT",
            Self::Drain => "worker: SIGTERM",
            Self::ShutdownTimeout => "worker: SIGTERM, shutdown timeout",
            Self::TermThenKill => "worker: SIGTERM, then SIGKILL",
            Self::OutOfMemory => "worker: out of memory, killed",
            Self::ClockAhead => "worker: clock jumps an hour ahead",
            Self::ClockBehind => "worker: clock jumps an hour back",
            Self::BackendEnded => "task's backend: pg_terminate_backend",
            Self::BackendKilled => "task's backend: SIGKILL (the server restarts itself)",
            Self::BackendStopped => "task's backend: SIGSTOP, SIGCONT after 4 s",
            Self::BackendStoppedPastTimeout => "task's backend: SIGSTOP past the task's timeout",
            Self::ServerKilled => "server: SIGKILL, started after 1 s",
            Self::ServerImmediate => "server: stop -m immediate, started after 1 s",
            Self::ServerRestart => "server: restart -m fast",
            Self::ServerFrozen => "server: SIGSTOP past the orphan timeout, SIGCONT",
            Self::StandbyMissing => "server: synchronous standby missing for 4 s",
            Self::Promotion => "server: SIGKILL, synchronous standby promoted",
            Self::Sessions("pgmill control") => "control sessions: terminated",
            Self::Sessions("pgmill claimer") => "claimer sessions: terminated",
            Self::Sessions("pgmill listener") => "listener sessions: terminated",
            Self::Sessions(_) => "all fleet sessions: terminated",
            Self::Message(Cut::Before) => "connection: cut before the request arrives",
            Self::Message(Cut::After) => "connection: cut before the answer arrives",
            Self::Message(Cut::Unseen) => "connection: cut before the answer, unseen by the server",
            Self::NetworkCut => "network: partition",
            Self::NetworkOneWay => "network: one-way partition",
            Self::NetworkReset => "network: connections are reset",
            Self::PacketLoss => "network: 10 % packet loss",
            Self::SlowLink => "network: 1 Mbit/s",
            Self::Latency => "network: 200 ms latency",
            Self::Refused => "server: connections refused for 4 s",
            Self::TooMany => "server: too many connections for 4 s",
            Self::DataDiskFull => "data disk: full",
            Self::WalDiskFull => "WAL disk: full (the server goes down)",
            Self::TasksLocked => "mill.tasks: ACCESS EXCLUSIVE lock for 10 s",
            Self::WorkersLocked => "mill.workers: ACCESS EXCLUSIVE lock for 4 s",
            Self::NeverEnds => "statement: never ends, timeout 1 s",
            Self::Deadlock => "statement: deadlock of two tasks",
            Self::Serialization => "statement: serialization failure",
            Self::OwnCommit => "statement: COMMIT of its own",
            Self::OwnCommitInBlock => "statement: COMMIT in a DO block",
        })
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enqueue => "enqueue",
            Self::Claimed => "claimed",
            Self::Executing => "executing",
            Self::Completing => "completing",
            Self::CommitSent => "commit sent",
            Self::Heartbeat => "heartbeat",
            Self::Idle => "idle",
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transaction => "transaction",
            Self::AtLeastOnce => "at least once",
            Self::AtMostOnce => "at most once",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {} | {}", self.fault, self.moment, self.mode)
    }
}
