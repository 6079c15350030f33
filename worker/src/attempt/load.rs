//! Loads statement and params of a task whose claim left them out because of their size.

use std::sync::Arc;
use std::time::Duration;

use queue::QueueError;
use queue::claim::load;
use queue::fail::Report;

use crate::attempt::error::ExecutionError;
use crate::attempt::execute::{AttemptResult, Executor};
use crate::context::in_flight::ClaimedTask;

impl Executor {
    /// Fetches statement and params if the claim left them out. A value that the server cannot send is a
    /// failure of the task.
    pub(crate) async fn load(&self, task: &mut ClaimedTask) -> Result<(), AttemptResult> {
        if task.claim.is_loaded() {
            return Ok(());
        }
        let claimed = (task.claim.id(), task.claim.token());
        let loaded = self.control.retry("loading", claimed.0, || async {
            match load(&*self.control.get().await?, claimed).await {
                Err(error) if error.temporary() => Err(error),
                Err(QueueError::Database(error)) => Ok(Err(ExecutionError::from(error))),
                loaded => loaded.map(Ok),
            }
        });
        let loaded = tokio::select! {
            loaded = loaded => loaded,
            // The signal is handled before the statement starts.
            _ = task.stop.wait_for(Option::is_some) => return Ok(()),
        };
        match loaded {
            Ok(Some(body)) => {
                // Nobody else has the claim before the task starts.
                let Some(claim) = Arc::get_mut(&mut task.claim) else {
                    return Err(AttemptResult::Release { wait: Duration::ZERO });
                };
                claim.set_body(body);
                Ok(())
            }
            Ok(None) => Err(AttemptResult::Lost),
            Err(error) => Err(self.classify_error(&task.claim, &error, Report::default())),
        }
    }
}
