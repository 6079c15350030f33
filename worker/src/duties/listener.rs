//! Receives notifications, with one LISTEN per process. Nothing depends on notifications: polls
//! find the same work, so a lost notification costs one poll interval.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use fleet_decisions::notification_kind::{
    NotificationKind, NotificationLimit, claims_when_notified,
};
use fleet_decisions::timing::MAX_LISTEN_BACKOFF;
use futures_util::future::{Either, select};
use rand::RngExt;
use tokio::sync::watch;
use tokio_postgres::AsyncMessage;

use crate::claim::policy::ClaimPolicy;
use crate::context::Context;
use crate::control::registration::moved;
use crate::control::{Backoff, until};
use crate::wakeup::Waker;

const LISTEN: &str = "LISTEN /* worker.listen */ mill";

/// Name of the listener among the operations that fail.
const LISTENING: &str = "listen";

/// Receives notifications, and wakes claimer and heartbeat.
pub(crate) struct Listener {
    pub(crate) context: Arc<Context>,
    pub(crate) heartbeat: Waker,
    /// Set by the poller: the number of the other workers.
    pub(crate) policy: watch::Receiver<ClaimPolicy>,
}

impl Listener {
    /// Listens until the worker ends, and reconnects when the connection is lost. If LISTEN is not
    /// available, as behind a pooler in transaction mode, polls take the place of notifications.
    pub(crate) async fn run(self) {
        let Context { control, shutdown, .. } = &*self.context;
        let mut backoff = Backoff::up_to(MAX_LISTEN_BACKOFF).ended_by(control.registration());
        loop {
            tokio::select! {
                () = shutdown.end.cancelled() => return,
                ended = self.listen(&mut backoff) => {
                    if let Err(error) = ended {
                        if control.errors().begins(LISTENING) {
                            tracing::warn!(error, "not listening for notifications, polling continues");
                        } else {
                            tracing::debug!(error, "still not listening for notifications");
                        }
                    }
                }
            }
            tokio::select! {
                () = shutdown.end.cancelled() => return,
                () = backoff.wait() => {}
            }
        }
    }

    async fn listen(&self, backoff: &mut Backoff) -> Result<(), String> {
        let end = self.context.control.registration().end_of_session();
        let received = end.run_until_cancelled(self.receive(backoff)).await;
        received.unwrap_or_else(|| Err(moved().to_string()))
    }

    /// Opens a session, and receives notifications until the session ends.
    async fn receive(&self, backoff: &mut Backoff) -> Result<(), String> {
        let Context { control, claimer, .. } = &*self.context;
        let target = control.session_target("listener");
        let (client, mut connection) =
            conninfo::open(&target).await.map_err(|error| error.to_string())?;
        let listening = Box::pin(client.batch_execute(LISTEN));
        let mut listening = Some(listening);
        let (mut limit, mut seen) = (NotificationLimit::default(), claimer.claims_with_tasks());
        loop {
            while let Some(kind) = limit.take_due(Instant::now()) {
                self.act_on(kind);
            }
            let message = match listening.take() {
                // The connection must be driven for the answer to LISTEN to arrive.
                Some(statement) => {
                    match select(statement, Box::pin(poll_fn(|cx| connection.poll_message(cx))))
                        .await
                    {
                        Either::Left((answer, _)) => {
                            answer.map_err(|error| queue::database_message(&error))?;
                            // Tasks may have been enqueued before LISTEN took effect. One poll finds
                            // them.
                            claimer.notify();
                            backoff.reset();
                            if control.errors().ends(LISTENING) {
                                tracing::info!("listening for notifications again");
                            }
                            continue;
                        }
                        Either::Right((message, statement)) => {
                            listening = Some(statement);
                            message
                        }
                    }
                }
                None => {
                    let due = until(limit.next_due());
                    match select(Box::pin(poll_fn(|cx| connection.poll_message(cx))), pin!(due))
                        .await
                    {
                        Either::Left((message, _)) => message,
                        Either::Right(_) => continue,
                    }
                }
            };
            match message {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    let found = claimer.claims_with_tasks();
                    let useful = std::mem::replace(&mut seen, found) != found;
                    limit.received(NotificationKind::of_payload(notification.payload()), useful);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(queue::database_message(&error)),
                None => return Err("the server closed the session".to_owned()),
            }
        }
    }

    fn act_on(&self, kind: NotificationKind) {
        match kind {
            NotificationKind::Sweep => self.context.claimer.request_sweep(),
            NotificationKind::Heartbeat => self.heartbeat.wake(),
            // All workers have received this notification.
            NotificationKind::Tasks => {
                let peers = self.policy.borrow().peer_count;
                if claims_when_notified(peers, rand::rng().random()) {
                    self.context.claimer.notify();
                }
            }
        }
    }
}
