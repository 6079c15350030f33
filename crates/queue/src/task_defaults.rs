//! Default values of task options, for help texts. The schema applies the defaults, and
//! `tests/operation/submit.rs` compares these constants with it.

use std::time::Duration;

use pgmill_client::{Backoff, Mode, Priority};

/// Queue of a task.
pub const QUEUE: &str = "default";
/// Priority of a task without a group.
pub const PRIORITY: Priority = Priority::Normal;
/// Maximum number of failed attempts.
pub const MAX_ATTEMPTS: i32 = 3;
/// Wait before the second attempt.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Growth of the wait before a retry.
pub const BACKOFF: Backoff = Backoff::Exponential;
/// Whether the wait before a retry is drawn at random between zero and the full wait; for tasks with
/// exponential backoff. With fixed backoff the default is `false`.
pub const JITTER: bool = true;
/// Execution mode.
pub const MODE: Mode = Mode::Transaction;
/// Maximum number of concurrent tasks with a concurrency key, if the key has no limit yet.
pub const CONCURRENCY: i32 = 1;
