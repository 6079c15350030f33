//! Promotes scheduled tasks to pending as soon as they are due.

use std::sync::Arc;
use std::time::Instant;

use queue::QueueError;
use queue::promote::promote;
use tokio::sync::watch;

use crate::context::Context;
use crate::control::{answered, until};
use crate::duties::duty::{Duty, StopAt};

/// Promotes due tasks. Any number of workers promote concurrently.
pub(crate) struct Promoter {
    context: Arc<Context>,
    /// Set by the poller: when the next task is due.
    next_due: watch::Receiver<Option<Instant>>,
    due_at: Option<Instant>,
}

impl Promoter {
    pub(crate) fn new(context: Arc<Context>, next_due: watch::Receiver<Option<Instant>>) -> Self {
        Self { context, next_due, due_at: None }
    }
}

impl Duty for Promoter {
    const NAME: &'static str = "promote";
    const STOPS: StopAt = StopAt::Drain;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        loop {
            tokio::select! {
                changed = self.next_due.changed() => {
                    changed.ok()?;
                    self.due_at = *self.next_due.borrow_and_update();
                }
                () = until(self.due_at) => return Some(()),
            }
        }
    }

    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let mut tasks = 0;
        let next_due_in = loop {
            let promoted =
                answered(async { promote(&*self.context.control.get().await?).await }).await?;
            tasks += promoted.tasks;
            if promoted.tasks > 0 {
                self.context.claimer.request_sweep();
            }
            if promoted.tasks < 1000 {
                break promoted.next_due_in;
            }
        };
        self.due_at = next_due_in.map(|wait| Instant::now() + wait);
        Ok(tasks)
    }
}
