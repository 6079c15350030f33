//! Exit codes of every program, and which error has which. README.md holds the same table.

use tokio_postgres::error::SqlState;

use crate::connect::ConnectError;
use crate::error::QueueError;

/// It worked.
pub const OK: u8 = 0;
/// Something failed that has no code of its own.
pub const FAILURE: u8 = 1;
/// The command line or a configuration file is wrong.
pub const USAGE: u8 = 2;
/// `enqueue --wait`: the task ended, and did not succeed.
pub const TASK_FAILED: u8 = 3;
/// No such task, queue or worker; or nothing matched.
pub const NOT_FOUND: u8 = 4;
/// The request is understood and refused: bad value, limit, missing right, unknown schema version.
pub const REFUSED: u8 = 5;
/// The database cannot be reached: try again later (EX_TEMPFAIL of sysexits.h).
pub const UNREACHABLE: u8 = 75;
/// `enqueue --wait=DURATION`: the time ran out, the task goes on (as timeout(1) has it).
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
        () => UNREACHABLE,
    }
}

/// Returns the exit code of a program that an error of the queue ends.
#[must_use]
pub fn of(error: &QueueError) -> u8 {
    let unprivileged = error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    match error {
        QueueError::Unreachable(error) => of_connection(error),
        error if error.refused() || unprivileged => REFUSED,
        error if error.temporary() => UNREACHABLE,
        _ => FAILURE,
    }
}
