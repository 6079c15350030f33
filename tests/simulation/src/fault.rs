//! Kinds of faults.

use crate::event::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// kill -9 of workers; they start again later.
    Kill,
    /// SIGSTOP of workers, then SIGCONT.
    Stop,
    /// The network between workers and server is cut.
    Cut,
    /// The server crashes, and starts again.
    Crash,
    /// The server is shut down, and starts again with the same tables.
    Restart,
    /// The server does not answer for a while.
    Freeze,
    /// The server freezes, and a standby takes over.
    Failover,
    /// Workers are stopped gracefully and started again.
    Deploy,
    /// The control session of a worker ends every few seconds.
    Flap,
    /// The server refuses new sessions, and the control sessions of workers end.
    Refuse,
    /// Messages take up to 0.4 s, and the control sessions of workers end every few seconds.
    Slow,
    /// All sessions that listen end, and LISTEN fails.
    Deaf,
    /// Half of the sessions end, but not those that listen and the control sessions.
    EndSessions,
    /// Workers are stopped; meanwhile the server freezes, until the workers continue.
    StopInFreeze,
    /// The server's clock is set back.
    SetBack,
}

/// Every kind.
pub(crate) const KINDS: [Kind; 15] = [
    Kind::Kill,
    Kind::Stop,
    Kind::Cut,
    Kind::Crash,
    Kind::Restart,
    Kind::Freeze,
    Kind::Failover,
    Kind::Deploy,
    Kind::Flap,
    Kind::Refuse,
    Kind::Slow,
    Kind::Deaf,
    Kind::EndSessions,
    Kind::StopInFreeze,
    Kind::SetBack,
];

impl Kind {
    /// Returns whether the fault affects the whole fleet.
    pub(crate) fn of_server(self) -> bool {
        match self {
            Self::Crash
            | Self::Restart
            | Self::Freeze
            | Self::Failover
            | Self::StopInFreeze
            | Self::Slow
            | Self::Refuse
            | Self::EndSessions => true,
            Self::Kill
            | Self::Stop
            | Self::Cut
            | Self::Deploy
            | Self::Flap
            | Self::Deaf
            | Self::SetBack => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) ends_at: Time,
    /// Number of workers that the fault affects.
    pub(crate) many: usize,
    /// Those workers, once the fault has begun.
    pub(crate) workers: Vec<usize>,
}
