//! One reader: a session of its own, one task at a time; short ones in one transaction, where their
//! queue says so.

use std::sync::Arc;
use std::time::Duration;

use queue::claim::SessionIdentity;
use tokio::sync::{mpsc, oneshot};

use crate::batch_size::BatchSizes;
use crate::control::Backoff;
use crate::execute::Executor;
use crate::finish::{Disposition, finish, release_unstarted};
use crate::in_flight::ClaimedTask;
use crate::login::Login;
use crate::metrics::Metrics;
use crate::session::{Session, SessionError};
use crate::shared_commit;
use crate::shutdown::Shutdown;
use crate::wakeup::Wakeup;

/// An idle reader's offer to the claimer. Withdrawn by dropping the receiving end.
pub(crate) struct IdleReader {
    /// Number of the reader.
    pub(crate) reader: u32,
    /// Of its login.
    pub(crate) profile: Arc<str>,
    pub(crate) session: SessionIdentity,
    pub(crate) reply: oneshot::Sender<Vec<ClaimedTask>>,
}

/// A reader and all that it is given.
pub(crate) struct Reader {
    pub(crate) number: u32,
    pub(crate) login: Login,
    pub(crate) idle_readers: mpsc::UnboundedSender<IdleReader>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) batch_sizes: BatchSizes,
    pub(crate) wakeup: Arc<Wakeup>,
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
            let Some(batch) = self.wait_for_tasks(&session).await else { return };
            kept = match batch {
                Some(batch) => self.serve(session, batch).await,
                None => None,
            };
        }
    }

    /// Runs what came in one claim: the short tasks of a queue with shared commits together, another
    /// one alone. Returns the session if it is clean.
    async fn serve(&self, session: Session, batch: Vec<ClaimedTask>) -> Option<Session> {
        let share = batch.len() > 1 && session.may_share();
        let (sharing, mut alone): (Vec<ClaimedTask>, Vec<ClaimedTask>) =
            batch.into_iter().partition(|task| share && shared_commit::may_share(task));
        // Of those that must not share only one can run now.
        let mut waiting = alone.split_off(alone.len().min(1));
        let mut kept = match sharing.first().and_then(|task| task.shared_commit_budget) {
            Some(budget) => {
                let (kept, rolled_back, left) =
                    self.run_shared_commit(session, sharing, budget).await;
                alone.splice(..0, rolled_back);
                waiting.extend(left);
                kept
            }
            None => Some(session),
        };
        for task in waiting {
            self.release_claim(task).await;
        }
        for task in alone {
            match kept.take() {
                Some(session) => kept = self.attempt(session, task).await,
                // The claim names the session that is gone: by it the reclaimer would end what runs.
                None => self.release_claim(task).await,
            }
        }
        kept
    }

    /// A shared commit. Returns the session if it is clean, the tasks that have to be run alone,
    /// and those that were not begun.
    async fn run_shared_commit(
        &self,
        mut session: Session,
        batch: Vec<ClaimedTask>,
        budget: Duration,
    ) -> (Option<Session>, Vec<ClaimedTask>, Vec<ClaimedTask>) {
        let queue = batch[0].claim.queue().to_owned();
        let (tasks, timer) = (batch.len(), std::time::Instant::now());
        let result = self.executor.run_shared_commit(&mut session, batch, budget).await;
        self.metrics.shared_commit_finished(result.succeeded.len(), result.rolled_back.len());
        if result.slow {
            tracing::info!(queue, "tasks of this queue commit alone for a while");
            self.batch_sizes.cool_down(&queue);
        } else {
            self.batch_sizes.record(&queue, tasks, timer.elapsed(), budget);
        }
        // Tasks that are run again, here or elsewhere, start there.
        for (task, ran) in result.succeeded {
            let span = span(&task);
            self.metrics.task_started(&queue, task.claim.waited());
            drop(task.in_flight_guard);
            let disposition = Disposition::Finished(queue::Outcome::Succeeded);
            self.metrics.task_finished(&queue, disposition, ran, None);
            tracing::debug!(parent: &span, duration = ?ran, "succeeded");
        }
        for task in result.lost {
            let span = span(&task);
            self.metrics.task_started(&queue, task.claim.waited());
            drop(task.in_flight_guard);
            self.metrics.task_finished(&queue, Disposition::Lost, timer.elapsed(), None);
            tracing::warn!(parent: &span, "the claim was lost, nothing was committed or recorded");
            self.wakeup.reconcile();
        }
        (session.reusable().await, result.rolled_back, result.not_started)
    }

    async fn release_claim(&self, task: ClaimedTask) {
        release_unstarted(&self.executor.control, &self.wakeup, task).await;
    }

    /// A new session; `None`: the worker drains.
    async fn open(&self) -> Option<Session> {
        let name = format!("pgmill reader {}", self.number);
        let login = self.login.with_application_name(&name);
        let mut backoff = Backoff::default();
        loop {
            let registration = self.executor.control.registration();
            let opened = async {
                self.wakeup.wait_for_claimer().await;
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
    async fn wait_for_tasks(&self, session: &Session) -> Option<Option<Vec<ClaimedTask>>> {
        let (reply, mut answer) = oneshot::channel();
        let idle_reader = IdleReader {
            reader: self.number,
            profile: Arc::clone(&self.login.profile),
            session: session.identity(),
            reply,
        };
        if self.idle_readers.send(idle_reader).is_err() {
            return None;
        }
        tokio::select! {
            biased;
            task = &mut answer => task.ok().map(Some),
            () = session.ended() => Some(take_late_batch(answer)),
            () = self.shutdown.drain.cancelled() => take_late_batch(answer).map(Some),
        }
    }

    /// Runs one attempt and brings its ending into the queue. Returns the session if it is clean.
    async fn attempt(&self, mut session: Session, mut task: ClaimedTask) -> Option<Session> {
        let (queue, shared) = (task.claim.queue().to_owned(), task.shared_commit_budget);
        let span = span(&task);
        self.metrics.task_started(&queue, task.claim.waited());
        tracing::debug!(parent: &span, "started");
        let timer = std::time::Instant::now();
        let result = self.executor.execute(&mut session, &mut task).await;
        let sqlstate = result.sqlstate().map(str::to_owned);
        let ran = timer.elapsed();
        let disposition = finish(&self.executor.control, task.claim, result).await;
        drop(task.in_flight_guard);
        self.metrics.task_finished(&queue, disposition, ran, sqlstate.as_deref());
        if let Some(budget) = shared {
            self.batch_sizes.record(&queue, 1, ran, budget);
        }
        let _entered = span.enter();
        match disposition {
            Disposition::Finished(queue::Outcome::Succeeded) => {
                tracing::debug!(duration = ?ran, "succeeded");
            }
            Disposition::Finished(outcome) => tracing::warn!(%outcome, sqlstate, "ended"),
            Disposition::Retried(outcome) => {
                tracing::info!(%outcome, sqlstate, "will be attempted again");
            }
            Disposition::Released => tracing::info!("given back"),
            Disposition::Lost => {
                tracing::warn!("the claim was lost, nothing was committed or recorded");
                self.wakeup.reconcile();
            }
        }
        session.reusable().await
    }
}

/// What log lines about a task carry.
fn span(task: &ClaimedTask) -> tracing::Span {
    let claim = &task.claim;
    tracing::info_span!(
        "task", id = %claim.id(), attempt = claim.attempt(), queue = claim.queue(), name = claim.name()
    )
}

/// A task that was handed over in the very moment the offer was withdrawn still has to be run, or
/// its first statement to fail.
fn take_late_batch(mut answer: oneshot::Receiver<Vec<ClaimedTask>>) -> Option<Vec<ClaimedTask>> {
    answer.close();
    answer.try_recv().ok()
}
