//! Makes due tasks pending: at the instant the next one is due, and at least once per interval.

use std::sync::Arc;
use std::time::Duration;

use queue::QueueError;
use queue::promote::promote;
use tokio::time::sleep;

use crate::bell::Bell;
use crate::control::{Backoff, Control};
use crate::shutdown::Shutdown;

/// A task that another session schedules for soon is found this late at most.
const EVERY: Duration = Duration::from_secs(1);

/// Runs until the worker drains. Any number of workers promote side by side.
pub(crate) async fn run(control: Control, bell: Arc<Bell>, shutdown: Shutdown) {
    let mut backoff = Backoff::default();
    loop {
        let wait = match run_once(&control, &bell).await {
            Ok(wait) => {
                backoff = Backoff::default();
                wait
            }
            Err(error) => {
                tracing::warn!(%error, "promoting due tasks failed");
                backoff.step()
            }
        };
        tokio::select! {
            () = shutdown.drain.cancelled() => return,
            () = sleep(wait) => {}
        }
    }
}

/// Promotes what is due; returns how long nothing else will be.
async fn run_once(control: &Control, bell: &Bell) -> Result<Duration, QueueError> {
    let client = control.get().await?;
    let mut tasks = 0;
    let next_due_in = loop {
        let promoted = promote(&**client).await?;
        tasks += promoted.tasks;
        if promoted.tasks < 1000 {
            break promoted.next_due_in;
        }
    };
    if tasks > 0 {
        tracing::debug!(tasks, "promoted");
        bell.sweep();
    }
    Ok(next_due_in.unwrap_or(EVERY).min(EVERY))
}
