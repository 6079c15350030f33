//! A cell of the matrix: one fault at one moment of a task's execution, in one execution mode, and
//! the promise about the outcome.

use std::fmt;
use std::time::Duration;

use proxy::Cut;

/// Execution mode of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Transaction,
    AtLeastOnce,
    AtMostOnce,
}

/// Database in which the task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The queue's database.
    Queue,
    /// A target: a database on another server.
    Target,
}

/// Moment of the task's execution at which the fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The task is being enqueued; the client retries with the same key until it has a reply.
    Enqueue,
    /// The task is claimed; BEGIN is on its way to the server.
    Claimed,
    /// The task's statement has left an effect and is still running.
    Executing,
    /// The task's statement is finished. In transaction mode, COMMIT is being executed (a deferred
    /// trigger waits); otherwise the completion is on its way.
    Completing,
    /// The task is committed, or in autocommit mode completed, and the reply is on its way.
    CommitSent,
    /// The task is committed in its target, and the statement that records its success in the queue
    /// is on its way.
    Recording,
    /// The task is executing, and a heartbeat of its worker is on its way.
    Heartbeat,
    /// There is no task; it arrives after or during the fault.
    Idle,
}

/// Kind of fault.
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
    TargetKilled,
    TargetRestart,
    TargetFrozen,
    BothKilled,
    BothFrozen,
    StandbyMissing,
    Promotion,
    FrozenPromotion,
    /// Terminates sessions whose application_name is LIKE this pattern.
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
    ConnectRevoked,
    LocksExhausted,
    ReadOnly,
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

/// Environment that a cell needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Setup {
    /// A cluster.
    Plain,
    /// Each worker in its own network namespace.
    Network,
    /// The database on a separate small disk.
    DataDisk,
    /// The cluster's WAL on a separate small disk.
    WalDisk,
    /// A synchronous standby.
    Standby,
    /// A second cluster, which is the target.
    Target,
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) fault: Fault,
    pub(crate) moment: Moment,
    pub(crate) mode: Mode,
    pub(crate) place: Place,
}

impl Cell {
    pub(crate) fn setup(&self) -> Setup {
        match self.place {
            Place::Queue => self.fault.setup(),
            Place::Target => Setup::Target,
        }
    }

    /// Returns whether worker and session of the task survive the fault, so that a held message
    /// arrives afterwards.
    pub(crate) fn held_message_arrives(&self) -> bool {
        match self.fault {
            Fault::WorkerStopped
            | Fault::Drain
            | Fault::Latency
            | Fault::TargetFrozen
            | Fault::BothFrozen => true,
            Fault::ServerKilled | Fault::ServerFrozen => self.place == Place::Target,
            _ => false,
        }
    }

    /// Returns whether the mode's promise permits a duplicate effect.
    pub(crate) fn may_duplicate(&self) -> bool {
        self.mode == Mode::AtLeastOnce
    }

    /// Returns whether the mode's promise permits the outcome `unknown`.
    pub(crate) fn may_be_unknown(&self) -> bool {
        self.mode == Mode::AtMostOnce
    }

    /// Returns whether each trial must leave an unsuccessful attempt, which proves that the fault
    /// hit its task. In other cells the task may succeed despite the fault, or a crash may lose the
    /// attempt.
    pub(crate) fn interrupts(&self) -> bool {
        let unhurt = self.fault.is_tolerated()
            || matches!(
                self.fault,
                Fault::Drain
                    | Fault::ShutdownTimeout
                    | Fault::BackendStopped
                    | Fault::Sessions(
                        "pgmill control %" | "pgmill claimer %" | "pgmill listener %"
                    )
                    | Fault::TasksLocked
                    | Fault::WorkersLocked
                    | Fault::LocksExhausted
                    | Fault::ReadOnly
                    | Fault::ServerFrozen
                    | Fault::TargetFrozen
                    | Fault::BothFrozen
                    | Fault::StandbyMissing
            );
        // A task in a target runs on while the queue is down.
        let unhurt = unhurt || self.place == Place::Target && self.fault == Fault::ServerKilled;
        // Claims commit asynchronously, so a crash may lose the claim, and with it the attempt. In
        // autocommit mode the claim is on disk, because the commit of the effect has flushed it. The
        // claim of a task with a target is on disk before the task starts.
        let forgotten = self.mode == Mode::Transaction
            && self.place == Place::Queue
            && matches!(
                self.fault,
                Fault::BackendKilled
                    | Fault::ServerKilled
                    | Fault::ServerImmediate
                    | Fault::Promotion
                    | Fault::FrozenPromotion
                    | Fault::WalDiskFull
            );
        let unhurt = unhurt || forgotten;
        self.moment == Moment::Executing && !unhurt
    }

    /// Returns the promise as shown in the table.
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
    fn setup(self) -> Setup {
        match self {
            Self::NetworkCut
            | Self::NetworkOneWay
            | Self::NetworkReset
            | Self::PacketLoss
            | Self::SlowLink
            | Self::Refused => Setup::Network,
            Self::DataDiskFull => Setup::DataDisk,
            Self::WalDiskFull => Setup::WalDisk,
            Self::Promotion | Self::FrozenPromotion => Setup::Standby,
            _ => Setup::Plain,
        }
    }

