//! Periodically promotes due tasks to pending, at the instant the next task is due.

use std::sync::Arc;
use std::time::Instant;

use queue::QueueError;
use queue::promote::promote;
use tokio::sync::watch;

use crate::control::{Backoff, Control, answered, until};
use crate::shutdown::Shutdown;
use crate::wakeup::Wakeup;

/// Runs until the worker drains. Any number of workers promote concurrently.
pub(crate) async fn run(
    control: Control,
    wakeup: Arc<Wakeup>,
    mut next_due: watch::Receiver<Option<Instant>>,
    shutdown: Shutdown,
) {
    let mut backoff = Backoff::default();
    let mut due_at = None;
    loop {
        tokio::select! {
            () = shutdown.drain.cancelled() => return,
            changed = next_due.changed() => match changed {
                Ok(()) => due_at = *next_due.borrow_and_update(),
                Err(_) => return,
            },
            () = until(due_at) => match run_once(&control, &wakeup).await {
                Ok(next) => {
                    backoff = Backoff::default();
                    due_at = next;
                }
                Err(error) => {
                    tracing::warn!(%error, "promoting due tasks failed");
                    due_at = Some(Instant::now() + backoff.step());
                }
            },
        }
    }
}

/// Promotes due tasks; returns when the next task is due.
async fn run_once(control: &Control, wakeup: &Wakeup) -> Result<Option<Instant>, QueueError> {
    let mut tasks = 0;
    let next_due_in = loop {
        let promoted = answered(async { promote(&*control.get().await?).await }).await?;
        tasks += promoted.tasks;
        if promoted.tasks < 1000 {
            break promoted.next_due_in;
        }
    };
    if tasks > 0 {
        tracing::debug!(tasks, "promoted");
        wakeup.request_sweep();
    }
    Ok(next_due_in.map(|wait| Instant::now() + wait))
}
