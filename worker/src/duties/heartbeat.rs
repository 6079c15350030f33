//! Registers the worker and sends heartbeats, both on the control session. The control session
//! holds a lock that shows that the worker is alive.

use std::sync::Arc;
use std::time::Duration;

use fleet_decisions::timing::{MAX_HEARTBEAT_BACKOFF, MIN_HEARTBEAT_TIMEOUT, REGISTRATION_TIMEOUT};
use queue::heartbeat::{
    HeartbeatReport, HeartbeatResponse, WorkerRegistration, deregister, heartbeat, register,
};
use queue::server::server;
use queue::{QueueError, prune, sequences};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Client;

use crate::claim::policy::Orders;
use crate::context::Context;
use crate::control::{DedicatedSession, with_timeout};
use crate::duties::duty::Duty;
use crate::telemetry::sd_notify::SdNotify;
use crate::wakeup::{Waker, Wakeup};

/// Logged by a worker that is not registered although it was.
const DECLARED_DEAD: &str = "the fleet considered this worker dead; registering again";

/// Keeps the worker registered.
pub(crate) struct Heartbeat {
    context: Arc<Context>,
    registration: WorkerRegistration,
    sd_notify: SdNotify,
    /// Woken for an immediate heartbeat, whose response has news such as a cancel request.
    wakeup: Wakeup,
    orders: watch::Sender<Orders>,
    /// Wakes the maintenance, when history has no partition for today, or maybe none for the next days.
    maintenance: Waker,
    /// The control session, on which the worker is registered; `None` after the connection was
    /// lost.
    session: Option<DedicatedSession>,
    next_at: Instant,
}

impl Heartbeat {
    /// Registers the worker. The registration expires if heartbeats stop.
    ///
    /// # Errors
    /// The database is unreachable or refuses the registration.
    pub(crate) async fn start(
        context: Arc<Context>,
        registration: WorkerRegistration,
        sd_notify: SdNotify,
        (wakeup, maintenance): (Wakeup, Waker),
    ) -> Result<Self, QueueError> {
        let mut it = Self {
            context,
            registration,
            sd_notify,
            wakeup,
            orders: watch::Sender::default(),
            maintenance,
            session: None,
            next_at: Instant::now(),
        };
        it.sd_notify.warn_if_watchdog_is_short(it.max_heartbeat_gap());
        it.session = Some(it.register().await?);
        Ok(it)
    }

    /// Opens a control session and registers the worker on it. First creates the history partition of
    /// today, so that every task that is claimed afterwards can be recorded, and repairs the sequences,
    /// so that no task gets the id of an earlier one. The next days can wait for another session that
    /// has locked the history.
    async fn register(&self) -> Result<DedicatedSession, QueueError> {
        let session = self.context.control.control_session().await?;
        prune::prepare_history(&session.client, 0).await?;
        repair_sequences(&session.client).await;
        let draining = self.orders.borrow().draining;
        let new = register(&session.client, &self.registration, draining).await?;
        if new && self.context.control.registration().registrations() > 0 {
            tracing::warn!("{DECLARED_DEAD}");
        }
        self.context.control.registration().registered(server(&session.client).await?);
        self.maintenance.wake();
        Ok(session)
    }

    /// Sends a heartbeat, on a new session if there is none. Keeps the session if the heartbeat
    /// succeeds.
    async fn send_on_session(&mut self) -> Result<(), QueueError> {
        let session = match self.session.take() {
            Some(session) => session,
            None => {
                let session = with_timeout(REGISTRATION_TIMEOUT, self.register()).await?;
                self.context.metrics.reconnects.inc();
                tracing::info!("control session restored");
                session
            }
        };
        self.next_at = Instant::now() + self.registration.heartbeat_interval;
        self.send(&session.client).await?;
        self.session = Some(session);
        Ok(())
    }

    /// Returns the time limit for one heartbeat.
    fn heartbeat_timeout(&self) -> Duration {
        self.registration.heartbeat_interval.max(MIN_HEARTBEAT_TIMEOUT)
    }

    /// Returns the longest time between the ends of two attempts to send a heartbeat, successful or
    /// not.
    fn max_heartbeat_gap(&self) -> Duration {
        self.registration.heartbeat_interval + REGISTRATION_TIMEOUT + 2 * self.heartbeat_timeout()
    }

