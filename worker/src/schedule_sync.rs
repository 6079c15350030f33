//! At the start: schedules become what the comments of procedures say.

use queue::QueueError;
use schedule::reconcile::{Reconciled, reconcile};
use tokio_postgres::error::SqlState;

use crate::control::{Backoff, Control, answered};
use crate::shutdown::Shutdown;

/// Returns once that is done; trouble is waited out.
pub(crate) async fn run(control: &Control, shutdown: &Shutdown) {
    let mut backoff = Backoff::default();
    loop {
        match answered(run_once(control)).await {
            Ok(done) => return log_result(&done),
            // Another worker that starts is doing it.
            Err(error) if error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {}
            Err(error) if error.temporary() => {
                tracing::warn!(%error, "reading the declared schedules failed, trying again");
            }
            Err(error) => return tracing::warn!(%error, "the declared schedules were not read"),
        }
        tokio::select! {
            () = shutdown.drain.cancelled() => return,
            () = backoff.wait() => {}
        }
    }
}

async fn run_once(control: &Control) -> Result<Reconciled, QueueError> {
    let mut client = control.get().await?;
    // Not the pool's wrapper of it, which has no savepoints to give.
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
            "declaration error in a comment: {}",
            error.message
        );
    }
    let counts = (done.new.len(), done.changed.len(), done.removed.len());
    if counts != (0, 0, 0) {
        let (new, changed, removed) = counts;
        tracing::info!(new, changed, removed, "declared schedules");
    }
}
