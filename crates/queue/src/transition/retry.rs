//! Decides whether and when to run a failed attempt again. Pure: the caller provides the random
//! numbers.

mod cause;

use std::time::Duration;

use pgmill_client::{Backoff, Mode};
use rand::{Rng, RngExt};

use crate::error::Condition;
use crate::task::{Claim, RetryPolicy};

pub use cause::{CAUSES, Cause};

/// SQLSTATE with which a task reports a permanent failure. The task is not retried.
pub const FATAL: &str = "MT900";
/// SQLSTATE with which a task snoozes. It runs again after the retry interval, and the attempt is
/// not used up.
pub const SNOOZE: &str = "MT901";

/// Number of attempts of a task that may end by conflicts without being counted; any further conflict is
/// a failure.
pub const MAX_CONFLICTS: u32 = 5;

/// Number of attempts of a task that are not counted in all, including those that the server interrupted.
/// Also the bound for races in the catalogs: of many tasks that create the same object, only one wins each
/// time.
pub const MAX_FREE_ATTEMPTS: u32 = 20;

/// Maximum pause after an attempt that the server interrupted. With [`MAX_FREE_ATTEMPTS`], the server may be
/// in such a state for 23 to 47 minutes before it costs a task an attempt.
pub const MAX_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Maximum wait of exponential backoff, unless the retry interval itself is longer.
pub const MAX_BACKOFF: Duration = Duration::from_secs(24 * 60 * 60);

/// Prefixes of SQLSTATEs that another attempt would produce again: 0A feature not supported; 25001
/// and 2D000 statement that refuses a transaction; 26 and 34 unknown names of statements and
/// cursors; 28 authorization; 3D, 3F and 42 names that do not exist, syntax and privileges; 54
/// limits.
pub const FATAL_CLASSES: &[&str] =
    &["0A", "25001", "2D000", "26", "28", "34", "3D", "3F", "42", "54"];

/// SQLSTATE with which the server ends the session of a transaction that exceeds `transaction_timeout`
/// (since PostgreSQL 17). The transaction is rolled back, so nothing is unknown; another attempt would
/// take as long.
pub const TRANSACTION_TIMEOUT: &str = "25P04";

/// Decision after an attempt that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Counts as a failure. The task runs again after this wait.
    Failure {
        /// Wait before the next attempt; zero means at once.
        retry_in: Duration,
    },
    /// Another transaction was in the way. Does not use up an attempt. The task runs again after this wait.
    Transient {
        /// Wait before the next attempt; zero means at once.
        retry_in: Duration,
    },
    /// The server was the cause. Does not use up an attempt. The task runs again after this wait.
    Interrupted {
        /// Wait before the next attempt.
        retry_in: Duration,
    },
    /// The task ends.
    Final,
}

/// State on which the decision depends, in addition to the outcome of the last attempt.
#[derive(Clone, Copy, Debug)]
pub struct RetryState<'a> {
    /// The task's retry policy.
    pub retry: &'a RetryPolicy,
    /// Number of attempts before this one that failed.
    pub failures: u32,
    /// Number of attempts before this one that did not count.
    pub transient_failures: u32,
    /// Execution mode.
    pub mode: Mode,
    /// Whether the statement must not be started twice.
    pub at_most_once: bool,
}

impl<'a> RetryState<'a> {
    /// Returns the state of a claimed task.
    #[must_use]
    pub fn of(claim: &'a Claim) -> Self {
        Self {
            retry: &claim.retry,
            failures: claim.failures,
            transient_failures: claim.transient_failures,
            mode: claim.mode,
            at_most_once: claim.at_most_once,
        }
    }
}

/// An error, as far as the decision depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttemptError<'a> {
    /// SQLSTATE; `None` if the error did not come from the server.
    pub sqlstate: Option<&'a str>,
    /// Whether the response never arrived.
    pub connection_lost: bool,
    /// What caused the error, if it is known better than by the SQLSTATE, which may be that of a wrong
    /// statement.
    pub condition: Option<Condition>,
}

/// Decides whether to run the task again after an attempt that ended with this error.
#[must_use]
pub fn decide(
    state: &RetryState<'_>,
    error: AttemptError<'_>,
    fatal_classes: &[String],
    random: &mut impl Rng,
) -> RetryDecision {
    let cause = Cause::of(&error);
    let in_class = |class: &String| error.sqlstate.is_some_and(|code| code.starts_with(class));
    let fatal = error.condition.is_none() && fatal_classes.iter().any(in_class);
    let max_conflicts = match error.condition {
        Some(Condition::CatalogRace) => MAX_FREE_ATTEMPTS,
        _ => MAX_CONFLICTS,
    };
    // In autocommit mode, statements may have committed before the conflict.
    let rolled_back = state.mode == Mode::Transaction;
    let free = state.transient_failures;
    if state.at_most_once || error.sqlstate == Some(FATAL) {
        RetryDecision::Final
    } else if cause == Cause::Server && free < MAX_FREE_ATTEMPTS {
        RetryDecision::Interrupted { retry_in: pause(free, random) }
    } else if cause == Cause::Conflict && rolled_back && free < max_conflicts {
        RetryDecision::Transient { retry_in: conflict_delay(free, random) }
    } else if fatal || state.failures + 1 >= state.retry.max_attempts {
        RetryDecision::Final
    } else {
        RetryDecision::Failure { retry_in: retry_delay(state.retry, state.failures + 1, random) }
    }
}

