//! Intervals and time limits of the worker that depend on each other.
//!
//! From the death of a worker to its tasks being pending again, with the defaults:
//!
//! ```text
//! kill -9     the server ends the control session
//!   │  ≤ MAX_POLL_INTERVAL (1.3 s)    a peer's poll shows the worker without its session
//!   │  ≥ MIN_ABSENCE (1 s)            a second poll confirms it
//!   │  ≥ SESSION_GRACE (3 s)          since the last heartbeat: the worker may be reconnecting
//!   │                                 (OUTAGE_GRACE, 10 s, if the peer's own polls had failed)
//!   ▼
//! dead        terminate its backends, check every TERMINATE_POLL_INTERVAL (50 ms)
//!   ▼
//! pending     within 5 s
//!
//! SIGSTOP, or a cut network: the session stays
//!   │  ≥ --orphan-timeout (30 s)      without a new heartbeat, while the peer polls without a gap;
//!   │                                 at least three times --heartbeat-interval (5 s) of both
//!   ▼
//! dead        as above: pending within the orphan timeout + 5 s
//! ```
//!
//! From a frozen primary to the new one: the heartbeat gives up after [`MIN_HEARTBEAT_TIMEOUT`] and
//! registers at the next host, which closes all other sessions. Two kinds of waits do not end with
//! a closed session. A control statement is given up after [`ANSWER_TIMEOUT`]. A task's statement
//! whose backend is gone is given up at the next probe; probes are [`PROBE_INTERVAL`] apart. So is a
//! statement whose backend has been idle for [`MAX_IDLE`].

use std::time::Duration;

/// Default of `--heartbeat-interval`.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum time limit for one heartbeat. A longer heartbeat interval is the limit itself.
pub const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// Default of `--orphan-timeout`.
pub const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of heartbeats of a peer that have to be missing before the peer is considered dead, whatever
/// the orphan timeout of the observer: one heartbeat may be lost, and one may be late.
pub const MIN_MISSED_HEARTBEATS: u32 = 3;

/// Time limit for opening a control session and for registering on it. Without a limit, an attempt
/// would never end at a server that accepts connections but does not answer.
pub const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Default and maximum of `--poll-interval`. With this interval, a worker sends 58 statements a
/// minute for polls and heartbeats. The tasks of a killed worker are pending again within
/// [`SESSION_GRACE`] plus this interval plus the time of the reclaim.
pub const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1300);

/// If two polls are further apart than this, the observation of peers starts over.
pub const MAX_POLL_GAP: Duration = Duration::from_millis(5 * 1300);

/// Minimum time since the last heartbeat before a worker without a control session is considered
/// dead. Until then, the worker may be reconnecting.
pub const SESSION_GRACE: Duration = Duration::from_secs(3);

/// Minimum time for which polls must not see the session of a worker. A single poll may fall
/// between two sessions of a worker, or into a shutdown of the server that ended the peer's session
/// first.
pub const MIN_ABSENCE: Duration = Duration::from_secs(1);

/// Grace period after an outage, in place of [`SESSION_GRACE`]. All workers reconnect, which takes
/// time on a busy machine, and the first worker to reconnect must not reclaim the tasks of the
/// others.
pub const OUTAGE_GRACE: Duration = Duration::from_secs(10);

/// Time between two checks whether a backend that is being terminated is gone.
pub const TERMINATE_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time between two sweeps, which also read the pending tasks below the watermarks.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two sweeps, even if a sweep was requested or a claim found too few tasks.
pub const MIN_SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Wait between two claims of a worker that watches its lanes. Enqueues need not notify such a worker.
/// The timers of tokio round it up to whole milliseconds since some start: it takes a millisecond on
/// average.
pub const WATCH_INTERVAL: Duration = Duration::from_micros(500);

/// Time after the last task for which a worker watches its lanes. Shorter pauses between tasks cause no
/// notifications. A notified worker starts a task sooner than one that watches.
pub const WATCH_TIME: Duration = Duration::from_millis(8);

