//! Receives notifications, with one LISTEN per process. Nothing depends on notifications: polls
//! find the same work, so a lost notification costs one poll interval.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use fleet_decisions::notification_kind::{NotificationKind, NotificationLimit};
use fleet_decisions::timing::MAX_LISTEN_BACKOFF;
use futures_util::future::{Either, select};
use tokio_postgres::AsyncMessage;

use crate::context::Context;
use crate::control::registration::moved;
use crate::control::{Backoff, Control, until};
use crate::wakeup::Wakeup;

const LISTEN: &str = "LISTEN /* worker.listen */ mill";

/// Name of the listener among the operations that fail.
const LISTENING: &str = "listen";

/// Listens until the worker ends, and reconnects when the connection is lost. If LISTEN is not
/// available, as behind a pooler in transaction mode, polls take the place of notifications.
pub(crate) async fn run(context: Arc<Context>) {
    let Context { control, wakeup, shutdown, .. } = &*context;
    let mut backoff = Backoff::up_to(MAX_LISTEN_BACKOFF).ended_by(control.registration());
    loop {
        tokio::select! {
            () = shutdown.end.cancelled() => return,
            ended = listen(control, wakeup, &mut backoff) => {
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

async fn listen(control: &Control, wakeup: &Wakeup, backoff: &mut Backoff) -> Result<(), String> {
    let end = control.registration().end_of_session();
    let received = end.run_until_cancelled(receive(control, wakeup, backoff)).await;
    received.unwrap_or_else(|| Err(moved().to_string()))
}

/// Opens a session, and receives notifications until the session ends.
async fn receive(control: &Control, wakeup: &Wakeup, backoff: &mut Backoff) -> Result<(), String> {
    let target = control.session_target("listener");
    let (client, mut connection) =
        conninfo::open(&target).await.map_err(|error| error.to_string())?;
    let listening = Box::pin(client.batch_execute(LISTEN));
    let mut listening = Some(listening);
    let (mut limit, mut seen) = (NotificationLimit::default(), wakeup.claims_with_tasks());
    loop {
        while let Some(kind) = limit.take_due(Instant::now()) {
            match kind {
                NotificationKind::Sweep => wakeup.request_sweep(),
                NotificationKind::Heartbeat => wakeup.request_heartbeat(),
                NotificationKind::Tasks => wakeup.notify_as_one_of_the_fleet(),
            }
        }
        let message = match listening.take() {
            // The connection must be driven for the answer to LISTEN to arrive.
            Some(statement) => {
                match select(statement, Box::pin(poll_fn(|cx| connection.poll_message(cx)))).await {
                    Either::Left((answer, _)) => {
                        answer.map_err(|error| queue::database_message(&error))?;
                        // Tasks may have been enqueued before LISTEN took effect. One poll finds
                        // them.
                        wakeup.notify();
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
                match select(Box::pin(poll_fn(|cx| connection.poll_message(cx))), pin!(due)).await {
                    Either::Left((message, _)) => message,
                    Either::Right(_) => continue,
                }
            }
        };
        match message {
            Some(Ok(AsyncMessage::Notification(notification))) => {
                let found = wakeup.claims_with_tasks();
                let useful = std::mem::replace(&mut seen, found) != found;
                limit.received(NotificationKind::of_payload(notification.payload()), useful);
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(queue::database_message(&error)),
            None => return Err("the server closed the session".to_owned()),
        }
    }
}
