//! One reader: a session of its own, one task at a time; short ones in one transaction, where their
//! queue says so.

use std::sync::Arc;
use std::time::Duration;

use queue::claim::SessionIdentity;
use tokio::sync::{mpsc, oneshot};

use crate::bell::Bell;
use crate::control::Backoff;
use crate::execute::Executor;
use crate::finish::{Finished, finish, hand_back_unbegun};
use crate::group;
use crate::held::Work;
use crate::login::Login;
use crate::metrics::Metrics;
use crate::pace::Paces;
use crate::session::{Session, SessionError};
use crate::shutdown::Shutdown;

/// An idle reader's offer to the claimer. Withdrawn by dropping the receiving end.
pub(crate) struct Offer {
    /// Number of the reader.
    pub(crate) reader: u32,
    /// Of its login.
    pub(crate) profile: Arc<str>,
    pub(crate) session: SessionIdentity,
    pub(crate) reply: oneshot::Sender<Vec<Work>>,
}

/// A reader and all that it is given.
pub(crate) struct Reader {
    pub(crate) number: u32,
    pub(crate) login: Login,
    pub(crate) offers: mpsc::UnboundedSender<Offer>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) paces: Paces,
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
            let Some(works) = self.offer(&session).await else { return };
            kept = match works {
                Some(works) => self.serve(session, works).await,
                None => None,
            };
        }
    }

    /// Runs what came in one claim: the short tasks of a queue with shared commits together, another
    /// one alone. Returns the session if it is clean.
    async fn serve(&self, session: Session, works: Vec<Work>) -> Option<Session> {
        let share = works.len() > 1 && session.may_share();
        let (together, mut alone): (Vec<Work>, Vec<Work>) =
            works.into_iter().partition(|work| share && group::may_share(work));
        // Of those that must not share only one can run now.
        let mut waiting = alone.split_off(alone.len().min(1));
        let mut kept = match together.first().and_then(|work| work.shared) {
            Some(budget) => {
                let (kept, undone, left) = self.together(session, together, budget).await;
                alone.splice(..0, undone);
                waiting.extend(left);
                kept
            }
            None => Some(session),
        };
        for work in waiting {
            self.hand_back(work).await;
        }
        for work in alone {
            match kept.take() {
                Some(session) => kept = self.attempt(session, work).await,
                // The claim names the session that is gone: by it the reclaimer would end what runs.
                None => self.hand_back(work).await,
            }
        }
        kept
    }

    /// A shared commit. Returns the session if it is clean, the tasks that have to be run alone,
    /// and those that were not begun.
    async fn together(
        &self,
        mut session: Session,
        works: Vec<Work>,
        budget: Duration,
    ) -> (Option<Session>, Vec<Work>, Vec<Work>) {
        let queue = works[0].claim.queue().to_owned();
        let (tasks, timer) = (works.len(), std::time::Instant::now());
        let grouped = self.executor.together(&mut session, works, budget).await;
        self.metrics.grouped(grouped.succeeded.len(), grouped.undone.len());
        if grouped.slow {
            tracing::info!(queue, "tasks of this queue commit alone for a while");
            self.paces.rest(&queue);
        } else {
            self.paces.ran(&queue, tasks, timer.elapsed(), budget);
        }
        // Tasks that are run again, here or elsewhere, start there.
        for (work, ran) in grouped.succeeded {
            let span = span(&work);
            self.metrics.task_started(&queue, work.claim.waited());
            drop(work.holding);
            let finished = Finished::As(queue::Outcome::Succeeded);
            self.metrics.task_finished(&queue, finished, ran, None);
            tracing::debug!(parent: &span, ?ran, "succeeded");
        }
        for work in grouped.lost {
            let span = span(&work);
            self.metrics.task_started(&queue, work.claim.waited());
            drop(work.holding);
            self.metrics.task_finished(&queue, Finished::Lost, timer.elapsed(), None);
            tracing::warn!(parent: &span, "the claim was lost, nothing was committed or recorded");
            self.bell.reconcile();
        }
        (session.reusable().await, grouped.undone, grouped.waiting)
    }

    async fn hand_back(&self, work: Work) {
        hand_back_unbegun(&self.executor.control, &self.bell, work).await;
    }

    /// A new session; `None`: the worker drains.
    async fn open(&self) -> Option<Session> {
        let name = format!("pgmill reader {}", self.number);
        let login = self.login.with_application_name(&name);
        let mut backoff = Backoff::default();
        loop {
            let registration = self.executor.control.registration();
            let opened = async {
                self.bell.claimer_connected().await;
                let session = Session::open(&login, registration, &self.metrics.tracker).await?;
                // What it would run elsewhere is not what the claimer claims.
                let registered = registration.until_registered().await;
                if session.server() == registered { Ok(session) } else { Err(SessionError::Moved) }
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
    async fn offer(&self, session: &Session) -> Option<Option<Vec<Work>>> {
        let (reply, mut answer) = oneshot::channel();
        let offer = Offer {
            reader: self.number,
            profile: Arc::clone(&self.login.profile),
            session: session.identity(),
            reply,
        };
        if self.offers.send(offer).is_err() {
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
        let (queue, shared) = (work.claim.queue().to_owned(), work.shared);
        let span = span(&work);
        self.metrics.task_started(&queue, work.claim.waited());
        tracing::debug!(parent: &span, "started");
        let timer = std::time::Instant::now();
        let ending = self.executor.execute(&mut session, &mut work).await;
        let sqlstate = ending.sqlstate().map(str::to_owned);
        let ran = timer.elapsed();
        let finished = finish(&self.executor.control, work.claim, ending).await;
        drop(work.holding);
        self.metrics.task_finished(&queue, finished, ran, sqlstate.as_deref());
        if let Some(budget) = shared {
            self.paces.ran(&queue, 1, ran, budget);
        }
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
                self.bell.reconcile();
            }
        }
        session.reusable().await
    }
}

/// What log lines about a task carry.
fn span(work: &Work) -> tracing::Span {
    let claim = &work.claim;
    tracing::info_span!(
        "task", id = %claim.id(), attempt = claim.attempt(), queue = claim.queue(), name = claim.name()
    )
}

/// A task that was handed over in the very moment the offer was withdrawn still has to be run, or
/// its first statement to fail.
fn late(mut answer: oneshot::Receiver<Vec<Work>>) -> Option<Vec<Work>> {
    answer.close();
    answer.try_recv().ok()
}
