//! Delivers notifications: to channels and as tasks in one statement, and to destinations by
//! sending messages.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use notification::{Destination, SendError};
use parking_lot::Mutex;
use queue::QueueError;
use queue::notification::{
    ClaimedMessage, check_backlogs, claim, deliver_in_database, failed, released, sent,
};
use tokio::sync::{Notify, watch};

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::{Duty, StopAt};

/// Maximum number of subscriptions to which one worker sends at the same time. The messages of one
/// subscription are sent one after another, so a slow receiver delays only its own subscription.
const MAX_SENDERS: usize = 32;

/// Maximum number of deliveries and claims in one run. A steady flow of notifications must not keep the
/// duty from checking backlogs, nor from stopping.
const MAX_ROUNDS: usize = 10;

/// Destinations by name.
pub(crate) type Destinations = BTreeMap<String, Destination>;

/// Delivers notifications. Any number of workers deliver concurrently: a claim locks the state of
/// the subscription.
pub(crate) struct Notifier {
    sender: Sender,
    /// Names of the destinations of this worker.
    names: Vec<String>,
    /// Those of them whose receivers may keep incidents.
    incidents: Vec<String>,
    /// Set by the poller: whether notifications are due.
    due: watch::Receiver<bool>,
    /// Whether the last run has left notifications.
    unfinished: bool,
}

/// Sends messages; clones share the state.
#[derive(Clone)]
struct Sender {
    context: Arc<Context>,
    destinations: Arc<Destinations>,
    /// Subscriptions whose messages are being sent.
    busy: Arc<Mutex<HashSet<i64>>>,
    /// Signals that a sender has finished, so that the next messages can be claimed.
    finished: Arc<Notify>,
}

impl Notifier {
    pub(crate) fn new(
        context: Arc<Context>,
        destinations: Destinations,
        due: watch::Receiver<bool>,
    ) -> Self {
        let names = destinations.keys().cloned().collect();
        let incidents = destinations.iter().filter(|(_, it)| it.keeps_incidents());
        let incidents = incidents.map(|(name, _)| name.clone()).collect();
        let destinations = Arc::new(destinations);
        let sender =
            Sender { context, destinations, busy: Arc::default(), finished: Arc::default() };
        Self { sender, names, incidents, due, unfinished: false }
    }

    /// Delivers to channels and as tasks. Returns the number of messages.
    async fn deliver_in_database(&self) -> Result<u64, QueueError> {
        let Context { control, metrics, .. } = &*self.sender.context;
        let delivered = async { deliver_in_database(&*control.get().await?).await };
        let mut messages = 0;
        for delivered in answered(delivered).await? {
            messages += delivered.messages;
            metrics.notifications(&delivered.kind, "sent", delivered.messages);
            let subscription = delivered.subscription;
            if let Some(error) = delivered.error {
                metrics.notifications(&delivered.kind, "failed", 1);
                if control.errors().begins(&of_subscription(&subscription)) {
                    tracing::warn!(subscription, error, "delivering notifications failed");
                }
            } else {
                control.errors().ends(&of_subscription(&subscription));
            }
        }
        Ok(messages)
    }

    /// Claims messages and starts to send them. Returns their number.
    async fn send(&self) -> Result<u64, QueueError> {
        let busy: Vec<i64> = self.sender.busy.lock().iter().copied().collect();
        let free = MAX_SENDERS.saturating_sub(busy.len());
        if self.names.is_empty() || free == 0 {
            return Ok(0);
        }
        let Self { names, incidents, .. } = self;
        let free = i32::try_from(free).unwrap_or(i32::MAX);
        let control = &self.sender.context.control;
        let claimed = async { claim(&*control.get().await?, names, incidents, &busy, free).await };
        let claimed = answered(claimed).await?;
        let messages = claimed.len() as u64;
        let mut by_subscription: BTreeMap<i64, Vec<ClaimedMessage>> = BTreeMap::new();
        for message in claimed {
            by_subscription.entry(message.subscription_id).or_default().push(message);
        }
        for (subscription, messages) in by_subscription {
            self.sender.busy.lock().insert(subscription);
            let sender = self.sender.clone();
            self.sender.context.tasks.spawn(async move {
                sender.send_all(messages).await;
                sender.busy.lock().remove(&subscription);
                sender.finished.notify_one();
            });
        }
        Ok(messages)
    }
}