    /// Returns whether the queue's database is unavailable during the fault. Then nothing can be enqueued,
    /// and the recovery time starts when the fault ends.
    pub(crate) fn makes_database_unavailable(self) -> bool {
        matches!(
            self,
            Self::BackendKilled
                | Self::ServerKilled
                | Self::ServerImmediate
                | Self::ServerRestart
                | Self::ServerFrozen
                | Self::BothKilled
                | Self::BothFrozen
                | Self::StandbyMissing
                | Self::Promotion
                | Self::FrozenPromotion
                | Self::DataDiskFull
                | Self::WalDiskFull
                | Self::TasksLocked
                | Self::LocksExhausted
                | Self::ReadOnly
        )
    }

    /// Returns whether no worker can run the task during the fault. Then the recovery time starts
    /// when the fault ends.
    pub(crate) fn blocks_all_workers(self) -> bool {
        self.makes_database_unavailable()
            || matches!(
                self,
                Self::Refused
                    | Self::TooMany
                    | Self::ConnectRevoked
                    | Self::BackendStopped
                    | Self::BackendStoppedPastTimeout
                    | Self::TargetKilled
                    | Self::TargetRestart
                    | Self::TargetFrozen
            )
    }

    /// Returns whether the fault hits only one worker, so that another worker can take over
    /// meanwhile.
    pub(crate) fn other_worker_can_take_over(self) -> bool {
        matches!(
            self,
            Self::WorkerStopped | Self::NetworkCut | Self::NetworkOneWay | Self::NetworkReset
        )
    }

    /// Returns whether the fleet must continue to work during the fault.
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

    /// Returns whether the task's own statement causes the fault.
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

    /// Returns the duration of the fault; if another worker can take over, the maximum duration.
    pub(crate) fn duration(self, short: bool) -> Duration {
        let seconds = match self {
            Self::WorkerStopped | Self::NetworkCut | Self::NetworkOneWay | Self::NetworkReset => 12,
            Self::BackendStoppedPastTimeout => 18,
            Self::PacketLoss | Self::SlowLink | Self::Latency => 30,
            Self::TasksLocked if !short => 10,
            Self::ServerFrozen | Self::TargetFrozen | Self::BothFrozen => 8,
            Self::BackendStopped
            | Self::Refused
            | Self::TooMany
            | Self::ConnectRevoked
            | Self::LocksExhausted
            | Self::ReadOnly
            | Self::TasksLocked
            | Self::StandbyMissing
            | Self::ClockAhead
            | Self::ClockBehind
            | Self::WorkersLocked => 4,
            Self::DataDiskFull => 3,
            // Longer than the shutdown timeout.
            Self::ShutdownTimeout => 2,
            Self::ServerKilled
            | Self::TargetKilled
            | Self::BothKilled
            | Self::ServerImmediate
            | Self::WalDiskFull
            | Self::Sessions(_) => 1,
            _ => 0,
        };
        Duration::from_secs(seconds)
    }

    /// Returns whether the fault is too slow for the short form.
    pub(crate) fn slow(self) -> bool {
        matches!(self, Self::BackendStoppedPastTimeout)
    }

    /// Returns the maximum time from the start of recovery to the end of the tasks.
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
            Self::TargetKilled => "target: SIGKILL, started after 1 s",
            Self::TargetRestart => "target: restart -m fast",
            Self::TargetFrozen => "target: SIGSTOP past the orphan timeout, SIGCONT",
            Self::BothKilled => "server and target: SIGKILL, started after 1 s",
            Self::BothFrozen => "server and target: SIGSTOP past the orphan timeout, SIGCONT",
            Self::StandbyMissing => "server: synchronous standby missing for 4 s",
            Self::Promotion => "server: SIGKILL, synchronous standby promoted",
            Self::FrozenPromotion => "server: SIGSTOP, synchronous standby promoted",
            Self::Sessions("pgmill control %") => "control sessions: terminated",
            Self::Sessions("pgmill claimer %") => "claimer sessions: terminated",
            Self::Sessions("pgmill listener %") => "listener sessions: terminated",
            Self::Sessions(_) => "all fleet sessions: terminated",
            Self::Message(Cut::Before) => "connection: cut before the request arrives",
            Self::Message(Cut::After) => "connection: cut before the answer arrives",
            Self::Message(Cut::Unseen) => "connection: cut before the answer, unseen by the server",
            Self::NetworkCut => "network: partition (all packets are dropped)",
            Self::NetworkOneWay => "network: packets to the worker are dropped",
            Self::NetworkReset => "network: connections are reset",
            Self::PacketLoss => "network: 10 % packet loss",
            Self::SlowLink => "network: 1 Mbit/s",
            Self::Latency => "network: 200 ms latency",
            Self::Refused => "server: connections refused for 4 s",
            Self::TooMany => "server: too many connections for 4 s",
            Self::ConnectRevoked => "server: logins may not connect for 4 s",
            Self::LocksExhausted => "server: no memory for locks for 4 s",
            Self::ReadOnly => "server: read-only for 4 s",
            Self::DataDiskFull => "data disk: full",
            Self::WalDiskFull => "WAL disk: full (the server goes down)",
            Self::TasksLocked => "mill.tasks: ACCESS EXCLUSIVE lock for 10 s",
            Self::WorkersLocked => "mill.workers: ACCESS EXCLUSIVE lock for 4 s",
            Self::NeverEnds => "statement: never ends, timeout 1 s",
            Self::Deadlock => "statement: deadlock of two tasks",
            Self::Serialization => "statement: serialization failure",
            Self::OwnCommit => "statement: COMMIT",
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
            Self::Recording => "recording",
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queue => "queue",
            Self::Target => "target",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {} | {} | {}", self.fault, self.moment, self.mode, self.place)
    }
}
