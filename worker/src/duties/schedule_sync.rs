//! At startup, makes the schedules match their declarations in the comments of procedures.

use std::sync::Arc;

use queue::QueueError;
use schedule::reconcile::{Reconciled, reconcile};
use tokio_postgres::error::SqlState;

use crate::context::Context;
use crate::control::{Backoff, answered};
use crate::duties::duty::{Duty, StopAt};

/// Synchronizes the schedules once. Repeats after temporary errors.
pub(crate) struct ScheduleSync {
    context: Arc<Context>,
    done: bool,
    /// Wait while another worker synchronizes the schedules.
    wait: Option<Backoff>,
}

impl ScheduleSync {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, done: false, wait: None }
    }

    async fn sync(&self) -> Result<Reconciled, QueueError> {
        let mut client = self.context.control.get().await?;
        // Uses the plain client, because the pool's wrapper has no savepoints.
        let mut transaction = tokio_postgres::Client::transaction(&mut client).await?;
        let done = reconcile(&mut transaction).await?;
        transaction.commit().await?;
        Ok(done)
    }
}

impl Duty for ScheduleSync {
    const NAME: &'static str = "sync_schedules";
    const STOPS: StopAt = StopAt::Drain;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        if let Some(wait) = &mut self.wait {
            wait.wait().await;
        }
        (!self.done).then_some(())
    }

    /// Returns the number of new, changed and removed schedules, added up.
    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        match answered(self.sync()).await {
            Ok(done) => {
                self.done = true;
                log_result(&done);
                Ok((done.new.len() + done.changed.len() + done.removed.len()) as u64)
            }
            Err(error) if error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                self.wait.get_or_insert_default();
                Ok(0)
            }
            Err(error) => {
                self.done = !error.temporary();
                Err(error)
            }
        }
    }
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