/// Name of the record of results among the operations that fail.
const RECORD: &str = "record of notifications";

/// Returns the name of the delivery among the operations that fail.
fn of_subscription(subscription: &str) -> String {
    format!("notifications of {subscription}")
}

impl Sender {
    /// Sends the messages of one subscription until one fails, and returns the others.
    async fn send_all(&self, messages: Vec<ClaimedMessage>) {
        let mut messages = messages.into_iter();
        for message in messages.by_ref() {
            if self.context.shutdown.drain.is_cancelled() {
                self.release(&message).await;
                break;
            }
            if !self.send_one(&message).await {
                break;
            }
        }
        for message in messages {
            self.release(&message).await;
        }
    }

    /// Sends one message and records the result. Returns whether to send the next one.
    async fn send_one(&self, message: &ClaimedMessage) -> bool {
        let Some(destination) = self.destinations.get(&message.destination) else { return false };
        let Context { control, metrics, .. } = &*self.context;
        let result = destination.send(&message.document).await;
        let recorded = answered(async {
            let client = control.get().await?;
            match &result {
                Ok(()) => sent(&*client, message).await.map(drop),
                Err(error) => {
                    let SendError { rejected, retry_after, .. } = *error;
                    failed(&*client, message, &error.to_string(), rejected, retry_after).await
                }
            }
        });
        // Without a record, the claim expires and the message is sent again.
        match recorded.await {
            Ok(()) => {
                control.errors().ends(RECORD);
            }
            Err(error) if control.errors().begins(RECORD) => {
                let subscription = &message.subscription;
                tracing::warn!(subscription, %error, "recording the result of a notification failed");
            }
            Err(_) => {}
        }
        match result {
            Ok(()) => {
                metrics.notifications(destination.kind(), "sent", 1);
                control.errors().ends(&of_subscription(&message.subscription));
                true
            }
            Err(error) => {
                metrics.notifications(destination.kind(), "failed", 1);
                let ClaimedMessage { subscription, destination, .. } = message;
                if control.errors().begins(&of_subscription(subscription)) {
                    tracing::warn!(subscription, destination, %error, "sending a notification failed");
                }
                error.rejected
            }
        }
    }

    async fn release(&self, message: &ClaimedMessage) {
        let control = &self.context.control;
        let result = answered(async { released(&*control.get().await?, message).await }).await;
        if let Err(error) = result {
            tracing::debug!(%error, "a claim of a notification was left to expire");
        }
    }
}

impl Duty for Notifier {
    const NAME: &'static str = "notify";
    const STOPS: StopAt = StopAt::Drain;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        if std::mem::take(&mut self.unfinished) {
            return Some(());
        }
        loop {
            tokio::select! {
                changed = self.due.changed() => {
                    changed.ok()?;
                    if *self.due.borrow_and_update() {
                        return Some(());
                    }
                }
                () = self.sender.finished.notified() => return Some(()),
            }
        }
    }

    /// Returns the number of messages delivered or claimed.
    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let control = &self.sender.context.control;
        // Its error delays no other notification.
        let checked = answered(async { check_backlogs(&*control.get().await?).await }).await;
        let mut messages = 0;
        for _ in 0..MAX_ROUNDS {
            let more = self.deliver_in_database().await? + self.send().await?;
            messages += more;
            if more == 0 {
                return checked.map(|_| messages);
            }
        }
        self.unfinished = true;
        checked.map(|_| messages)
    }
}
