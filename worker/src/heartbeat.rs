//! The control session: registers the worker, holds the lock that shows it to live, and beats.

use std::sync::Arc;
use std::time::Duration;

use queue::heartbeat::{HeartbeatResponse, WorkerRegistration, deregister, heartbeat, register};
use queue::server::server;
use queue::{QueueError, prune};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;

use crate::control::{Backoff, Control, DedicatedSession};
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::sd_notify::SdNotify;
use crate::shutdown::Shutdown;
use crate::wakeup::Wakeup;

/// For a session, and for a registration on it. With a server that accepts connections and then says
/// nothing, an attempt would otherwise take for ever.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// The beating heart and all that it is given.
pub(crate) struct Heartbeat {
    pub(crate) registration: WorkerRegistration,
    pub(crate) control: Control,
    pub(crate) in_flight: InFlight,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
    pub(crate) sd_notify: SdNotify,
}

impl Heartbeat {
    /// Beats on `session`, and on new ones when that one breaks, until the worker has ended.
    pub(crate) async fn run(self, session: DedicatedSession) {
        let mut session = Some(session);
        // Short steps: to the others a worker without this session is about to be dead.
        let steps = || Backoff::up_to(Duration::from_secs(1));
        let mut backoff = steps();
        self.sd_notify.warn_if_watchdog_is_short(self.max_heartbeat_gap());
        while !self.shutdown.end.is_cancelled() {
            let result = match session.take() {
                Some(session) => self.on_session(&session).await,
                None => match with_timeout(REGISTRATION_TIMEOUT, self.register()).await {
                    Ok(session) => {
                        self.metrics.reconnects.inc();
                        tracing::info!("the control session is back");
                        backoff = steps();
                        self.on_session(&session).await
                    }
                    Err(error) => Err(error),
                },
            };
            match result {
                Ok(()) => return,
                Err(error) => {
                    self.control.registration().lost();
                    self.metrics.heartbeat("error");
                    tracing::warn!(%error, "the beat failed");
                    self.sd_notify.alive("the database does not answer, trying again");
                }
            }
            tokio::select! {
                () = self.shutdown.end.cancelled() => {}
                () = backoff.wait() => {}
            }
        }
    }

    /// A registered control session. History is made ready first: whatever is claimed afterwards
    /// finds a partition to be recorded in.
    pub(crate) async fn register(&self) -> Result<DedicatedSession, QueueError> {
        let session = self.control.control_session().await?;
        prune::prepare_history(&session.client).await?;
        register(&session.client, &self.registration).await?;
        self.control.registration().registered(server(&session.client).await?);
        Ok(session)
    }

    /// Returns `Ok` when the worker has ended, and has left the list of the living.
    async fn on_session(&self, session: &DedicatedSession) -> Result<(), QueueError> {
        let client = &session.client;
        let every = self.registration.heartbeat_interval;
        loop {
            let begun = Instant::now();
            self.send(client, self.heartbeat_timeout()).await?;
            self.metrics.heartbeat_succeeded();
            let (readers, busy) = (self.registration.readers, self.in_flight.busy_readers());
            self.sd_notify.alive(&format!("{readers} readers, {busy} busy"));
            tokio::select! {
                () = self.shutdown.end.cancelled() => {
                    return deregister(client, self.registration.worker).await;
                }
                () = self.wakeup.heartbeat_requested() => {}
                // At once: without it the worker looks dead to the others.
                () = session.ended.cancelled() => {}
                () = sleep(every.saturating_sub(begun.elapsed())) => {}
            }
        }
    }

    /// For one beat.
    fn heartbeat_timeout(&self) -> Duration {
        self.registration.heartbeat_interval.max(Duration::from_secs(5))
    }

    /// The longest time between two ends of attempts, successful or not.
    fn max_heartbeat_gap(&self) -> Duration {
        self.registration.heartbeat_interval + REGISTRATION_TIMEOUT + 2 * self.heartbeat_timeout()
    }

    async fn send(&self, client: &Client, limit: Duration) -> Result<(), QueueError> {
        let worker = self.registration.worker;
        let (busy, claims) = (self.in_flight.busy_readers(), self.in_flight.claims());
        match with_timeout(limit, heartbeat(client, worker, busy, &claims)).await? {
            Some(orders) => {
                self.metrics.heartbeat("ok");
                self.apply(&orders);
            }
            None => {
                // Declared dead while it was stopped or cut off, or the server crashed: whatever
                // was reclaimed shows as lost in the next beat.
                self.metrics.heartbeat("unknown");
                tracing::warn!("the fleet had taken this worker for dead; registering again");
                with_timeout(REGISTRATION_TIMEOUT, register(client, &self.registration)).await?;
                if let Some(orders) =
                    with_timeout(limit, heartbeat(client, worker, busy, &claims)).await?
                {
                    self.apply(&orders);
                }
            }
        }
        Ok(())
    }

    fn apply(&self, orders: &HeartbeatResponse) {
        self.wakeup.set_draining(orders.draining);
        self.wakeup.set_reserved_readers(orders.reserved);
        for id in &orders.cancel {
            self.in_flight.cancel(*id);
        }
        for token in &orders.lost {
            self.in_flight.mark_lost(*token);
        }
    }
}

/// What it says within this time.
///
/// # Errors
/// Its own, and that the time is over.
async fn with_timeout<T>(
    limit: Duration,
    sent_at: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    timeout(limit, sent_at).await.map_err(|_| QueueError::NoAnswer { within: limit })?
}
