//! Hands permits on: at once those that tasks of this process gave back, others when somebody rings,
//! when the clock frees some, and when a look finds that there are limits to look after.

use std::sync::Arc;
use std::time::Instant;

use queue::QueueError;
use queue::limit::{Granted, grant, grant_waiting_permits, reconcile_limits};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::control::{Control, answered, until};
use crate::shutdown::Shutdown;
use crate::wakeup::Wakeup;

/// The granter and all that it is given.
pub(crate) struct PermitGranter {
    pub(crate) control: Control,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) shutdown: Shutdown,
}

/// What to look after.
#[derive(Clone, Copy)]
enum Scope {
    /// Limits whose tasks have ended here.
    Released,
    /// Every limit that a task waits for.
    Waiting,
    /// Everything.
    All,
}

impl PermitGranter {
    /// Runs until the worker has ended. Any number of workers hand out side by side: each limit's row
    /// is locked meanwhile.
    pub(crate) async fn run(self, mut limits_pending: watch::Receiver<bool>) {
        let mut next: Option<Instant> = None;
        loop {
            let scope = tokio::select! {
                () = self.shutdown.end.cancelled() => return,
                () = self.wakeup.released_limits.added() => Scope::Released,
                changed = limits_pending.changed() => match changed {
                    Ok(()) if *limits_pending.borrow_and_update() => Scope::All,
                    Ok(()) => continue,
                    Err(_) => return,
                },
                () = self.wakeup.permits_requested() => {
                    let there_are = *limits_pending.borrow();
                    if !there_are {
                        continue;
                    }
                    Scope::Waiting
                }
                () = until(next) => Scope::Waiting,
            };
            let begun = Instant::now();
            let granted = match self.run_once(scope).await {
                Ok(granted) => granted,
                Err(error) => {
                    tracing::warn!(%error, "handing out permits failed");
                    next = None;
                    continue;
                }
            };
            if granted.tasks > 0 {
                tracing::debug!(tasks = granted.tasks, "got their permits");
                self.wakeup.request_sweep();
            }
            let due = granted.next_in.map(|wait| Instant::now() + wait);
            let pending = next.filter(|next| *next > Instant::now());
            next = due.into_iter().chain(pending).min();
            // Where many limits are waited for, a pass takes long: other work has half of the time.
            if !matches!(scope, Scope::Released) {
                sleep(begun.elapsed()).await;
            }
        }
    }

    async fn run_once(&self, scope: Scope) -> Result<Granted, QueueError> {
        let granted = async {
            let client = self.control.get().await?;
            match scope {
                Scope::Released => grant(&*client, &self.wakeup.released_limits.take()).await,
                Scope::All if !reconcile_limits(&*client).await? => Ok(Granted::default()),
                Scope::All | Scope::Waiting => grant_waiting_permits(&*client).await,
            }
        };
        answered(granted).await
    }
}
