//! Control sessions: a small pool under the worker's own login, never used for task SQL. `registration`
//! knows the server of the queue, and `repeated_errors` the operations that fail.

pub(crate) mod registration;
pub(crate) mod repeated_errors;

use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use conninfo::ConnectionTarget;
use deadpool_postgres::{Object, Pool, RecyclingMethod, Runtime};
use fleet_decisions::timing::{
    ANSWER_TIMEOUT, CONTROL_LOCK_TIMEOUT, CONTROL_STATEMENT_TIMEOUT, LONG_USE, MAX_BACKOFF,
    POOL_CREATE_TIMEOUT, POOL_WAIT_TIMEOUT,
};
use queue::claim::SessionIdentity;
use queue::enqueue::NOTIFIES;
use queue::{Claim, QueueError, TaskId, WorkerId, reclaim, resolve_commit};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::control::registration::Registration;
use crate::control::repeated_errors::RepeatedErrors;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;

/// Number of sessions in the pool. The statements that end tasks are short, so a few sessions serve
/// any number of readers.
const SESSIONS: usize = 4;

/// Access to the control sessions, shared by all services of the process.
#[derive(Clone)]
pub(crate) struct Control {
    pool: Pool,
    target: ConnectionTarget,
    worker: WorkerId,
    metrics: Metrics,
    tasks: Tasks,
    registration: Registration,
    errors: RepeatedErrors,
    in_target: bool,
}

/// An operation on a claim that is repeated until it succeeds. Its errors are logged and reported
/// until it is dropped.
pub(crate) struct RepeatedOperation<'a> {
    control: &'a Control,
    what: &'a str,
    task: TaskId,
    reported: bool,
}

impl RepeatedOperation<'_> {
    /// Logs and reports an error after which the operation is tried again.
    pub(crate) fn failed(&mut self, error: &dyn Display) {
        let Self { what, task, .. } = self;
        // Tasks whose end cannot be recorded usually have the same cause.
        if self.control.errors.begins(what) {
            tracing::warn!(%task, %error, "{what} failed, trying again");
        } else {
            tracing::debug!(%task, %error, "{what} failed again");
        }
        self.control.errors.set(&self.name(), error);
        self.reported = true;
    }

    fn name(&self) -> String {
        format!("{} of task {}", self.what, self.task)
    }
}

impl Drop for RepeatedOperation<'_> {
    fn drop(&mut self) {
        if self.reported {
            self.control.errors.clear(&self.name());
            if self.control.errors.ends(self.what) {
                tracing::info!("{} works again", self.what);
            }
        }
    }
}

/// A session taken from the pool.
pub(crate) struct Pooled {
    object: Option<Object>,
    since: Instant,
}

impl Deref for Pooled {
    type Target = Client;

    fn deref(&self) -> &Client {
        let Some(object) = &self.object else { unreachable!("only drop takes the session out") };
        object
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Client {
        let Some(object) = &mut self.object else {
            unreachable!("only drop takes the session out")
        };
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

/// A session used by a single service.
pub(crate) struct DedicatedSession {
    pub(crate) client: Client,
    /// Cancelled when the connection is closed.
    pub(crate) ended: CancellationToken,
}

impl Control {
    /// Creates a pool, which connects when first used.
    ///
    /// # Errors
    /// Returns an error if the target is unusable, for example because of invalid certificate
    /// files.
    pub(crate) fn new(
        target: &ConnectionTarget,
        worker: WorkerId,
        metrics: &Metrics,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        let target = control_target(target).with_application_name(&worker.session_name("pool"));
        let registration = Registration::default();
        let ends = registration.clone();
        let manager = conninfo::pool_manager_until(&target, RecyclingMethod::Fast, move || {
            ends.end_of_session()
        });
        let pool = Pool::builder(manager)
            .max_size(SESSIONS)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(POOL_WAIT_TIMEOUT))
            .create_timeout(Some(POOL_CREATE_TIMEOUT))
            .build()?;
        let errors = RepeatedErrors::default();
        let (metrics, tasks) = (metrics.clone(), tasks.clone());
        Ok(Self { pool, target, worker, metrics, tasks, registration, errors, in_target: false })
    }

    /// As [`Control::new`], but for sessions under the login of a target. They are independent of the
    /// worker's registration. Their errors are reported as those of the queue's sessions.
    ///
    /// # Errors
    /// As [`Control::new`].
    pub(crate) fn in_target(&self, target: &ConnectionTarget) -> anyhow::Result<Self> {
        let control = Self::new(target, self.worker, &self.metrics, &self.tasks)?;
        Ok(Self { errors: self.errors.clone(), in_target: true, ..control })
    }

    /// Returns whether the sessions are in a target and not in the queue's database.
    pub(crate) fn is_in_target(&self) -> bool {
        self.in_target
    }

    /// Returns a session for one or two short statements, to be used within [`answered`].
    ///
    /// # Errors
    /// Returns an error if the database is unreachable.
    pub(crate) async fn get(&self) -> Result<Pooled, QueueError> {
        let _timer = self.metrics.pool_wait.start_timer();
        let got = self.pool.get().await.map_err(|error| conninfo::pool_error(error).into());
        if !self.in_target {
            self.metrics.set_pool_status(self.pool.status());
        }
        got.map(|object| Pooled { object: Some(object), since: Instant::now() })
    }

    /// Opens a dedicated connection, driven in the background. It is closed when the worker is
    /// registered at another server.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub(crate) async fn dedicated_session(
        &self,
        role: &str,
    ) -> Result<DedicatedSession, QueueError> {
        self.connect(role, self.registration.end_of_session()).await
    }

    /// Opens the connection on which the worker registers. If that connection leads to another
    /// server than before, the other sessions are closed.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub(crate) async fn control_session(&self) -> Result<DedicatedSession, QueueError> {
        self.connect("control", CancellationToken::new()).await
    }

