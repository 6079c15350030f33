//! Records successes of tasks that have committed in a target, many in one transaction of the queue.

use std::sync::Arc;
use std::time::Duration;

use queue::Claim;
use queue::complete::{Success, complete};
use queue::fail::Report;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::attempt::commit::complete_committed;
use crate::control::{Control, answered};
use crate::shutdown::Tasks;

/// Maximum number of successes in one transaction.
const BATCH_SIZE: usize = 100;

/// Maximum number of results for which no reader waits. While the queue is unreachable, readers then
/// wait, and claim no further task.
const MAX_UNRECORDED: usize = 100;

/// Time for which the other successes wait for one that is recorded alone.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// A task that has committed in its target.
struct Committed {
    claim: Arc<Claim>,
    report: Report,
    recorded: oneshot::Sender<bool>,
}

/// Access to the background task that records.
#[derive(Clone)]
pub(crate) struct Recorder {
    committed: mpsc::UnboundedSender<Committed>,
    permits: Arc<Semaphore>,
}

impl Recorder {
    /// Starts the background task, which ends with the last copy of the recorder.
    pub(crate) fn start(control: Arc<Control>, tasks: &Tasks) -> Self {
        let (committed, receiver) = mpsc::unbounded_channel();
        tasks.spawn(run(control, receiver, tasks.clone()));
        Self { committed, permits: Arc::new(Semaphore::new(MAX_UNRECORDED)) }
    }

    /// Waits until fewer than [`MAX_UNRECORDED`] results are left to be recorded while no reader waits
    /// for them. The caller keeps the permit until its result is recorded.
    pub(crate) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }

    /// Records the success of a task. Retries without limit. Returns `false` if the claim was lost.
    pub(crate) async fn record(&self, claim: Arc<Claim>, report: Report) -> bool {
        let (recorded, answer) = oneshot::channel();
        // The background task ends only after all recorders.
        let _ = self.committed.send(Committed { claim, report, recorded });
        answer.await.unwrap_or(false)
    }
}

/// While one transaction commits, the successes of other readers gather for the next one. A success
/// whose task another transaction has locked is recorded in the background, so that the others do not
/// wait for it.
async fn run(
    control: Arc<Control>,
    mut receiver: mpsc::UnboundedReceiver<Committed>,
    tasks: Tasks,
) {
    let mut batch = Vec::new();
    while receiver.recv_many(&mut batch, BATCH_SIZE).await > 0 {
        if batch.len() > 1 && complete_all(&control, &batch).await {
            for Committed { recorded, .. } in batch.drain(..) {
                // The reader may have been stopped.
                let _ = recorded.send(true);
            }
        }
        for Committed { claim, report, recorded } in batch.drain(..) {
            let control = Arc::clone(&control);
            let mut alone = Box::pin(async move {
                let done = complete_committed(&control, Success::now(&claim, &report)).await;
                let _ = recorded.send(done);
            });
            if timeout(MAX_WAIT, &mut alone).await.is_err() {
                tasks.spawn(alone);
            }
        }
    }
}

/// Records all successes or none. Returns whether it has recorded them for sure. If not, one of the
/// claims may be lost, so that each success has to be recorded alone.
async fn complete_all(control: &Control, batch: &[Committed]) -> bool {
    let successes: Vec<Success<'_>> =
        batch.iter().map(|committed| Success::now(&committed.claim, &committed.report)).collect();
    let completed = answered(async {
        let client = control.get().await?;
        Ok(complete(&client, &successes, None).await)
    });
    matches!(completed.await, Ok(Ok(())))
}
