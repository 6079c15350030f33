//! The control session: registers the worker, holds the lock that shows it to live, and beats.

use std::sync::Arc;
use std::time::Duration;

use queue::beat::{Introduction, Orders, beat, leave, register};
use queue::server::server;
use queue::{QueueError, prune};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;

use crate::bell::Bell;
use crate::control::{Backoff, Control, Own};
use crate::held::Held;
use crate::manager::Manager;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

/// For a session, and for a registration on it. With a server that accepts connections and then says
/// nothing, an attempt would otherwise take for ever.
const REGISTRATION: Duration = Duration::from_secs(60);

/// The beating heart and all that it is given.
pub(crate) struct Beat {
    pub(crate) introduction: Introduction,
    pub(crate) control: Control,
    pub(crate) held: Held,
    pub(crate) bell: Arc<Bell>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
    pub(crate) manager: Manager,
}

impl Beat {
    /// Beats on `session`, and on new ones when that one breaks, until the worker has ended.
    pub(crate) async fn run(self, session: Own) {
        let mut session = Some(session);
        // Short steps: to the others a worker without this session is about to be dead.
        let steps = || Backoff::up_to(Duration::from_secs(1));
        let mut backoff = steps();
        self.manager.check(self.longest_silence());
        while !self.shutdown.end.is_cancelled() {
            let beaten = match session.take() {
                Some(session) => self.on_session(&session).await,
                None => match bounded(REGISTRATION, self.register()).await {
                    Ok(session) => {
                        self.metrics.reconnects.inc();
                        tracing::info!("the control session is back");
                        backoff = steps();
                        self.on_session(&session).await
                    }
                    Err(error) => Err(error),
                },
            };
            match beaten {
                Ok(()) => return,
                Err(error) => {
                    self.control.registration().lost();
                    self.metrics.beat("error");
                    tracing::warn!(%error, "the beat failed");
                    self.manager.alive("the database does not answer, trying again");
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
    pub(crate) async fn register(&self) -> Result<Own, QueueError> {
        let session = self.control.control_session().await?;
        prune::prepare_history(&session.client).await?;
        register(&session.client, &self.introduction).await?;
        self.control.registration().registered(server(&session.client).await?);
        Ok(session)
    }

    /// Returns `Ok` when the worker has ended, and has left the list of the living.
    async fn on_session(&self, session: &Own) -> Result<(), QueueError> {
        let client = &session.client;
        let every = self.introduction.beat;
        loop {
            let begun = Instant::now();
            self.once(client, self.patience()).await?;
            self.metrics.beaten();
            let (readers, busy) = (self.introduction.readers, self.held.busy_readers());
            self.manager.alive(&format!("{readers} readers, {busy} busy"));
            tokio::select! {
                () = self.shutdown.end.cancelled() => {
                    return leave(client, self.introduction.worker).await;
                }
                () = self.bell.beat_called() => {}
                // At once: without it the worker looks dead to the others.
                () = session.ended.cancelled() => {}
                () = sleep(every.saturating_sub(begun.elapsed())) => {}
            }
        }
    }

    /// For one beat.
    fn patience(&self) -> Duration {
        self.introduction.beat.max(Duration::from_secs(5))
    }

    /// The longest time between two ends of attempts, successful or not.
    fn longest_silence(&self) -> Duration {
        self.introduction.beat + REGISTRATION + 2 * self.patience()
    }

    async fn once(&self, client: &Client, patience: Duration) -> Result<(), QueueError> {
        let worker = self.introduction.worker;
        let (busy, held) = (self.held.busy_readers(), self.held.list());
        match bounded(patience, beat(client, worker, busy, &held)).await? {
            Some(orders) => {
                self.metrics.beat("ok");
                self.obey(&orders);
            }
            None => {
                // Declared dead while it was stopped or cut off, or the server crashed: whatever
                // was reclaimed shows as lost in the next beat.
                self.metrics.beat("unknown");
                tracing::warn!("the fleet had taken this worker for dead; registering again");
                bounded(REGISTRATION, register(client, &self.introduction)).await?;
                if let Some(orders) = bounded(patience, beat(client, worker, busy, &held)).await? {
                    self.obey(&orders);
                }
            }
        }
        Ok(())
    }

    fn obey(&self, orders: &Orders) {
        self.bell.set_draining(orders.draining);
        self.bell.set_reserved(orders.reserved);
        for id in &orders.cancel {
            self.held.cancel(*id);
        }
        for token in &orders.lost {
            self.held.lose(*token);
        }
    }
}

/// What it says within this time.
///
/// # Errors
/// Its own, and that the time is over.
async fn bounded<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    timeout(limit, asked).await.map_err(|_| QueueError::NoAnswer { within: limit })?
}
