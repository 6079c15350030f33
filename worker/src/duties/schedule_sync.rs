//! At startup, makes the schedules match their declarations in the comments of procedures.

use std::sync::Arc;

use queue::QueueError;
use schedule::reconcile::{self, Reconciled, reconcile};
use tokio_postgres::error::SqlState;
use tokio_util::sync::DropGuard;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::{Duty, StopAt};

/// Synchronizes the schedules once. Repeats after temporary errors.
pub(crate) struct ScheduleSync {
    context: Arc<Context>,
    done: bool,
    failed: bool,
    /// Dropped at the end of the first attempt. What waits for it does not wait for the repetitions,
    /// because a lock of another session can make all of them fail.
    first_attempt: Option<DropGuard>,
}

impl ScheduleSync {
    pub(crate) fn new(context: Arc<Context>, first_attempt: DropGuard) -> Self {
        Self { context, done: false, failed: false, first_attempt: Some(first_attempt) }
    }

    /// Returns `None` if another session synchronizes them for longer than the `lock_timeout`.
    async fn sync(&self) -> Result<Option<Reconciled>, QueueError> {
        let mut client = self.context.control.get().await?;
        // Uses the plain client, because the pool's wrapper has no savepoints.
        let mut transaction = tokio_postgres::Client::transaction(&mut client).await?;
        match reconcile::lock(&transaction).await {
            Err(error) if is_locked(&error) && !self.failed => return Ok(None),
            locked => locked?,
        }
        let done = reconcile(&mut transaction).await?;
        transaction.commit().await?;
        Ok(Some(done))
    }
}

impl Duty for ScheduleSync {
    const NAME: &'static str = "sync_schedules";
    const STOPS: StopAt = StopAt::Drain;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        (!self.done).then_some(())
    }

    /// Returns the number of new, changed and removed schedules, added up.
    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let synced = answered(self.sync()).await;
        let first = self.first_attempt.take().is_some();
        match synced {
            Ok(Some(done)) => {
                self.done = true;
                log_result(&done);
                Ok((done.new.len() + done.changed.len() + done.removed.len()) as u64)
            }
            // Workers that start at the same time synchronize the schedules one after another.
            Ok(None) => {
                if first {
                    tracing::info!("waiting for another session that synchronizes the schedules");
                }
                Ok(0)
            }
            Err(error) => {
                self.failed = true;
                self.done = !error.temporary();
                Err(error)
            }
        }
    }
}

fn is_locked(error: &QueueError) -> bool {
    error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE)
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
