//! The interface of a duty, which defines when the duty runs and what one run does, and the loop
//! that runs it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_decisions::timing::MAX_BACKOFF;
use queue::QueueError;

use crate::context::Context;
use crate::control::Backoff;
use crate::shutdown::Shutdown;

/// A background service that a worker runs repeatedly for the whole fleet.
pub(crate) trait Duty: Send + 'static {
    /// Name in log and metrics.
    const NAME: &'static str;
    /// The step of a shutdown at which the duty stops.
    const STOPS: StopAt = StopAt::End;
    /// Maximum wait after a failed run. The first wait is 50 ms, and doubles with each further
    /// failure.
    const MAX_BACKOFF: Duration = MAX_BACKOFF;
    /// Why one run takes place, or which items it processes.
    type Cause: Copy + Debug + Send;

    /// Waits for the next run. Returns `None` if there will be none.
    fn next(&mut self) -> impl Future<Output = Option<Self::Cause>> + Send;

    /// Runs once; returns the number of items processed.
    ///
    /// # Errors
    /// The queue is unreachable or refuses a statement. The next run does the work of the failed
    /// run.
    fn run_once(
        &mut self,
        cause: Self::Cause,
    ) -> impl Future<Output = Result<u64, QueueError>> + Send;

    /// Does the last work of the duty, after the duty was stopped.
    fn stop(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// The step of a shutdown at which a duty stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopAt {
    /// The worker stops claiming.
    Drain,
    /// All readers have finished.
    End,
}

/// Maximum number of different errors of a duty that are logged as warnings until the duty works again.
const MAX_WARNINGS: usize = 5;

/// Runs the duty until it is stopped. Counts each run. Logs each error of a duty that fails as a
/// warning once, and the first success afterwards.
pub(crate) async fn run<D: Duty>(mut duty: D, context: Arc<Context>) {
    let metrics = context.metrics.duties.of(D::NAME);
    let stopped = stopped(&context.shutdown, D::STOPS);
    let registration = context.control.registration();
    let mut backoff = Backoff::up_to(D::MAX_BACKOFF).ended_by(registration);
    let mut failures = 0_u32;
    let mut known = BTreeSet::new();
    while let Some(Some(cause)) = stopped.run_until_cancelled(duty.next()).await {
        let begun = Instant::now();
        let result = duty.run_once(cause).await;
        metrics.record(begun.elapsed(), result.as_ref().ok().copied());
        match result {
            Ok(items) => {
                if failures > 0 {
                    tracing::info!(duty = D::NAME, failures, "duty works again");
                    context.control.errors().clear(D::NAME);
                    failures = 0;
                    backoff.reset();
                    known.clear();
                }
                if items > 0 {
                    tracing::debug!(duty = D::NAME, items, "duty done");
                }
            }
            Err(error) => {
                failures += 1;
                context.control.errors().set(D::NAME, &error);
                if known.len() < MAX_WARNINGS && known.insert(error.to_string()) {
                    tracing::warn!(duty = D::NAME, ?cause, %error, "duty failed");
                } else {
                    tracing::debug!(duty = D::NAME, ?cause, %error, failures, "duty failed again");
                }
                let _ = stopped.run_until_cancelled(backoff.wait()).await;
            }
        }
    }
    duty.stop().await;
}

fn stopped(shutdown: &Shutdown, at: StopAt) -> tokio_util::sync::CancellationToken {
    match at {
        StopAt::Drain => shutdown.drain.clone(),
        StopAt::End => shutdown.end.clone(),
    }
}
