//! Grants permits to waiting tasks. A permit that a task of this process releases is passed on at
//! once. The granter also runs on a notification, when a rate or an active period allows the next
//! task, and when a poll finds limits whose settings have changed or limits that tasks wait for.

use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue::limit::{Granted, grant, grant_waiting_permits, reconcile_limits};
use queue::{LimitId, QueueError};
use tokio::sync::watch;
use tokio::time::sleep_until;
use tokio_postgres::Client;

use crate::context::Context;
use crate::control::{answered, until};
use crate::duties::duty::Duty;
use crate::wakeup::{Items, Wakeup};

/// A run that looks at the limits that tasks wait for is followed by a rest of this many times its
/// duration, so that such runs take at most a tenth of the time.
const REST: u32 = 9;
/// Maximum of this rest. A run can be slow for another reason than the number of limits.
const MAX_REST: Duration = Duration::from_secs(1);

/// Grants permits to waiting tasks. Any number of workers grant concurrently, because each grant
/// locks the row of its limit.
pub(crate) struct PermitGranter {
    context: Arc<Context>,
    /// Limits of tasks that have ended in this process.
    released: Items<LimitId>,
    /// Woken when new tasks may be waiting for permits.
    wakeup: Wakeup,
    /// Set by the poller.
    polled: watch::Receiver<PolledLimits>,
    /// Limits that the next run processes.
    free: Vec<LimitId>,
    /// Time at which a rate or an active period frees further permits.
    due_at: Option<Instant>,
    /// The last limit of the previous run, if the next run continues after it.
    after: Option<LimitId>,
    /// Time before which no run looks at the limits that tasks wait for. If tasks wait for many
    /// limits, such a run takes long.
    rest_until: Instant,
}

/// What the poller finds about limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PolledLimits {
    /// Whether there are limits.
    pub(crate) exist: bool,
    /// Whether limits need work.
    pub(crate) pending: bool,
}

/// The limits to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Limits of tasks that have ended in this process. Their permits are free.
    Released,
    /// Limits that tasks wait for.
    Waiting,
    /// All limits.
    All,
}

impl PermitGranter {
    pub(crate) fn new(
        context: Arc<Context>,
        released: Items<LimitId>,
        wakeup: Wakeup,
        polled: watch::Receiver<PolledLimits>,
    ) -> Self {
        let (free, rest_until) = (Vec::new(), Instant::now());
        Self { context, released, wakeup, polled, free, due_at: None, after: None, rest_until }
    }

    async fn grant(&mut self, scope: Scope) -> Result<Granted, QueueError> {
        let Self { context, after, free, .. } = self;
        let client = context.control.get().await?;
        match scope {
            Scope::Released => grant(&*client, &std::mem::take(free)).await,
            Scope::All => match reconcile_limits(&*client).await {
                Ok(false) => Ok(Granted::default()),
                Ok(true) => grant_waiting(&client, after).await,
                Err(error) => {
                    // The tasks that wait for other limits must not wait for the cause of the error.
                    if grant_waiting(&client, after).await?.tasks > 0 {
                        context.claimer.request_sweep();
                    }
                    Err(error)
                }
            },
            Scope::Waiting => grant_waiting(&client, after).await,
        }
    }
}

/// Continues after the limits of the previous run. If it fails, the next run begins with the first
/// limit.
async fn grant_waiting(
    client: &Client,
    after: &mut Option<LimitId>,
) -> Result<Granted, QueueError> {
    let (granted, last) = grant_waiting_permits(client, after.take()).await?;
    *after = last;
    Ok(granted)
}

impl Duty for PermitGranter {
    const NAME: &'static str = "grant_permits";
    /// Zero, because the next poll repeats a failed run, and permits are released meanwhile.
    const MAX_BACKOFF: Duration = Duration::ZERO;
    type Cause = Scope;

    async fn next(&mut self) -> Option<Scope> {
        let Self { released, wakeup, polled, free, due_at, after, rest_until, .. } = self;
        let waiting = async {
            sleep_until((*rest_until).into()).await;
            loop {
                tokio::select! {
                    changed = polled.changed() => {
                        changed.ok()?;
                        if polled.borrow_and_update().pending {
                            return Some(Scope::All);
                        }
                    }
                    () = wakeup.woken() => {
                        let limits = *polled.borrow();
                        if limits.pending || limits.exist {
                            return Some(Scope::Waiting);
                        }
                    }
                    () = until(*due_at) => return Some(Scope::Waiting),
                    () = ready(()), if after.is_some() => return Some(Scope::Waiting),
                }
            }
        };
        tokio::select! {
            limits = released.take() => {
                free.extend(limits);
                Some(Scope::Released)
            }
            scope = waiting => scope,
        }
    }

    async fn run_once(&mut self, scope: Scope) -> Result<u64, QueueError> {
        let begun = Instant::now();
        // If this run fails, the next poll finds the limits again.
        let due_at = self.due_at.take();
        let granted = answered(self.grant(scope)).await?;
        if granted.tasks > 0 {
            self.context.claimer.request_sweep();
        }
        let due = granted.next_in.map(|wait| Instant::now() + wait);
        let pending = due_at.filter(|at| *at > Instant::now());
        self.due_at = due.into_iter().chain(pending).min();
        if scope != Scope::Released {
            self.rest_until = Instant::now() + MAX_REST.min(begun.elapsed() * REST);
        }
        Ok(granted.tasks)
    }
}