    async fn connect(
        &self,
        role: &str,
        end: CancellationToken,
    ) -> Result<DedicatedSession, QueueError> {
        let target = self.session_target(role);
        let (client, connection) = conninfo::open(&target).await?;
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        self.tasks.spawn(async move {
            // The client reports the error.
            let _ = end.run_until_cancelled(connection).await;
            drop(guard);
        });
        Ok(DedicatedSession { client, ended })
    }

    /// Returns the target of a control session with this role.
    pub(crate) fn session_target(&self, role: &str) -> ConnectionTarget {
        self.target.with_application_name(&self.worker.session_name(role))
    }

    /// Returns the worker's registration.
    pub(crate) fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Returns the target of control sessions.
    pub(crate) fn target(&self) -> &ConnectionTarget {
        &self.target
    }

    /// Terminates the backend of this session. Does nothing if the pid now belongs to another
    /// backend. Returns `false` if the server does not answer or refuses.
    pub(crate) async fn terminate(&self, session: SessionIdentity) -> bool {
        let terminated =
            answered(async { reclaim::end_session(&*self.get().await?, session).await });
        let terminated = terminated.await;
        if let Err(error) = &terminated {
            tracing::warn!(pid = session.pid, %error, "could not terminate a backend");
        }
        terminated.is_ok()
    }

    /// Returns once a backend is gone, retrying without limit, because its SQL may have effects
    /// until then.
    pub(crate) async fn ensure_gone(&self, session: SessionIdentity) {
        let mut backoff = self.backoff();
        loop {
            self.terminate(session).await;
            if let Ok(true) = self.gone(session, None).await {
                return;
            }
            backoff.wait().await;
        }
    }

