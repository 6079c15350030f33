//! Registers the worker and sends heartbeats on the control session, whose lock shows that the
//! worker is alive.

use std::sync::Arc;
use std::time::Duration;

use queue::heartbeat::{HeartbeatResponse, WorkerRegistration, deregister, heartbeat, register};
use queue::server::server;
use queue::{QueueError, prune};
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::claim::in_flight::InFlight;
use crate::control::{Backoff, Control, DedicatedSession, with_timeout};
use crate::shutdown::Shutdown;
use crate::startup::sd_notify::SdNotify;
use crate::telemetry::metrics::Metrics;
use crate::wakeup::Wakeup;

/// Limit for opening a control session and for registering on it. Without it, an attempt would
/// never end if a server accepts connections but does not answer.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends the heartbeats of one worker.
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
    /// Sends heartbeats on `session`, and on a new session after each connection loss, until the
    /// worker ends.
    pub(crate) async fn run(self, session: DedicatedSession) {
        let mut session = Some(session);
        // Short steps: the other workers soon consider a worker without this session dead.
        let steps = || Backoff::up_to(Duration::from_secs(1));
        let mut backoff = steps();
        self.sd_notify.warn_if_watchdog_is_short(self.max_heartbeat_gap());
        while !self.shutdown.end.is_cancelled() {
            let result = match session.take() {
                Some(session) => self.on_session(&session).await,
                None => match with_timeout(REGISTRATION_TIMEOUT, self.register()).await {
                    Ok(session) => {
                        self.metrics.reconnects.inc();
                        tracing::info!("control session restored");
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
                    tracing::warn!(%error, "heartbeat failed");
                    self.sd_notify.alive("the database does not answer, trying again");
                }
            }
            tokio::select! {
                () = self.shutdown.end.cancelled() => {}
                () = backoff.wait() => {}
            }
        }
    }

    /// Opens a control session and registers the worker on it. Creates history partitions first, so
    /// that every task claimed afterwards can be recorded.
    pub(crate) async fn register(&self) -> Result<DedicatedSession, QueueError> {
        let session = self.control.control_session().await?;
        prune::prepare_history(&session.client).await?;
        register(&session.client, &self.registration).await?;
        self.control.registration().registered(server(&session.client).await?);
        Ok(session)
    }

    /// Sends heartbeats until the worker ends and is deregistered.
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
                // Reconnect at once: without this session the other workers consider it dead.
                () = session.ended.cancelled() => {}
                () = sleep(every.saturating_sub(begun.elapsed())) => {}
            }
        }
    }

    /// Limit for one heartbeat.
    fn heartbeat_timeout(&self) -> Duration {
        self.registration.heartbeat_interval.max(Duration::from_secs(5))
    }

    /// Longest time between the ends of two attempts, successful or not.
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
                // The worker was considered dead while it was stopped or cut off, or the server
                // crashed. The next heartbeat reports reclaimed tasks as lost.
                self.metrics.heartbeat("unknown");
                tracing::warn!("the fleet considered this worker dead; registering again");
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
