//! Grants permits to waiting tasks: at once for permits released in this process, and otherwise on
//! a notification, when a limit changes by time, and when a poll finds limits that need work.

use std::sync::Arc;
use std::time::Instant;

use queue::QueueError;
use queue::limit::{Granted, grant, grant_waiting_permits, reconcile_limits};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::control::{Control, answered, until};
use crate::shutdown::Shutdown;
use crate::wakeup::Wakeup;

/// Grants permits to waiting tasks.
pub(crate) struct PermitGranter {
    pub(crate) control: Control,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) shutdown: Shutdown,
}

/// The limits to process.
#[derive(Clone, Copy)]
enum Scope {
    /// Limits of tasks that have ended in this process.
    Released,
    /// Limits that tasks wait for.
    Waiting,
    /// All limits.
    All,
}

impl PermitGranter {
    /// Runs until the worker ends. Any number of workers grant concurrently: each limit's row is
    /// locked meanwhile.
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
                    tracing::warn!(%error, "granting permits failed");
                    next = None;
                    continue;
                }
            };
            if granted.tasks > 0 {
                tracing::debug!(tasks = granted.tasks, "granted permits");
                self.wakeup.request_sweep();
            }
            let due = granted.next_in.map(|wait| Instant::now() + wait);
            let pending = next.filter(|next| *next > Instant::now());
            next = due.into_iter().chain(pending).min();
            // If tasks wait for many limits, a pass takes long: leave half of the time to other
            // work.
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