/// Time for which a worker records that it watches its lanes, before it has to record it again.
pub const WATCH_RECORD: Duration = Duration::from_millis(25);

/// Time between two comparisons of the claims in the database with the claims in flight. A
/// comparison also follows a claim whose answer was lost.
pub const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);

/// Time after a slow or refused shared commit or chain during which readers take only one task of
/// the queue at a time.
pub const BATCH_COOL_DOWN: Duration = Duration::from_secs(10);

/// `statement_timeout` of control sessions.
pub const CONTROL_STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// `lock_timeout` of control sessions.
pub const CONTROL_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for an operation on a pooled session, including the wait for the session. The server
/// itself ends each statement after [`CONTROL_STATEMENT_TIMEOUT`]. This longer limit applies if the
/// server, or a machine on the way to it, does not answer at all.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(75);

/// A pooled session that was used for this long is closed instead of reused, because it may still
/// wait for the answer to an abandoned statement.
pub const LONG_USE: Duration = Duration::from_secs(20);

/// Time limit for the wait for a pooled session.
pub const POOL_WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for opening a pooled session.
pub const POOL_CREATE_TIMEOUT: Duration = Duration::from_secs(15);

/// Time limit for opening a task session, and for its operations outside of a task, such as the
/// reset.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two checks whether the backend of a running statement still exists.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// Time for which a backend may be idle while its reader waits for an answer. It is long, because the
/// end of a large answer may be in the buffers of a slow network: 4 MB take 32 s at 1 Mbit/s.
pub const MAX_IDLE: Duration = Duration::from_secs(45);

/// Time that a cancelled statement has to end before the next step of escalation.
pub const ESCALATION_DELAY: Duration = Duration::from_secs(5);

/// Time between two statements that publish progress. Also the minimum run time of a task whose
/// progress is published.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time between two runs of the maintenance of the history.
pub const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Maximum time between two comparisons of the epochs of a target with those of the queue.
pub const TARGET_UPKEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Default of `--fleet-metrics-interval`: the time between two counts of the fleet metrics. At the
/// same interval, a worker that is not the publisher tries to become it.
pub const FLEET_METRICS_INTERVAL: Duration = Duration::from_secs(15);

/// Wait after a first failure. The wait doubles with each further failure.
pub const MIN_BACKOFF: Duration = Duration::from_millis(50);

/// Default limit for the wait after failures.
pub const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Maximum wait before the control session is opened again. It is short, because the other workers
/// soon consider a worker without this session dead.
pub const MAX_HEARTBEAT_BACKOFF: Duration = Duration::from_secs(1);

/// Maximum wait before LISTEN is tried again. It may be long, because polls take the place of
/// notifications.
pub const MAX_LISTEN_BACKOFF: Duration = Duration::from_secs(30);

/// Default of `--shutdown-timeout`.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that cancelled statements have to end, and their tasks to be released, at shutdown.
pub const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit at shutdown for the deregistration and for the end of the other background services.
pub const DEREGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the check of one login for a pooler.
pub const POOLER_CHECK_TIMEOUT: Duration = Duration::from_secs(30);

// A session that is in use for too long is closed before the time limit of its operation, and the
// server ends the statement of the operation before that limit as well. Between the end of a
// session and the grace period there are two polls: the first sees that the session is absent, the
// second confirms it.
const _: () = assert!(LONG_USE.as_millis() < ANSWER_TIMEOUT.as_millis());
const _: () = assert!(CONTROL_STATEMENT_TIMEOUT.as_millis() < ANSWER_TIMEOUT.as_millis());
const _: () = assert!(2 * MAX_POLL_INTERVAL.as_millis() < SESSION_GRACE.as_millis());
const _: () = assert!(3 * HEARTBEAT_INTERVAL.as_millis() <= ORPHAN_TIMEOUT.as_millis());
