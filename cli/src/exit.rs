//! Exit codes of all programs, and the mapping from errors. README.md contains the same table.

use conninfo::ConnectError;
use queue::QueueError;
use tokio_postgres::error::SqlState;

/// Success.
pub const OK: u8 = 0;
/// A failure without a code of its own.
pub const FAILURE: u8 = 1;
/// The command line or a configuration file is wrong.
pub const USAGE: u8 = 2;
/// `enqueue --wait`: the task or the run ended without success; `pgmill run show --watch`: the run.
pub const TASK_FAILED: u8 = 3;
/// The task, queue or worker does not exist, or nothing matched.
pub const NOT_FOUND: u8 = 4;
/// The request was refused: bad value, limit, missing privilege, unknown schema version.
pub const REFUSED: u8 = 5;
/// The database is unreachable, or `pgmill` waited too long for a lock: try again later (EX_TEMPFAIL
/// of sysexits.h).
pub const TEMPORARY: u8 = 75;
/// `enqueue --wait=DURATION`: the time ran out and the task is still in progress (as in
/// timeout(1)).
pub const TIMED_OUT: u8 = 124;

/// SQLSTATE classes of a connection that the server refuses however often it is tried: authorization,
/// unknown database, missing privilege.
const PERMANENT_CLASSES: [&str; 3] = ["28", "3D", "42"];

/// Returns the exit code of a program that could not connect.
#[must_use]
pub fn of_connection(error: &ConnectError) -> u8 {
    let permanent = matches!(error, ConnectError::Authentication { .. })
        || error.sqlstate().is_some_and(|state| {
            PERMANENT_CLASSES.iter().any(|class| state.code().starts_with(class))
        });
    match () {
        () if error.is_usage() => USAGE,
        () if permanent => REFUSED,
        () => TEMPORARY,
    }
}

/// Returns the exit code of a program that an error of the queue ends.
#[must_use]
pub fn of(error: &QueueError) -> u8 {
    let unprivileged = error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    match error {
        QueueError::Unreachable(error) => of_connection(error),
        error if error.refused() || unprivileged => REFUSED,
        error if error.temporary() => TEMPORARY,
        _ => FAILURE,
    }
}