    async fn send(&self, client: &Client) -> Result<(), QueueError> {
        let (worker, limit) = (self.context.worker, self.heartbeat_timeout());
        let in_flight = &self.context.in_flight;
        let (busy, claims) = (in_flight.busy_readers(), in_flight.claims());
        let error = self.context.control.errors().report();
        let sessions = &self.context.reader_sessions;
        let (unconnected, logins) =
            (sessions.report(&self.registration.profiles), sessions.logins());
        let task_logins: Vec<&str> = logins.iter().map(String::as_str).collect();
        let report = HeartbeatReport {
            busy,
            claims: &claims,
            error: error.as_deref(),
            unconnected: &unconnected,
            task_logins: &task_logins,
        };
        match with_timeout(limit, heartbeat(client, worker, &report)).await? {
            Some(orders) => {
                self.context.metrics.heartbeat("ok");
                self.apply(&orders);
            }
            None => {
                // The queue does not know this worker. Other workers considered it dead while it
                // was stopped or cut off, or the server crashed. The next heartbeat reports its
                // reclaimed tasks as lost.
                self.context.metrics.heartbeat("unknown");
                tracing::warn!("{DECLARED_DEAD}");
                let draining = self.orders.borrow().draining;
                let registered = register(client, &self.registration, draining);
                with_timeout(REGISTRATION_TIMEOUT, registered).await?;
                if let Some(orders) =
                    with_timeout(limit, heartbeat(client, worker, &report)).await?
                {
                    self.apply(&orders);
                }
            }
        }
        Ok(())
    }

    /// Returns a receiver of the orders for this worker.
    pub(crate) fn orders(&self) -> watch::Receiver<Orders> {
        self.orders.subscribe()
    }

    fn apply(&self, orders: &HeartbeatResponse) {
        let Context { claimer, in_flight, reader_sessions, .. } = &*self.context;
        if self.orders.send_if_modified(|known| update(known, orders)) {
            claimer.notify();
        }
        reader_sessions.set_superusers(&orders.superusers);
        if orders.history_missing {
            self.maintenance.wake();
        }
        for id in &orders.cancel {
            in_flight.cancel(*id);
        }
        for token in &orders.lost {
            in_flight.mark_lost(*token);
        }
    }
}

/// Updates and logs the orders. Returns whether any of them has changed.
fn update(known: &mut Orders, new: &HeartbeatResponse) -> bool {
    let mut changed = false;
    if std::mem::replace(&mut known.draining, new.draining) != new.draining {
        changed = true;
        match new.draining {
            true => tracing::info!("an operator has started the drain of this worker"),
            false => tracing::info!("an operator has ended the drain of this worker"),
        }
    }
    if known.reserved_readers != new.reserved {
        changed = true;
        known.reserved_readers.clone_from(&new.reserved);
        let readers: u32 = new.reserved.values().sum();
        tracing::info!(readers, "readers reserved for reserved tasks");
    }
    changed
}

/// Repairs the sequences. An error is only logged, because tasks can run without the repair: only
/// enqueues of others fail. The next registration of any worker tries again.
async fn repair_sequences(client: &Client) {
    match sequences::repair(client).await {
        Ok(repaired) if repaired.is_empty() => {}
        Ok(repaired) => tracing::warn!(
            sequences = repaired.join(", "),
            "sequences were behind their tables, as after a switch to a logical replica; repaired"
        ),
        Err(error) => tracing::warn!(%error, "could not check and repair sequences"),
    }
}

impl Duty for Heartbeat {
    const NAME: &'static str = "heartbeat";
    const MAX_BACKOFF: Duration = MAX_HEARTBEAT_BACKOFF;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        if let Some(session) = &self.session {
            tokio::select! {
                () = self.wakeup.woken() => {}
                // Reconnects at once, because without this session the other workers consider the
                // worker dead.
                () = session.ended.cancelled() => {}
                () = sleep_until(self.next_at) => {}
            }
        }
        Some(())
    }

    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        if let Err(error) = self.send_on_session().await {
            self.context.control.registration().lost();
            self.context.metrics.heartbeat("error");
            self.sd_notify.alive("the database does not answer, trying again");
            return Err(error);
        }
        self.context.metrics.heartbeat_succeeded();
        let (readers, busy) = (self.registration.readers, self.context.in_flight.busy_readers());
        self.sd_notify.alive(&format!("{readers} readers, {busy} busy"));
        Ok(0)
    }

    /// Deregisters the worker.
    async fn stop(&mut self) {
        let Some(session) = self.session.take() else { return };
        if let Err(error) = deregister(&session.client, self.context.worker).await {
            tracing::warn!(%error, "could not deregister");
        }
    }
}