    /// Returns once the transaction of a backend has ended. If COMMIT has not arrived, the backend would
    /// stay idle in the transaction, with the lock of the completed task, so it is terminated. If COMMIT
    /// is in progress, this waits for its end, as every other session that needs the task does.
    pub(crate) async fn end_transaction(&self, session: SessionIdentity) {
        let mut backoff = self.backoff();
        loop {
            let ended = async { reclaim::end_idle_transaction(&*self.get().await?, session).await };
            match answered(ended).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) if error.temporary() => {}
                // Without the right to end the session, the server has to find out by itself.
                Err(error) => {
                    tracing::warn!(pid = session.pid, %error, "could not end a transaction");
                    return;
                }
            }
            backoff.wait().await;
        }
    }

    /// Returns whether a backend is gone, or has been idle for longer than `max_idle`.
    pub(crate) async fn gone(
        &self,
        session: SessionIdentity,
        max_idle: Option<Duration>,
    ) -> Result<bool, QueueError> {
        answered(async { reclaim::session_gone(&*self.get().await?, session, max_idle).await })
            .await
    }

    /// Returns whether the COMMIT of a backend waits for a synchronous standby.
    pub(crate) async fn waits_for_standby(
        &self,
        session: SessionIdentity,
    ) -> Result<bool, QueueError> {
        answered(async { reclaim::waits_for_standby(&*self.get().await?, session).await }).await
    }

    /// Determines whether a completion was committed whose answer did not arrive.
    pub(crate) async fn resolve_commit(&self, claim: &Claim) -> resolve_commit::CommitResolution {
        self.retry("resolve_commit", claim.id(), || async {
            resolve_commit::resolve_commit(&*self.get().await?, claim).await
        })
        .await
    }

    /// Returns whether the success of the claim is in the history.
    pub(crate) async fn committed(&self, claim: &Claim) -> Result<bool, QueueError> {
        answered(async { resolve_commit::committed(&*self.get().await?, claim).await }).await
    }

    /// Repeats an operation on a claim, without limit, until the queue answers.
    pub(crate) async fn retry<T, F>(&self, what: &str, task: TaskId, operation: impl Fn() -> F) -> T
    where
        F: Future<Output = Result<T, QueueError>>,
    {
        let mut repeated = self.repeated(what, task);
        let mut backoff = self.backoff();
        loop {
            match answered(operation()).await {
                Ok(answer) => return answer,
                Err(error) => repeated.failed(&error),
            }
            backoff.wait().await;
        }
    }

    /// Begins an operation on a claim that the caller repeats until it succeeds.
    pub(crate) fn repeated<'a>(&'a self, what: &'a str, task: TaskId) -> RepeatedOperation<'a> {
        RepeatedOperation { control: self, what, task, reported: false }
    }

    /// Returns the back-off for an operation on the queue.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::default().ended_by(&self.registration)
    }

    /// Errors of the worker's own operations, for the heartbeat.
    pub(crate) fn errors(&self) -> &RepeatedErrors {
        &self.errors
    }
}

/// Runs an operation on a pooled session with the time limit [`ANSWER_TIMEOUT`].
///
/// # Errors
/// As [`with_timeout`].
pub(crate) async fn answered<T>(
    work: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    with_timeout(ANSWER_TIMEOUT, work).await
}

/// Runs an operation on the queue with a time limit.
///
/// # Errors
/// Returns the error of `work`, or [`QueueError::NoAnswer`] after the limit.
pub(crate) async fn with_timeout<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    timeout(limit, work).await.map_err(|_| QueueError::NoAnswer { within: limit })?
}

/// Adds the settings of control sessions, which override options in the connection string.
fn control_target(target: &ConnectionTarget) -> ConnectionTarget {
    target
        .with_option("search_path", "pg_catalog,pg_temp")
        // Compiling a statement takes longer than any control statement.
        .with_option("jit", "off")
        .with_option(NOTIFIES.0, NOTIFIES.1)
        .with_option("default_transaction_isolation", "read committed")
        .with_option("default_transaction_read_only", "off")
        .with_option("statement_timeout", &milliseconds(CONTROL_STATEMENT_TIMEOUT))
        .with_option("lock_timeout", &milliseconds(CONTROL_LOCK_TIMEOUT))
        .with_option("idle_in_transaction_session_timeout", "60s")
}

/// Formats a duration as a setting of the server.
fn milliseconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// Waits until `instant`; without one, waits forever.
pub(crate) async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// Back-off that the registration of the worker may end.
pub(crate) struct Backoff {
    steps: fleet_decisions::backoff::Backoff,
    /// The registration that ends the back-off, and the number of registrations when it began.
    ended_by: Option<(Registration, u64)>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(MAX_BACKOFF)
    }
}

impl Backoff {
    /// Starts at 50 ms and doubles up to `max`.
    pub(crate) fn up_to(max: Duration) -> Self {
        Self { steps: fleet_decisions::backoff::Backoff::up_to(max), ended_by: None }
    }

    /// Ends the wait and starts over when the worker registers, because the queue answers again then.
    pub(crate) fn ended_by(self, registration: &Registration) -> Self {
        let seen = registration.registrations();
        Self { ended_by: Some((registration.clone(), seen)), ..self }
    }

    /// Starts over at 50 ms.
    pub(crate) fn reset(&mut self) {
        self.steps.reset();
    }

    /// Returns the next wait: a random time between half and one and a half times the current step.
    pub(crate) fn step(&mut self) -> Duration {
        self.steps.step(&mut rand::rng())
    }

    /// Waits for the next step.
    pub(crate) async fn wait(&mut self) {
        let step = sleep(self.step());
        let Some((registration, seen)) = &mut self.ended_by else { return step.await };
        tokio::select! {
            () = step => {}
            () = registration.after(*seen) => {
                *seen = registration.registrations();
                self.reset();
            }
        }
    }
}
