//! One reader: a session of its own, one task at a time.

use std::sync::Arc;

use queue::claim::SessionIdentity;
use queue::connect::Target;
use tokio::sync::{mpsc, oneshot};

use crate::bell::Bell;
use crate::control::Backoff;
use crate::execute::Executor;
use crate::finish::{Finished, finish};
use crate::held::Work;
use crate::metrics::Metrics;
use crate::session::Session;
use crate::shutdown::Shutdown;

/// An idle reader's offer to the claimer. Withdrawn by dropping the receiving end.
pub(crate) struct Offer {
    pub(crate) session: SessionIdentity,
    pub(crate) reply: oneshot::Sender<Work>,
}

/// A reader and all that it is given.
pub(crate) struct Reader {
    pub(crate) number: u32,
    pub(crate) target: Target,
    pub(crate) offers: mpsc::UnboundedSender<Offer>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
}

impl Reader {
    /// Runs until the worker drains. A session is opened before a task is asked for, so that no
    /// task is claimed that cannot start.
    pub(crate) async fn run(self) {
        let mut kept: Option<Session> = None;
        loop {
            let opened = match kept.take() {
                Some(session) => Some(session),
                None => self.open().await,
            };
            let Some(session) = opened else { return };
            let Some(work) = self.offer(&session).await else { return };
            kept = match work {
                Some(work) => self.attempt(session, work).await,
                None => None,
            };
        }
    }

    /// A new session; `None`: the worker drains.
    async fn open(&self) -> Option<Session> {
        let name = format!("pgmill reader {}", self.number);
        let target = self.target.with_application_name(&name);
        let mut backoff = Backoff::default();
        loop {
            let opened = async {
                self.bell.claimer_connected().await;
                Session::open(&target, &self.metrics.tracker).await
            };
            let opened = tokio::select! {
                () = self.shutdown.drain.cancelled() => return None,
                opened = opened => opened,
            };
            match opened {
                Ok(session) => return Some(session),
                Err(error) => {
                    self.metrics.reconnects.inc();
                    tracing::warn!(reader = self.number, %error, "no session for tasks");
                }
            }
            tokio::select! {
                () = self.shutdown.drain.cancelled() => return None,
                () = backoff.wait() => {}
            }
        }
    }

    /// Waits for a task. `Some(None)`: the session ended meanwhile; `None`: the worker drains.
    async fn offer(&self, session: &Session) -> Option<Option<Work>> {
        let (reply, mut answer) = oneshot::channel();
        if self.offers.send(Offer { session: session.identity(), reply }).is_err() {
            return None;
        }
        tokio::select! {
            biased;
            work = &mut answer => work.ok().map(Some),
            () = session.ended() => Some(late(answer)),
            () = self.shutdown.drain.cancelled() => late(answer).map(Some),
        }
    }

    /// Runs one attempt and brings its ending into the queue. Returns the session if it is clean.
    async fn attempt(&self, mut session: Session, mut work: Work) -> Option<Session> {
        let (task, attempt) = (work.claim.id(), work.claim.attempt());
        let (queue, name) = (work.claim.queue().to_owned(), work.claim.name().map(str::to_owned));
        let span = tracing::info_span!("task", id = %task, attempt, queue, name);
        self.metrics.task_started(&queue, work.claim.waited());
        tracing::debug!(parent: &span, "started");
        let timer = std::time::Instant::now();
        let ending = self.executor.execute(&mut session, &mut work).await;
        let sqlstate = ending.sqlstate().map(str::to_owned);
        let ran = timer.elapsed();
        let finished = finish(&self.executor.control, work.claim, ending).await;
        drop(work.holding);
        self.metrics.task_finished(&queue, finished, ran, sqlstate.as_deref());
        let _entered = span.enter();
        match finished {
            Finished::As(queue::Outcome::Succeeded) => tracing::debug!(?ran, "succeeded"),
            Finished::As(outcome) => tracing::warn!(%outcome, sqlstate, "ended"),
            Finished::Retried(outcome) => {
                tracing::info!(%outcome, sqlstate, "will be attempted again");
            }
            Finished::GivenBack => tracing::info!("given back"),
            Finished::Lost => {
                tracing::warn!("the claim was lost, nothing was committed or recorded");
            }
        }
        session.reusable()
    }
}

/// A task that was handed over in the very moment the offer was withdrawn still has to be run, or
/// its first statement to fail.
fn late(mut answer: oneshot::Receiver<Work>) -> Option<Work> {
    answer.close();
    answer.try_recv().ok()
}
