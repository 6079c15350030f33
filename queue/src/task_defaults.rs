//! Default values of task options, for help texts. The schema applies the defaults;
//! `tests/operation/submit.rs` compares these constants with it.

use std::time::Duration;

use crate::task::{Backoff, Mode, Priority};

/// Queue.
pub const QUEUE: &str = "default";
/// Priority of a task without a group.
pub const PRIORITY: Priority = Priority::Normal;
/// Maximum number of failed attempts.
pub const MAX_ATTEMPTS: i32 = 3;
/// Wait before the second attempt.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Growth of the wait.
pub const BACKOFF: Backoff = Backoff::Exponential;
/// Whether a random part of the interval is waited.
pub const JITTER: bool = true;
/// Mode.
pub const MODE: Mode = Mode::Transaction;
/// Limit of a concurrency key that has no limit yet.
pub const CONCURRENCY: i32 = 1;
