//! All cells.

use proxy::Cut;

use super::cell::{Cell, Mode, Moment, Place};
use super::fault::Fault;

use Fault as F;
use Mode::{AtLeastOnce as L, AtMostOnce as M, Transaction as T};
use Moment::{
    Claimed, CommitSent, Completing, Enqueue, Executing, Heartbeat, Idle, Recording, Scheduled,
};

const ALL: &[Mode] = &[T, L, M];

/// One fault at several moments. Modes are listed separately only where they make a difference.
type Row = (Fault, &'static [(Moment, &'static [Mode])]);

const CELLS: &[Row] = &[
    (
        F::WorkerKilled,
        &[
            (Claimed, ALL),
            (Executing, ALL),
            (Completing, ALL),
            (CommitSent, &[T, L]),
            (Heartbeat, &[T]),
            (Idle, &[T]),
        ],
    ),
    (
        F::WorkerStopped,
        &[
            (Claimed, &[T]),
            (Executing, ALL),
            (Completing, ALL),
            (CommitSent, &[T]),
            (Heartbeat, &[T]),
            (Idle, &[T]),
        ],
    ),
    (F::Drain, &[(Claimed, &[T]), (Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (F::ShutdownTimeout, &[(Executing, ALL), (Completing, &[T])]),
    (F::TermThenKill, &[(Executing, ALL), (Completing, &[T])]),
    (F::OutOfMemory, &[(Executing, ALL)]),
    (F::LogFull, &[(Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (F::ClockAhead, &[(Executing, &[T]), (Idle, &[T])]),
    (F::ClockBehind, &[(Executing, &[T]), (Idle, &[T])]),
    (F::BackendEnded, &[(Claimed, &[T]), (Executing, ALL), (Completing, ALL), (CommitSent, &[T])]),
    (
        F::BackendKilled,
        &[(Claimed, &[T]), (Executing, ALL), (Completing, &[T]), (CommitSent, &[T])],
    ),
    (F::BackendStopped, &[(Executing, ALL), (Completing, &[T])]),
    (F::BackendStoppedPastTimeout, &[(Executing, &[T, L])]),
    (
        F::ServerKilled,
        &[
            (Enqueue, &[T]),
            (Claimed, &[T]),
            (Executing, ALL),
            (Completing, ALL),
            (CommitSent, &[T, L]),
            (Heartbeat, &[T]),
            (Idle, &[T]),
        ],
    ),
    (
        F::ServerImmediate,
        &[(Enqueue, &[T]), (Executing, ALL), (Completing, &[T]), (CommitSent, &[T]), (Idle, &[T])],
    ),
    (
        F::ServerRestart,
        &[(Enqueue, &[T]), (Executing, ALL), (Completing, &[T]), (CommitSent, &[T]), (Idle, &[T])],
    ),
    (F::ServerFrozen, &[(Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (
        F::DiskFrozen,
        &[
            (Enqueue, &[T]),
            (Executing, ALL),
            (Completing, ALL),
            (CommitSent, ALL),
            (Scheduled, &[T]),
            (Idle, &[T]),
        ],
    ),
    (F::ServerClockAhead, &[(Executing, ALL), (Completing, &[T]), (Scheduled, &[T]), (Idle, &[T])]),
    (
        F::ServerClockBehind,
        &[(Executing, ALL), (Completing, &[T]), (Scheduled, &[T]), (Idle, &[T])],
    ),
    (F::StandbyMissing, &[(Enqueue, &[T]), (Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (
        F::Promotion,
        &[
            (Claimed, &[T]),
            (Executing, ALL),
            (Completing, &[T]),
            (CommitSent, &[T, L]),
            (Idle, &[T]),
        ],
    ),
    (
        F::FrozenPromotion,
        &[(Claimed, &[T]), (Executing, ALL), (Completing, &[T]), (Heartbeat, &[T]), (Idle, &[T])],
    ),
    (F::OldPrimary, &[(Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (
        F::AsyncPromotion,
        &[(Executing, ALL), (Completing, &[T]), (CommitSent, ALL), (Scheduled, &[T]), (Idle, &[T])],
    ),
    (F::AsyncOldPrimary, &[(Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (F::PoolerKilled, &[(Enqueue, &[T])]),
    (F::PoolerPaused, &[(Enqueue, &[T])]),
    (F::PoolerReloaded, &[(Enqueue, &[T])]),
    (F::Sessions("pgmill control %"), &[(Executing, &[T]), (Heartbeat, &[T]), (Idle, &[T])]),
    (F::Sessions("pgmill claimer %"), &[(Claimed, &[T]), (Executing, &[T]), (Idle, &[T])]),
    (F::Sessions("pgmill listener %"), &[(Executing, &[T]), (Idle, &[T])]),
    (F::Sessions("pgmill%"), &[(Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (
        F::Message(Cut::Before),
        &[(Enqueue, &[T]), (Claimed, &[T, L]), (Completing, ALL), (Heartbeat, &[T])],
    ),
    (
        F::Message(Cut::After),
        &[(Enqueue, &[T]), (Claimed, &[T]), (CommitSent, ALL), (Heartbeat, &[T])],
    ),
    (
        F::Message(Cut::Unseen),
        &[(Enqueue, &[T]), (Claimed, &[T]), (CommitSent, ALL), (Heartbeat, &[T])],
    ),
    (F::Message(Cut::UnseenBefore), &[(Claimed, &[T]), (Completing, ALL), (Heartbeat, &[T])]),
    (F::NetworkCut, &[(Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (F::NetworkOneWay, &[(Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (F::NetworkReset, &[(Executing, ALL), (Completing, &[T]), (Idle, &[T])]),
    (F::PacketLoss, &[(Executing, &[T]), (Idle, &[T])]),
    (F::SlowLink, &[(Executing, &[T]), (Idle, &[T])]),
    (F::Latency, &[(Executing, &[T]), (Idle, &[T])]),
    (F::Refused, &[(Executing, &[T]), (Idle, &[T])]),
    (F::TooMany, &[(Executing, &[T]), (Idle, &[T])]),
    (F::ConnectRevoked, &[(Executing, &[T]), (Idle, &[T])]),
    (
        F::LocksExhausted,
        &[(Enqueue, &[T]), (Claimed, &[T]), (Executing, &[T, L]), (Completing, &[T]), (Idle, &[T])],
    ),
    (F::ReadOnly, &[(Enqueue, &[T]), (Executing, &[T, L]), (Completing, &[T]), (Idle, &[T])]),
    (F::DataDiskFull, &[(Enqueue, &[T]), (Executing, &[T]), (Idle, &[T])]),
    (F::TempDiskFull, &[(Executing, &[T, L]), (Idle, &[T])]),
    (F::WalDiskFull, &[(Enqueue, &[T]), (Executing, &[T]), (Idle, &[T])]),
    (F::TasksLocked, &[(Enqueue, &[T]), (Executing, &[T, L]), (Idle, &[T])]),
    (F::WorkersLocked, &[(Executing, &[T]), (Idle, &[T])]),
    (F::NeverEnds, &[(Executing, &[T, L])]),
    (F::Deadlock, &[(Executing, &[T])]),
    (F::Serialization, &[(Executing, &[T])]),
    (F::OwnCommit, &[(Executing, &[T])]),
    (F::OwnCommitInBlock, &[(Executing, &[T])]),
];

/// Tasks in a target.
const CELLS_IN_TARGET: &[Row] = &[
    (
        F::WorkerKilled,
        &[
            (Claimed, &[T]),
            (Executing, ALL),
            (Completing, &[T]),
            (CommitSent, &[T]),
            (Recording, &[T]),
        ],
    ),
    (F::WorkerStopped, &[(Executing, ALL), (Completing, &[T]), (CommitSent, &[T])]),
    (F::BackendEnded, &[(Executing, &[T, M]), (Completing, &[T])]),
    (
        F::ServerKilled,
        &[
            (Claimed, &[T]),
            (Executing, &[T, M]),
            (Completing, &[T]),
            (CommitSent, &[T]),
            (Recording, &[T]),
        ],
    ),
    (F::ServerFrozen, &[(Executing, &[T]), (Completing, &[T])]),
    (
        F::TargetKilled,
        &[
            (Claimed, &[T]),
            (Executing, &[T, M]),
            (Completing, &[T]),
            (CommitSent, &[T]),
            (Idle, &[T]),
        ],
    ),
    (F::TargetRestart, &[(Completing, &[T])]),
    (F::TargetFrozen, &[(Executing, &[T]), (Completing, &[T]), (Idle, &[T])]),
    (F::BothKilled, &[(Executing, &[T, M]), (Completing, &[T])]),
    (F::BothFrozen, &[(Executing, &[T]), (Completing, &[T])]),
    (F::Message(Cut::Before), &[(Claimed, &[T]), (Completing, &[T]), (Recording, &[T])]),
    (F::Message(Cut::After), &[(CommitSent, &[T]), (Recording, &[T])]),
    (F::Message(Cut::Unseen), &[(CommitSent, &[T]), (Recording, &[T])]),
    (F::Message(Cut::UnseenBefore), &[(Claimed, &[T]), (Completing, &[T])]),
];

/// Returns every cell in the order of the table.
pub(crate) fn cells() -> Vec<Cell> {
    [(Place::Queue, CELLS), (Place::Target, CELLS_IN_TARGET)]
        .into_iter()
        .flat_map(|(place, rows)| rows.iter().flat_map(move |row| of_row(row, place)))
        .collect()
}

fn of_row((fault, moments): &'static Row, place: Place) -> impl Iterator<Item = Cell> {
    moments.iter().flat_map(move |(moment, modes)| {
        modes.iter().map(move |mode| Cell { fault: *fault, moment: *moment, mode: *mode, place })
    })
}
