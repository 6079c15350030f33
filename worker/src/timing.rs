//! Every interval and time limit of the worker, and how they depend on each other.
//!
//! From the death of a worker to its tasks being pending again, with the defaults:
//!
//! ```text
//! kill -9     the server closes the control session and with it the session lock
//!   │  ≤ MAX_POLL_INTERVAL (1.3 s)    a peer's poll shows the worker without its lock
//!   │  ≥ MIN_ABSENCE (1 s)            a second poll confirms it
//!   │  ≥ SESSION_GRACE (3 s)          since the last heartbeat: the worker may be reconnecting
//!   │                                 (OUTAGE_GRACE, 10 s, if the peer's own polls had failed)
//!   ▼
//! dead        terminate its backends, check every TERMINATE_POLL_INTERVAL (50 ms)
//!   ▼
//! pending     within 5 s
//!
//! SIGSTOP, or a cut network: the lock stays
//!   │  ≥ --orphan-timeout (30 s)      without a new heartbeat, while the peer polls without a gap;
//!   │                                 at least three times --heartbeat-interval (5 s)
//!   ▼
//! dead        as above: pending within the orphan timeout + 5 s
//! ```
//!
//! From a frozen primary to the new one: the heartbeat gives up after [`MIN_HEARTBEAT_TIMEOUT`] and
//! registers at the next host, which closes all other sessions. A control statement that no closed
//! session ends is given up after [`ANSWER_TIMEOUT`]; a task's statement whose backend is gone, at
//! the next probe, every [`PROBE_INTERVAL`].

use std::time::Duration;

/// Default of `--heartbeat-interval`.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Limit for one heartbeat; if the heartbeat interval is longer, the interval is the limit.
pub(crate) const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// Default of `--orphan-timeout`.
pub(crate) const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Limit for opening a control session and for registering on it. Without it, an attempt would
/// never end if a server accepts connections but does not answer.
pub(crate) const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Default and maximum of `--poll-interval`: with the heartbeats, 58 statements a minute. A killed
/// worker's tasks are pending again within [`SESSION_GRACE`] plus this interval plus the time of
/// the reclaim.
pub(crate) const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1300);

/// Polls further apart than this interrupt the observation of peers.
pub(crate) const MAX_POLL_GAP: Duration = Duration::from_millis(5 * 1300);

/// Time since the last heartbeat before a worker without control session is considered dead, in
/// case it is reconnecting.
pub(crate) const SESSION_GRACE: Duration = Duration::from_secs(3);

/// Time for which the session has to be absent: a single poll may fall between two sessions of a
/// worker, or into a shutdown of the server that ended the peer's session first.
pub(crate) const MIN_ABSENCE: Duration = Duration::from_secs(1);

/// Grace period after an outage: all workers reconnect, which takes time on a busy machine, and the
/// first worker that is back must not reclaim the others.
pub(crate) const OUTAGE_GRACE: Duration = Duration::from_secs(10);

/// Time between two checks of a backend being terminated.
pub(crate) const TERMINATE_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time between two sweeps of the pending tasks below the watermarks.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two sweeps, also if one was requested or a claim found too few tasks.
pub(crate) const MIN_SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Interval of comparing the claims in the database with the claims in flight. Also compared after
/// a claim whose answer was lost.
pub(crate) const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);

/// Time for which the tasks of a queue commit alone after a slow shared commit.
pub(crate) const SHARED_COMMIT_COOL_DOWN: Duration = Duration::from_secs(10);

/// `statement_timeout` of control sessions.
pub(crate) const CONTROL_STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// `lock_timeout` of control sessions.
pub(crate) const CONTROL_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit for an operation on a pooled session, including the wait for the session. The server ends
/// each statement after [`CONTROL_STATEMENT_TIMEOUT`]; this limit is for a server, or a machine on
/// the way to it, that does not answer at all.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(75);

/// A session used for this long is closed instead of reused: it may still wait for the answer to an
/// abandoned statement.
pub(crate) const LONG_USE: Duration = Duration::from_secs(20);

/// Limit for the wait for a pooled session.
pub(crate) const POOL_WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Limit for opening a pooled session.
pub(crate) const POOL_CREATE_TIMEOUT: Duration = Duration::from_secs(15);

/// Limit for the own operations of a session for tasks, outside a task.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of the checks whether the backend of a running statement still exists.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// Time for a cancelled statement to end before the next step of escalation.
pub(crate) const ESCALATION_DELAY: Duration = Duration::from_secs(5);

/// Time between two statements that publish progress, and minimum run time of a task to be
/// published.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time between two runs of the maintenance of the history.
pub(crate) const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Default of `--fleet-metrics-interval`, the time between two counts. A worker that is not the
/// publisher tries to become the publisher in the same interval.
pub(crate) const FLEET_METRICS_INTERVAL: Duration = Duration::from_secs(15);

/// First wait after a failure; it doubles with each further failure.
pub(crate) const MIN_BACKOFF: Duration = Duration::from_millis(50);

/// Longest wait after failures, except where another one is given.
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Longest wait before the control session is opened again: the other workers soon consider a worker
/// without this session dead.
pub(crate) const MAX_HEARTBEAT_BACKOFF: Duration = Duration::from_secs(1);

/// Longest wait before LISTEN is tried again: polls replace it.
pub(crate) const MAX_LISTEN_BACKOFF: Duration = Duration::from_secs(30);

/// Default of `--shutdown-timeout`.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for cancelled statements to end and for their tasks to be released.
pub(crate) const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);

/// Limit for deregistration and the other background services at shutdown.
pub(crate) const DEREGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit for the check of each login for a pooler.
pub(crate) const POOLER_CHECK_TIMEOUT: Duration = Duration::from_secs(30);

// A session in use for long is closed before the limit of its operation, whose statement the server
// has ended by then. One poll between the end of a session and the grace period sees it absent, a
// second one confirms it.
const _: () = assert!(LONG_USE.as_millis() < ANSWER_TIMEOUT.as_millis());
const _: () = assert!(CONTROL_STATEMENT_TIMEOUT.as_millis() < ANSWER_TIMEOUT.as_millis());
const _: () = assert!(2 * MAX_POLL_INTERVAL.as_millis() < SESSION_GRACE.as_millis());
const _: () = assert!(3 * HEARTBEAT_INTERVAL.as_millis() <= ORPHAN_TIMEOUT.as_millis());
