//! The steps of a shutdown, which all parts of the process observe, and the tasks that it waits for.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The steps of a shutdown, as cancellation tokens.
#[derive(Clone, Default)]
pub(crate) struct Shutdown {
    /// Cancelled when the worker stops claiming.
    pub(crate) drain: CancellationToken,
    /// Cancelled when all readers have finished. Then heartbeat, reclaimer and metrics stop.
    pub(crate) end: CancellationToken,
}

/// Tokio tasks that the shutdown waits for; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Tasks(TaskTracker);

impl Tasks {
    /// Starts a task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Resolves once all tasks have ended.
    pub(crate) async fn ended(&self) {
        self.0.close();
        self.0.wait().await;
    }
}
