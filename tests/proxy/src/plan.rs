//! What happens to which message: one thing at a time, for all connections of a proxy.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// How the client's session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The message does not arrive, and the server sees the end.
    Before,
    /// The message arrives, its answer does not, and the server sees the end.
    After,
    /// The message arrives, its answer does not, and the server sees nothing, as behind a network
    /// that swallows packets.
    Unseen,
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// Its session ends.
    Cut(Cut),
    /// It waits, and all of its session's messages behind it, until it is released.
    Hold,
    /// It arrives, and its answer waits until it is released.
    HoldAnswer,
}

/// Which message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageMatch {
    /// The n-th from now on, counted from 1.
    Message(u32),
    /// The first one that has this text in it. What happens after it happens after the whole flight:
    /// a statement with parameters is several messages, and carried out at their last one.
    Text(String),
}

/// What is to happen to a message that has come in.
pub(crate) struct Matched {
    pub(crate) act: FaultAction,
    /// Not before the last message of its flight.
    pub(crate) whole_pipeline: bool,
}

/// What all connections share.
pub(crate) struct Shared {
    upstream: watch::Sender<String>,
    plan: Mutex<Plan>,
    fired: watch::Sender<bool>,
    /// Counts releases; what is held was held under some number. And whether it passes.
    released: watch::Sender<(u32, bool)>,
    /// Which round it is: connections of earlier rounds that the server still keeps are let go.
    pub(crate) round: watch::Sender<u32>,
    pub(crate) delay: watch::Sender<Duration>,
}

#[derive(Default)]
struct Plan {
    armed: Option<(MessageMatch, FaultAction)>,
}

impl Shared {
    pub(crate) fn new(upstream: String) -> Self {
        Self {
            upstream: watch::Sender::new(upstream),
            plan: Mutex::default(),
            fired: watch::Sender::new(false),
            released: watch::Sender::new((0, true)),
            round: watch::Sender::new(0),
            delay: watch::Sender::new(Duration::ZERO),
        }
    }

    /// Where a new connection goes.
    pub(crate) fn upstream(&self) -> String {
        self.upstream.borrow().clone()
    }

    pub(crate) fn set_upstream(&self, upstream: &str) {
        self.upstream.send_replace(upstream.to_owned());
    }

    pub(crate) fn arm(&self, at: MessageMatch, act: FaultAction) {
        self.fired.send_replace(false);
        self.plan().armed = Some((at, act));
    }

    pub(crate) async fn fired(&self) {
        // The sender is in self: the wait cannot fail.
        let _ = self.fired.subscribe().wait_for(|fired| *fired).await;
    }

    pub(crate) fn release(&self, pass: bool) {
        self.released.send_modify(|(count, passes)| (*count, *passes) = (*count + 1, pass));
    }

    pub(crate) fn disarm(&self) -> bool {
        self.plan().armed = None;
        self.round.send_modify(|round| *round += 1);
        self.fired.send_replace(false)
    }

    pub(crate) fn delay(&self, by: Duration) {
        self.delay.send_replace(by);
    }

    /// What is to happen to a message that has come in; `None`: it passes.
    pub(crate) fn match_message(&self, message: &[u8]) -> Option<Matched> {
        let mut plan = self.plan();
        let (at, act) = plan.armed.as_mut()?;
        let meant = match at {
            MessageMatch::Message(n) => {
                *n = n.saturating_sub(1);
                *n == 0
            }
            MessageMatch::Text(text) => {
                message.windows(text.len().max(1)).any(|part| part == text.as_bytes())
            }
        };
        if !meant {
            return None;
        }
        let before = matches!(act, FaultAction::Hold | FaultAction::Cut(Cut::Before));
        let whole_pipeline = matches!(at, MessageMatch::Text(_)) && !before;
        let matched = Matched { act: *act, whole_pipeline };
        plan.armed = None;
        Some(matched)
    }

    /// Returns after the next release: whether what is held passes.
    pub(crate) async fn wait_for_release(&self) -> bool {
        let mut released = self.released.subscribe();
        let (before, _) = *released.borrow_and_update();
        self.mark_fired();
        match released.wait_for(|(count, _)| *count != before).await {
            Ok(now) => now.1,
            Err(_) => false,
        }
    }

    /// It has.
    pub(crate) fn mark_fired(&self) {
        self.fired.send_replace(true);
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
