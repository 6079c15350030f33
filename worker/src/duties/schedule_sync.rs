//! Synchronizes schedules with their declarations in comments of procedures, at startup.

use queue::QueueError;
use schedule::reconcile::{Reconciled, reconcile};
use tokio_postgres::error::SqlState;

use crate::control::{Backoff, Control, answered};
use crate::shutdown::Shutdown;

/// Returns once the schedules are synchronized. Retries temporary errors.
pub(crate) async fn run(control: &Control, shutdown: &Shutdown) {
    let mut backoff = Backoff::default();
    loop {
        match answered(run_once(control)).await {
            Ok(done) => return log_result(&done),
            // Another worker is synchronizing.
            Err(error) if error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {}
            Err(error) if error.temporary() => {
                tracing::warn!(%error, "synchronizing declared schedules failed, trying again");
            }
            Err(error) => return tracing::warn!(%error, "could not synchronize declared schedules"),
        }
        tokio::select! {
            () = shutdown.drain.cancelled() => return,
            () = backoff.wait() => {}
        }
    }
}

async fn run_once(control: &Control) -> Result<Reconciled, QueueError> {
    let mut client = control.get().await?;
    // Uses the plain client, because the pool's wrapper has no savepoints.
    let mut transaction = tokio_postgres::Client::transaction(&mut client).await?;
    let done = reconcile(&mut transaction).await?;
    transaction.commit().await?;
    Ok(done)
}

fn log_result(done: &Reconciled) {
    for error in &done.declaration_errors {
        tracing::warn!(
            procedure = error.declared_as,
            place = error.place,
            hint = error.hint,
            "invalid schedule declaration: {}",
            error.message
        );
    }
    let counts = (done.new.len(), done.changed.len(), done.removed.len());
    if counts != (0, 0, 0) {
        let (new, changed, removed) = counts;
        tracing::info!(new, changed, removed, "synchronized declared schedules");
    }
}
