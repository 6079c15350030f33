//! The control sessions: a small pool under the worker's own login, never used for task SQL.

use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use deadpool_postgres::{Object, Pool, RecyclingMethod, Runtime};
use queue::claim::SessionIdentity;
use queue::connect::{self, Target};
use queue::{Claim, QueueError, TaskId, reclaim, resolve_commit};
use rand::RngExt;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::registration::Registration;

/// Statements that end tasks are short; a few sessions serve any number of readers.
const SESSIONS: usize = 4;

/// The longest wait for what is done on one session of the pool. The server ends each statement after
/// [`STATEMENT_TIMEOUT`]: this is for the server, or a machine on the way to it, that says nothing at all.
const ANSWER: Duration = Duration::from_secs(75);

/// For the server; in its own notation.
const STATEMENT_TIMEOUT: &str = "60s";

/// Shared by everything in the process that talks to the queue.
#[derive(Clone)]
pub(crate) struct Control {
    pool: Pool,
    target: Target,
    metrics: Metrics,
    registration: Registration,
}

/// A session that was in use for this long is not used again: it may still wait for an answer to what was
/// given up. Well below [`ANSWER`], of which the wait for the session is a part.
const LONG_USE: Duration = Duration::from_secs(20);

/// A session of the pool.
pub(crate) struct Pooled {
    object: Option<Object>,
    since: Instant,
}

impl Deref for Pooled {
    type Target = Client;

    fn deref(&self) -> &Client {
        let Some(object) = &self.object else { unreachable!("only drop takes it out") };
        object
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Client {
        let Some(object) = &mut self.object else { unreachable!("only drop takes it out") };
        object
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if self.since.elapsed() >= LONG_USE
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
    }
}

/// A session that belongs to one part of the process.
pub(crate) struct DedicatedSession {
    pub(crate) client: Client,
    /// Cancelled when the connection has ended.
    pub(crate) ended: CancellationToken,
}

impl Control {
    /// A pool that connects when first used.
    ///
    /// # Errors
    /// The target cannot be used for a pool (bad certificate files).
    pub(crate) fn new(
        target: &Target,
        metrics: &Metrics,
        registration: &Registration,
    ) -> anyhow::Result<Self> {
        let target = control_target(target);
        let ends = registration.clone();
        let manager = connect::pool_manager_until(&target, RecyclingMethod::Fast, move || {
            ends.end_of_session()
        });
        let pool = Pool::builder(manager)
            .max_size(SESSIONS)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(Duration::from_secs(30)))
            .create_timeout(Some(Duration::from_secs(15)))
            .build()?;
        Ok(Self { pool, target, metrics: metrics.clone(), registration: registration.clone() })
    }

    /// A session for one short statement or two, within [`answered`].
    ///
    /// # Errors
    /// The database cannot be reached.
    pub(crate) async fn get(&self) -> Result<Pooled, QueueError> {
        let _timer = self.metrics.pool_wait.start_timer();
        let got = self.pool.get().await.map_err(|error| connect::pool_error(error).into());
        self.metrics.set_pool_status(self.pool.status());
        got.map(|object| Pooled { object: Some(object), since: Instant::now() })
    }

    /// A connection of one's own, driven in the background. It ends when the worker comes to be
    /// registered at another server.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub(crate) async fn dedicated_session(
        &self,
        name: &str,
    ) -> Result<DedicatedSession, QueueError> {
        self.connect(name, self.registration.end_of_session()).await
    }

    /// The connection that the worker registers on: by it the others end.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub(crate) async fn control_session(&self) -> Result<DedicatedSession, QueueError> {
        self.connect("pgmill control", CancellationToken::new()).await
    }

    async fn connect(
        &self,
        name: &str,
        end: CancellationToken,
    ) -> Result<DedicatedSession, QueueError> {
        let target = self.target.with_application_name(name);
        let (client, connection) = connect::open(&target).await?;
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        self.metrics.tracker.spawn(async move {
            // Its error shows in the client.
            let _ = end.run_until_cancelled(connection).await;
            drop(guard);
        });
        Ok(DedicatedSession { client, ended })
    }

    /// Where and whether this worker is registered.
    pub(crate) fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Where control sessions go.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Ends a backend, if it is still the one that is meant.
    pub(crate) async fn terminate(&self, session: SessionIdentity) {
        let terminated =
            answered(async { reclaim::end_session(&*self.get().await?, session).await });
        if let Err(error) = terminated.await {
            tracing::warn!(pid = session.pid, %error, "could not terminate a backend");
        }
    }

    /// Returns once a backend is gone, whatever it takes: until then its SQL may have effects.
    pub(crate) async fn ensure_gone(&self, session: SessionIdentity) {
        let mut backoff = Backoff::default();
        loop {
            self.terminate(session).await;
            if let Ok(true) = self.gone(session).await {
                return;
            }
            backoff.wait().await;
        }
    }

    /// Whether a backend has ended.
    ///
    /// # Errors
    /// Database trouble.
    pub(crate) async fn gone(&self, session: SessionIdentity) -> Result<bool, QueueError> {
        answered(async { reclaim::session_gone(&*self.get().await?, session).await }).await
    }

    /// Finds out, whatever it takes, what became of a claim whose last answer was lost.
    pub(crate) async fn resolve_commit(&self, claim: &Claim) -> resolve_commit::CommitResolution {
        let mut backoff = Backoff::default();
        loop {
            match answered(async {
                resolve_commit::resolve_commit(&*self.get().await?, claim).await
            })
            .await
            {
                Ok(resolved) => return resolved,
                Err(error) => self.log_retry("resolve_commit", claim.id(), &error),
            }
            backoff.wait().await;
        }
    }

    /// Logs what will be tried again.
    pub(crate) fn log_retry(&self, what: &str, task: TaskId, error: &dyn Display) {
        tracing::warn!(%task, %error, "{what} did not get through, trying again");
    }
}

/// Gives up on what has no answer in [`ANSWER`].
///
/// # Errors
/// Those of `work`; [`QueueError::NoAnswer`].
pub(crate) async fn answered<T>(
    work: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    timeout(ANSWER, work).await.map_err(|_| QueueError::NoAnswer { within: ANSWER })?
}

/// Settings of every control session; the connection string's own options come on top.
fn control_target(target: &Target) -> Target {
    target
        .with_option("search_path", "pg_catalog")
        .with_option("default_transaction_isolation", "read committed")
        .with_option("default_transaction_read_only", "off")
        .with_option("statement_timeout", STATEMENT_TIMEOUT)
        .with_option("lock_timeout", "5s")
        .with_option("idle_in_transaction_session_timeout", "60s")
}

/// Resolves at the instant; never without one.
pub(crate) async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits that double, with full jitter above a floor, so that a fleet does not come back at once.
pub(crate) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(Duration::from_secs(5))
    }
}

impl Backoff {
    /// From 50 ms to `most`.
    pub(crate) fn up_to(max: Duration) -> Self {
        Self { next: Duration::from_millis(50).min(max), max }
    }

    /// Whether it waits the longest step from now on.
    pub(crate) fn at_max(&self) -> bool {
        self.next >= self.max
    }

    /// The next wait: between half and one and a half of the step.
    pub(crate) fn step(&mut self) -> Duration {
        let step = self.next.mul_f64(rand::rng().random_range(0.5..1.5));
        self.next = (self.next * 2).min(self.max);
        step
    }

    /// Waits it.
    pub(crate) async fn wait(&mut self) {
        sleep(self.step()).await;
    }
}
