//! Exit codes of every command, in one place. README.md holds the same table.

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
