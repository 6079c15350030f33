//! The trials: faults of the leader, and modes of replication.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// Time for which the leader is unreachable for clients.
pub(crate) const CLIENT_PARTITION: Duration = Duration::from_secs(20);

/// What happens to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `patronictl switchover`.
    Switchover,
    /// SIGKILL for Patroni and the server.
    Killed,
    /// SIGSTOP for Patroni and the server, and SIGCONT after the failover.
    Frozen,
    /// Patroni does not reach etcd.
    WithoutEtcd,
    /// Neither etcd, nor the clients, nor the other nodes are reachable.
    Isolated,
    /// The clients do not reach the server; Patroni sees no fault.
    WithoutClients,
}

/// Mode of replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A commit waits for a standby.
    Synchronous,
    /// A commit waits for no standby.
    Asynchronous,
}

/// One fault in one mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) fault: Fault,
    pub(crate) mode: Mode,
}

/// Returns all trials in order.
pub(crate) fn trials(short: bool) -> Vec<Trial> {
    use Fault::{Frozen, Isolated, Killed, Switchover, WithoutClients, WithoutEtcd};
    let all = [Switchover, Killed, Frozen, WithoutEtcd, Isolated, WithoutClients];
    let (faults, modes) = if short {
        (&all[..3], &[Mode::Synchronous][..])
    } else {
        (&all[..], &[Mode::Synchronous, Mode::Asynchronous][..])
    };
    let pair = |mode: Mode| faults.iter().map(move |&fault| Trial { fault, mode });
    modes.iter().flat_map(|&mode| pair(mode)).collect()
}

impl Fault {
    /// Returns whether another node becomes the leader.
    pub(crate) fn moves_leader(self) -> bool {
        self != Self::WithoutClients
    }

    /// Returns the longest permitted pause.
    pub(crate) fn pause_goal(self, ttl: Duration) -> Duration {
        match self {
            Self::Switchover => Duration::from_secs(6),
            Self::WithoutClients => CLIENT_PARTITION + Duration::from_secs(5),
            _ => ttl + Duration::from_secs(5),
        }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switchover => "switchover",
            Self::Killed => "leader killed",
            Self::Frozen => "leader frozen",
            Self::WithoutEtcd => "leader cut off from etcd",
            Self::Isolated => "leader cut off from everything",
            Self::WithoutClients => "leader cut off from clients for 20 s",
        })
    }
}

impl Display for Mode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Synchronous => "synchronous",
            Self::Asynchronous => "asynchronous",
        })
    }
}

impl Display for Trial {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.fault, self.mode)
    }
}
