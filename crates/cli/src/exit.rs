//! Exit codes of all programs, and the mapping from errors to exit codes. The reference of the
//! command line has the same table.

use conninfo::ConnectError;
use queue::QueueError;
use tokio_postgres::error::SqlState;

/// Success.
pub const OK: u8 = 0;
/// A failure without a code of its own.
pub const FAILURE: u8 = 1;
/// The command line or a configuration file is wrong.
pub const USAGE: u8 = 2;
/// With `enqueue --wait`, the task or the run ended without success; with
/// `pgmill run show --watch`, the run did.
pub const TASK_FAILED: u8 = 3;
/// The task, queue or worker does not exist, or nothing matches.
pub const NOT_FOUND: u8 = 4;
/// The request was refused because of a bad value, a limit, a missing privilege or an unknown
/// schema version.
pub const REFUSED: u8 = 5;
/// The database is unreachable, or `pgmill` waited too long for a lock. The same command may
/// succeed later (EX_TEMPFAIL of sysexits.h).
pub const TEMPORARY: u8 = 75;
/// With `enqueue --wait=DURATION`, the time ran out while the task was still in progress.
/// timeout(1) returns the same code.
pub const TIMED_OUT: u8 = 124;

/// Interrupted by SIGINT. A shell reports the same code for a program that SIGINT ended.
pub const INTERRUPTED: u8 = 130;

/// SQLSTATE classes of a connection that the server refuses at every try: authorization, unknown
/// database, missing privilege.
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

/// Returns the exit code of a program that ends because of an error of the queue.
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