/// Returns whether the object exists because another session has created it at the same time: the
/// statement creates it only if it does not exist, or replaces it.
#[must_use]
pub fn lost_race_to_create(statement: &str, sqlstate: Option<&str>) -> bool {
    let exists = matches!(sqlstate, Some("42P06" | "42P07" | "42710" | "42723"));
    let contains = |wanted: &[&str]| {
        let words: Vec<String> =
            statement.split_ascii_whitespace().map(str::to_ascii_lowercase).collect();
        words.windows(wanted.len()).any(|words| words == wanted)
    };
    exists && (contains(&["if", "not", "exists"]) || contains(&["or", "replace"]))
}

/// Returns the wait before the next attempt after `failures` failed attempts. With exponential
/// backoff, it is the interval × 2^(failures − 1). With jitter, it is drawn uniformly between zero
/// and that wait. This full jitter spreads tasks that failed at the same time most widely (AWS
/// Architecture Blog, "Exponential Backoff And Jitter").
#[must_use]
pub fn retry_delay(policy: &RetryPolicy, failures: u32, random: &mut impl Rng) -> Duration {
    let whole = match policy.backoff {
        Backoff::Fixed => policy.interval,
        Backoff::Exponential => {
            let factor = 2_u32.saturating_pow(failures.saturating_sub(1).min(31));
            let longest = MAX_BACKOFF.max(policy.interval);
            policy.interval.saturating_mul(factor).min(longest)
        }
    };
    if policy.jitter { whole.mul_f64(random.random::<f64>()) } else { whole }
}

/// Returns 100 ms, 200 ms, … with full jitter. The waits are short, because conflicts disappear quickly or
/// not at all.
fn conflict_delay(before: u32, random: &mut impl Rng) -> Duration {
    doubled(before.min(MAX_CONFLICTS)).mul_f64(random.random::<f64>())
}

/// Returns 100 ms, 200 ms, … up to [`MAX_PAUSE`], less up to half of it. Tasks that were interrupted
/// together spread, and the sum of the pauses has a lower bound.
fn pause(before: u32, random: &mut impl Rng) -> Duration {
    doubled(before).min(MAX_PAUSE).mul_f64(1.0 - random.random::<f64>() / 2.0)
}

fn doubled(times: u32) -> Duration {
    Duration::from_millis(100).saturating_mul(2_u32.saturating_pow(times.min(31)))
}

/// Returns a hint for a statement that cannot run inside a transaction, or that comes too late in
/// it, such as SET TRANSACTION ISOLATION LEVEL.
#[must_use]
pub fn mode_hint(claim: &Claim, sqlstate: Option<&str>) -> Option<&'static str> {
    match (claim.mode(), sqlstate) {
        (Mode::Transaction, Some("25001")) if sets_isolation(claim.statement()) => Some(
            "The worker has already begun the transaction of the task. Enqueue the task with \
             --isolation serializable or repeatable_read (options => '{\"isolation\": \
             \"serializable\"}').",
        ),
        (Mode::Transaction, Some("25001" | "2D000")) => Some(
            "This statement cannot run inside a transaction. Enqueue it with --mode autocommit \
             (mode => 'autocommit'); it then runs at least once, not exactly once.",
        ),
        _ => None,
    }
}

