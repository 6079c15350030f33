//! Channels that wake a part of the process. The part that is woken owns the receiving end, with what
//! wakes it and nothing else; the others have handles. What arrives while nobody waits is kept.
//!
//! `claimer` has the channel to the claimer.

pub(crate) mod claimer;

use std::future::pending;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};

/// Returns a channel whose receiver only learns that it has been woken.
pub(crate) fn wakeup() -> (Waker, Wakeup) {
    let notify = Arc::<Notify>::default();
    (Waker(Arc::clone(&notify)), Wakeup(notify))
}

/// Wakes a receiver.
#[derive(Clone)]
pub(crate) struct Waker(Arc<Notify>);

/// The receiving end of a [`Waker`].
pub(crate) struct Wakeup(Arc<Notify>);

impl Waker {
    /// Wakes the receiver, once for all calls before it looks.
    pub(crate) fn wake(&self) {
        self.0.notify_one();
    }
}

impl Wakeup {
    /// Resolves when the receiver has been woken since the last call.
    pub(crate) async fn woken(&self) {
        self.0.notified().await;
    }
}

/// Returns a channel of items to process.
pub(crate) fn items<T>() -> (ItemSender<T>, Items<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (ItemSender(sender), Items(receiver))
}

/// Adds items for a receiver.
pub(crate) struct ItemSender<T>(mpsc::UnboundedSender<T>);

/// The receiving end of an [`ItemSender`].
pub(crate) struct Items<T>(mpsc::UnboundedReceiver<T>);

impl<T> Clone for ItemSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> ItemSender<T> {
    /// Adds items, and wakes the receiver if there are any.
    pub(crate) fn add(&self, items: impl IntoIterator<Item = T>) {
        for item in items {
            // Without a receiver, nobody processes items any more.
            let _ = self.0.send(item);
        }
    }
}

impl<T: Ord> Items<T> {
    /// Waits for items. Returns those added since the last call, without duplicates.
    pub(crate) async fn take(&mut self) -> Vec<T> {
        let mut items = Vec::new();
        if self.0.recv_many(&mut items, usize::MAX).await == 0 {
            // No sender is left.
            return pending().await;
        }
        items.sort_unstable();
        items.dedup();
        items
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_wakeup_before_the_wait_is_kept_once() {
        let (waker, wakeup) = wakeup();
        waker.wake();
        waker.wake();
        assert!(wakeup.woken().now_or_never().is_some());
        assert!(wakeup.woken().now_or_never().is_none());
    }

    #[test]
    fn items_are_taken_together_and_without_duplicates() {
        let (sender, mut items) = items();
        sender.add([]);
        assert_eq!(items.take().now_or_never(), None);
        sender.add([3, 1]);
        sender.add([3]);
        assert_eq!(items.take().now_or_never(), Some(vec![1, 3]));
        drop(sender);
        assert_eq!(items.take().now_or_never(), None, "the receiver must not spin");
    }
}
