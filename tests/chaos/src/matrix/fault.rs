//! The kinds of faults, and what each means for a trial.

use std::fmt;
use std::time::Duration;

use proxy::Cut;

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
    /// No fsync of the server returns.
    DiskFrozen,
    /// The clock of the server's machine jumps.
    ServerClockAhead,
    ServerClockBehind,
    StandbyMissing,
    Promotion,
    FrozenPromotion,
    /// The synchronous standby is promoted, and the old primary accepts writes for some seconds more.
    OldPrimary,
    /// A standby that commits do not wait for is promoted without the last commits.
    AsyncPromotion,
    /// As OldPrimary, with a standby that commits do not wait for.
    AsyncOldPrimary,
    /// Every write of the worker's log fails.
    LogFull,
    PoolerKilled,
    PoolerPaused,
    PoolerReloaded,
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
    /// The disk of temporary files is full.
    TempDiskFull,
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
    /// Temporary files of tasks on a separate small disk.
    TempDisk,
    /// The cluster's WAL on a separate small disk.
    WalDisk,
    /// A server whose fsync can be frozen.
    FrozenDisk,
    /// A server with a clock of its own.
    ServerClock,
    /// A synchronous standby.
    Standby,
    /// A second cluster, which is the target.
    Target,
}

impl Fault {
    pub(crate) fn setup(self) -> Setup {
        match self {
            Self::NetworkCut
            | Self::NetworkOneWay
            | Self::NetworkReset
            | Self::PacketLoss
            | Self::SlowLink
            | Self::Refused => Setup::Network,
            Self::DiskFrozen => Setup::FrozenDisk,
            Self::ServerClockAhead | Self::ServerClockBehind => Setup::ServerClock,
            Self::DataDiskFull => Setup::DataDisk,
            Self::TempDiskFull => Setup::TempDisk,
            Self::WalDiskFull => Setup::WalDisk,
            _ if self.promotes() => Setup::Standby,
            _ => Setup::Plain,
        }
    }

    /// Returns whether the queue's database is unavailable during the fault. Then nothing can be enqueued,
    /// and the recovery time starts when the fault ends.
    pub(crate) fn makes_database_unavailable(self) -> bool {
        self.promotes()
            || matches!(
                self,
                Self::BackendKilled
                    | Self::ServerKilled
                    | Self::ServerImmediate
                    | Self::ServerRestart
                    | Self::ServerFrozen
                    | Self::BothKilled
                    | Self::BothFrozen
                    | Self::DiskFrozen
                    | Self::StandbyMissing
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
                    | Self::TempDiskFull
                    | Self::BackendStopped
                    | Self::BackendStoppedPastTimeout
                    | Self::TargetKilled
                    | Self::TargetRestart
                    | Self::TargetFrozen
            )
    }

    /// Returns whether a standby is promoted.
    pub(crate) fn promotes(self) -> bool {
        matches!(
            self,
            Self::Promotion
                | Self::FrozenPromotion
                | Self::OldPrimary
                | Self::AsyncPromotion
                | Self::AsyncOldPrimary
        )
    }

    /// Returns whether no commit waits for the standby.
    pub(crate) fn standby_is_asynchronous(self) -> bool {
        matches!(self, Self::AsyncPromotion | Self::AsyncOldPrimary)
    }

    /// Returns whether the old primary accepts writes after the promotion.
    pub(crate) fn keeps_old_primary(self) -> bool {
        matches!(self, Self::OldPrimary | Self::AsyncOldPrimary)
    }

    /// Returns whether clients connect through a pooler.
    pub(crate) fn needs_pooler(self) -> bool {
        matches!(self, Self::PoolerKilled | Self::PoolerPaused | Self::PoolerReloaded)
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
                | Self::ServerClockAhead
                | Self::ServerClockBehind
                | Self::LogFull
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
            Self::DiskFrozen if short => 5,
            Self::ServerFrozen | Self::TargetFrozen | Self::BothFrozen | Self::DiskFrozen => 8,
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
            | Self::ServerClockAhead
            | Self::ServerClockBehind
            | Self::OldPrimary
            | Self::AsyncOldPrimary
            | Self::PoolerPaused
            | Self::WorkersLocked => 4,
            Self::DataDiskFull | Self::TempDiskFull => 3,
            // Longer than the shutdown timeout.
            Self::ShutdownTimeout => 2,
            Self::ServerKilled
            | Self::TargetKilled
            | Self::BothKilled
            | Self::ServerImmediate
            | Self::WalDiskFull
            | Self::PoolerKilled
            | Self::LogFull
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
            Self::DiskFrozen => "server: no fsync returns for 8 s",
            Self::ServerClockAhead => "server: clock jumps an hour ahead, and back after 4 s",
            Self::ServerClockBehind => "server: clock jumps an hour back, and ahead after 4 s",
            Self::TargetKilled => "target: SIGKILL, started after 1 s",
            Self::TargetRestart => "target: restart -m fast",
            Self::TargetFrozen => "target: SIGSTOP past the orphan timeout, SIGCONT",
            Self::BothKilled => "server and target: SIGKILL, started after 1 s",
            Self::BothFrozen => "server and target: SIGSTOP past the orphan timeout, SIGCONT",
            Self::StandbyMissing => "server: synchronous standby missing for 4 s",
            Self::Promotion => "server: SIGKILL, synchronous standby promoted",
            Self::FrozenPromotion => "server: SIGSTOP, synchronous standby promoted",
            Self::OldPrimary => "server: synchronous standby promoted, old primary lives for 4 s",
            Self::AsyncPromotion => "server: SIGKILL, asynchronous standby promoted",
            Self::AsyncOldPrimary => {
                "server: asynchronous standby promoted, old primary lives for 4 s"
            }
            Self::LogFull => "worker: log on a full disk",
            Self::PoolerKilled => "pooler: SIGKILL, started after 1 s",
            Self::PoolerPaused => "pooler: PAUSE, RESUME after 4 s",
            Self::PoolerReloaded => "pooler: RELOAD",
            Self::Sessions("pgmill control %") => "control sessions: terminated",
            Self::Sessions("pgmill claimer %") => "claimer sessions: terminated",
            Self::Sessions("pgmill listener %") => "listener sessions: terminated",
            Self::Sessions(_) => "all fleet sessions: terminated",
            Self::Message(Cut::Before) => "connection: cut before the request arrives",
            Self::Message(Cut::After) => "connection: cut before the answer arrives",
            Self::Message(Cut::Unseen) => "connection: cut before the answer, unseen by the server",
            Self::Message(Cut::UnseenBefore) => {
                "connection: cut before the request, unseen by the server"
            }
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
            Self::TempDiskFull => "disk of temporary files: full",
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