/// Returns whether the statement contains ISOLATION LEVEL in any case, also in the body of DO.
fn sets_isolation(statement: &str) -> bool {
    let words = statement.split_ascii_whitespace().map(str::to_ascii_lowercase);
    words.clone().zip(words.skip(1)).any(|pair| pair == ("isolation".into(), "level".into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn policy(backoff: Backoff, jitter: bool, interval: Duration) -> RetryPolicy {
        RetryPolicy { max_attempts: 10, interval, backoff, jitter }
    }

    #[test]
    fn only_a_conditional_create_loses_a_race() {
        let lost = |statement| lost_race_to_create(statement, Some("42P07"));
        assert!(lost("CREATE TABLE\nif NOT exists t (a int)"));
        assert!(lost("CREATE OR  REPLACE VIEW v AS SELECT 1"));
        assert!(!lost("CREATE TABLE t (a int)"));
        assert!(!lost_race_to_create("CREATE TABLE IF NOT EXISTS t (a int)", Some("42P01")));
    }

    #[test]
    fn exponential_doubles_and_stops_at_a_day() {
        let mut random = StdRng::seed_from_u64(1);
        let policy = policy(Backoff::Exponential, false, Duration::from_secs(10));
        let waits: Vec<u64> = [1, 2, 3, 4, 40]
            .iter()
            .map(|n| retry_delay(&policy, *n, &mut random).as_secs())
            .collect();
        assert_eq!(waits, [10, 20, 40, 80, 86_400]);
    }

    proptest! {
        #[test]
        fn jitter_stays_between_zero_and_the_wait(
            seed: u64, failures in 1_u32..100, seconds in 0_u64..31_536_000, fixed: bool,
        ) {
            let backoff = if fixed { Backoff::Fixed } else { Backoff::Exponential };
            let interval = Duration::from_secs(seconds);
            let mut random = StdRng::seed_from_u64(seed);
            let whole = retry_delay(&policy(backoff, false, interval), failures, &mut random);
            let drawn = retry_delay(&policy(backoff, true, interval), failures, &mut random);
            prop_assert!(drawn <= whole);
            prop_assert!(whole >= interval);
            prop_assert!(whole <= MAX_BACKOFF.max(interval));
        }
    }

    #[test]
    fn a_condition_of_the_server_is_not_fatal() {
        let policy = policy(Backoff::Fixed, false, Duration::from_secs(1));
        let fatal = FATAL_CLASSES.iter().map(ToString::to_string).collect::<Vec<_>>();
        let decided = |mode, transient_failures, condition| {
            let state = RetryState {
                retry: &policy,
                failures: 0,
                transient_failures,
                mode,
                at_most_once: false,
            };
            let error =
                AttemptError { sqlstate: Some("54000"), condition, ..AttemptError::default() };
            decide(&state, error, &fatal, &mut StdRng::seed_from_u64(1))
        };
        let ids = Some(Condition::OutOfTransactionIds);
        let again = RetryDecision::Failure { retry_in: Duration::from_secs(1) };
        assert_eq!(decided(Mode::Transaction, 0, None), RetryDecision::Final);
        for mode in [Mode::Transaction, Mode::Autocommit] {
            assert!(matches!(decided(mode, 0, ids), RetryDecision::Interrupted { .. }));
            assert_eq!(decided(mode, MAX_FREE_ATTEMPTS, ids), again);
        }
    }

    #[test]
    fn a_session_that_transaction_timeout_has_ended_counts_as_a_failure() {
        let policy =
            RetryPolicy { max_attempts: 1, ..policy(Backoff::Fixed, false, Duration::ZERO) };
        let decided = |sqlstate| {
            let state = RetryState {
                retry: &policy,
                failures: 0,
                transient_failures: 0,
                mode: Mode::Transaction,
                at_most_once: false,
            };
            let error = AttemptError { sqlstate, connection_lost: true, condition: None };
            decide(&state, error, &[], &mut StdRng::seed_from_u64(1))
        };
        assert_eq!(decided(Some(TRANSACTION_TIMEOUT)), RetryDecision::Final);
        for sqlstate in [None, Some("57P01")] {
            assert!(matches!(decided(sqlstate), RetryDecision::Interrupted { .. }), "{sqlstate:?}");
        }
    }

    #[test]
    fn the_longest_beginning_of_a_sqlstate_decides() {
        let cause = |code| {
            Cause::of(&AttemptError {
                sqlstate: Some(code),
                connection_lost: true,
                ..AttemptError::default()
            })
        };
        assert_eq!(cause("53100"), Cause::Server);
        assert_eq!(cause("53400"), Cause::Task);
        assert_eq!(cause("25P04"), Cause::Task);
        assert_eq!(cause("08006"), Cause::Server);
        assert_eq!(
            Cause::of(&AttemptError { sqlstate: Some("08006"), ..AttemptError::default() }),
            Cause::Task
        );
    }

    #[test]
    fn the_pauses_of_an_interrupted_task_add_up_to_the_documented_time() {
        let longest: Duration = (0..MAX_FREE_ATTEMPTS).map(|n| doubled(n).min(MAX_PAUSE)).sum();
        let minutes = longest.as_secs() / 60;
        assert_eq!((minutes / 2, minutes), (23, 46));
    }

    #[test]
    fn a_reclaim_has_the_same_bound() {
        let schema = include_str!("../../../../schema/19_finish.sql");
        assert!(schema.contains(&format!("task.transient_failures < {MAX_FREE_ATTEMPTS} ")));
    }

    #[test]
    fn jitter_uses_the_whole_range() {
        let mut random = StdRng::seed_from_u64(7);
        let policy = policy(Backoff::Fixed, true, Duration::from_secs(100));
        let drawn: Vec<u64> =
            (0..1000).map(|_| retry_delay(&policy, 1, &mut random).as_secs()).collect();
        assert!(drawn.iter().any(|seconds| *seconds < 5));
        assert!(drawn.iter().any(|seconds| *seconds > 95));
    }
}
