//! A reader: owns a session and runs one task at a time. For a queue with shared commits, it runs
//! several short tasks in one transaction.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fleet_decisions::batch_size::BatchSizes;
use futures_util::FutureExt;
use futures_util::future::{self, Either, select};
use queue::{Disposition, Outcome, Traceparent};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::attempt::chain::{chain_budget, may_chain};
use crate::attempt::execute::{AttemptResult, Committed, Executor};
use crate::attempt::finish::finish;
use crate::attempt::session::{OpenedTransaction, Session, SessionError};
use crate::attempt::shared_commit;
use crate::claim::claimer::IdleReader;
use crate::claim::release::release_unstarted;
use crate::context::Context;
use crate::context::in_flight::ClaimedTask;
use crate::context::reader_sessions::Connected;
use crate::control::registration::moved;
use crate::login::Login;

/// Maximum time for which a reader waits until the queue has recorded a result, which usually takes
/// milliseconds. A statement that waits for the lock of a run gives up much earlier, and is repeated.
const MAX_RECORD_WAIT: Duration = Duration::from_secs(1);

/// Runs tasks in its own session.
pub(crate) struct Reader {
    /// Number of the reader, from 1.
    pub(crate) number: u32,
    /// See [`IdleReader`].
    pub(crate) number_in_profile: u32,
    pub(crate) login: Login,
    pub(crate) idle_readers: mpsc::UnboundedSender<IdleReader>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) batch_sizes: BatchSizes,
    pub(crate) context: Arc<Context>,
    /// Results that are being recorded while the reader runs the next task.
    pub(crate) recording: TaskTracker,
    /// Whether the last session was lost, and not closed by the reader.
    pub(crate) lost: AtomicBool,
}

/// The claimed tasks that wait for the running one.
struct Waiting {
    tasks: VecDeque<ClaimedTask>,
    /// Releases of tasks that have waited too long.
    releases: Vec<JoinHandle<()>>,
}

impl Reader {
    /// Runs until the worker drains. Opens a session before it asks for a task, so that a claimed
    /// task can always start.
    pub(crate) async fn run(self) {
        self.run_tasks().await;
        self.recording.close();
        self.recording.wait().await;
    }

    async fn run_tasks(&self) {
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

    /// Runs the tasks of one claim. Short tasks of a queue with shared commits share a transaction,
    /// other short tasks form a chain. Returns the session if it is clean.
    async fn serve(&self, session: Session, batch: Vec<ClaimedTask>) -> Option<Session> {
        let share = batch.len() > 1 && session.may_share() && !session.defers_triggers;
        let (sharing, mut alone): (Vec<ClaimedTask>, Vec<ClaimedTask>) =
            batch.into_iter().partition(|task| share && shared_commit::may_share(task));
        // Among the tasks that must not wait for each other, the reader can run only one now.
        let mut waiting = self.cannot_wait(&mut alone, session.may_share());
        let kept = match sharing.first().and_then(|task| task.shared_commit_budget) {
            Some(budget) => {
                let (kept, rolled_back, left) =
                    self.run_shared_commit(session, sharing, budget).await;
                alone.splice(..0, rolled_back);
                waiting.extend(left);
                kept
            }
            None => Some(session),
        };
        self.release_claims(waiting).await;
        self.run_in_order(kept, alone.into()).await
    }

    /// Removes the tasks that cannot wait in a chain, except one if there is no other task.
    fn cannot_wait(&self, tasks: &mut Vec<ClaimedTask>, may_chain_here: bool) -> Vec<ClaimedTask> {
        if tasks.len() < 2 {
            return Vec::new();
        }
        let (mut chain, mut rest): (Vec<ClaimedTask>, Vec<ClaimedTask>) =
            tasks.drain(..).partition(|task| may_chain_here && may_chain(task));
        if chain.is_empty() {
            chain.push(rest.remove(0));
        }
        for task in rest.iter().filter(|task| task.shared_commit_budget.is_none()) {
            self.batch_sizes.cool_down(task.claim.queue(), Instant::now());
        }
        tasks.append(&mut chain);
        rest
    }

    /// Runs the tasks one after another, each in its own transaction. Returns the session if it is
    /// clean.
    async fn run_in_order(
        &self,
        mut kept: Option<Session>,
        tasks: VecDeque<ClaimedTask>,
    ) -> Option<Session> {
        let plain = tasks.front().filter(|task| task.shared_commit_budget.is_none());
        let plain = plain.map(|task| (task.claim.queue().to_owned(), chain_budget(&task.claim)));
        let timer = Instant::now();
        let (mut opened, mut ran) = (None, 0);
        let mut waiting = Waiting { tasks, releases: Vec::new() };
        while let Some(task) = waiting.tasks.pop_front() {
            match kept.take() {
                Some(session) => {
                    ran += 1;
                    (kept, opened) = self.attempt(session, task, opened.take(), &mut waiting).await;
                }
                // The claim names the session that is closed. The reclaimer would terminate that
                // backend and not the backend that runs the task.
                None => self.release_claims([task]).await,
            }
        }
        if let Some((queue, budget)) = plain {
            self.batch_sizes.record(&queue, ran, (timer.elapsed(), budget), Instant::now());
        }
        let released = future::join_all(waiting.releases).map(drop);
        self.until_recorded(released, MAX_RECORD_WAIT).await;
        kept
    }

    /// Runs a shared commit. Returns the session if it is clean, the tasks that have to run alone,
    /// and the tasks that were not started.
    async fn run_shared_commit(
        &self,
        mut session: Session,
        batch: Vec<ClaimedTask>,
        budget: Duration,
    ) -> (Option<Session>, Vec<ClaimedTask>, Vec<ClaimedTask>) {
        let queue = batch[0].claim.queue().to_owned();
        let (tasks, timer) = (batch.len(), Instant::now());
        let result = self.executor.run_shared_commit(&mut session, batch, budget).await;
        self.context
            .metrics
            .shared_commit_finished(result.succeeded.len(), result.rolled_back.len());
        if result.slow {
            tracing::info!(
                queue,
                "shared commit was slow, tasks of this queue commit alone for a while"
            );
            self.batch_sizes.cool_down(&queue, Instant::now());
        } else {
            self.batch_sizes.record(&queue, tasks, (timer.elapsed(), budget), Instant::now());
        }
        // A task that has to run again, alone or by another worker, is counted when it starts
        // again.
        for (mut task, ran) in result.succeeded {
            let span = span(&task);
            self.started(&queue, &mut task);
            drop(task.in_flight_guard);
            let disposition = Disposition::Finished(Outcome::Succeeded);
            self.context.metrics.task_finished(&queue, disposition, ran, None);
            self.context.traces.attempt_ended(task.trace.take(), &task.claim, disposition, None);
            self.context.attempt_ended(&task.claim, disposition, ran);
            tracing::debug!(parent: &span, duration = ?ran, "succeeded");
        }
        for mut task in result.lost {
            let span = span(&task);
            self.started(&queue, &mut task);
            drop(task.in_flight_guard);
            self.context.metrics.task_finished(&queue, Disposition::Lost, timer.elapsed(), None);
            self.context.attempt_ended(&task.claim, Disposition::Lost, timer.elapsed());
            tracing::warn!(parent: &span, "claim lost, nothing was committed or recorded");
            self.context.claimer.reconcile();
        }
        (self.reusable(session).await, result.rolled_back, result.not_started)
    }

    /// Counts the start of an attempt.
    fn started(&self, queue: &str, task: &mut ClaimedTask) {
        self.context.metrics.task_started(queue, task.claim.waited());
        self.context.traces.attempt_started(task.trace.as_mut(), &task.claim);
    }

    async fn release_claims(&self, tasks: impl IntoIterator<Item = ClaimedTask>) {
        let release = |task| self.until_recorded(self.release(task), MAX_RECORD_WAIT);
        future::join_all(tasks.into_iter().map(release)).await;
    }

    fn release(&self, task: ClaimedTask) -> impl Future<Output = ()> + Send + use<> {
        let context = Arc::clone(&self.context);
        async move { release_unstarted(&context.control, &context.claimer, task).await }
    }

    /// Records a result. If that takes longer than `max_wait`, for example because a transaction that
    /// somebody leaves open has locked the run of the task, the reader runs other tasks meanwhile.
    async fn until_recorded(
        &self,
        record: impl Future<Output = ()> + Send + 'static,
        max_wait: Duration,
    ) {
        let leave = async {
            if max_wait > Duration::ZERO {
                sleep(max_wait).await;
            }
            self.executor.recorder.permit().await
        };
        // Results that wait for a lock can hold all permits: this one is recorded meanwhile.
        if let Either::Right((permit, record)) = select(Box::pin(record), pin!(leave)).await {
            self.recording.spawn(async move {
                record.await;
                drop(permit);
            });
        }
    }

    /// Opens a session that counts as one of the readers of the worker.
    async fn open_counted(&self, login: &Login) -> Result<Session, SessionError> {
        let (sessions, slot) = (&self.context.reader_sessions, self.slot());
        let heartbeats = sessions.heartbeats();
        match Session::open(login, &self.context.tasks).await {
            Ok(mut session) => {
                let watched = (!login.superuser_allowed && !login.host.is_in_target())
                    .then(|| session.user().to_owned());
                session.counted = Some(sessions.connected(slot, watched, heartbeats));
                Ok(session)
            }
            Err(error) => {
                sessions.failed(slot, &login.target.current_user(), &error);
                Err(error)
            }
        }
    }

    fn slot(&self) -> (&Arc<str>, u32) {
        (&self.login.profile, self.number_in_profile)
    }

    /// Opens a session. Returns `None` if the worker drains.
    async fn open(&self) -> Option<Session> {
        let name = self.context.worker.session_name(&format!("reader {}", self.number));
        let login = self.login.with_application_name(&name);
        let mut backoff = self.context.control.backoff();
        let mut failures = 0_u32;
        loop {
            let opened = async {
                self.context.claimer.connected().await;
                let session = self.open_counted(&login).await?;
                // The claimer claims tasks only at the server of the registration.
                let registered = self.context.control.registration().until_registered().await;
                if login.host.is_in_target() || session.server() == registered {
                    Ok(session)
                } else {
                    Err(SessionError::from(moved()))
                }
            };
            let opened = tokio::select! {
                () = self.context.shutdown.drain.cancelled() => return None,
                opened = opened => opened,
            };
            match opened {
                Ok(session) => {
                    if self.lost.swap(false, Ordering::Relaxed) {
                        self.context.metrics.reconnects.inc();
                    }
                    return Some(session);
                }
                Err(error) => {
                    let (reader, message) = (self.number, "could not open a session for tasks");
                    if failures == 0 {
                        tracing::warn!(reader, %error, message);
                    } else {
                        tracing::debug!(reader, %error, failures, message);
                    }
                    failures += 1;
                }
            }
            tokio::select! {
                () = self.context.shutdown.drain.cancelled() => return None,
                () = backoff.wait() => {}
            }
        }
    }

    /// Returns the session if it is clean.
    async fn reusable(&self, session: Session) -> Option<Session> {
        self.lost.fetch_or(session.is_closed(), Ordering::Relaxed);
        session.reusable().await
    }

    /// Waits for tasks. Returns `Some(None)` if the session is closed meanwhile or must not be used any
    /// more, and `None` if the worker drains.
    async fn wait_for_tasks(&self, session: &Session) -> Option<Option<Vec<ClaimedTask>>> {
        let counted = session.counted.as_ref();
        if counted.is_some_and(Connected::is_superuser) {
            return Some(None);
        }
        let (reply, mut answer) = oneshot::channel();
        let idle_reader = IdleReader {
            profile: Arc::clone(&self.login.profile),
            number_in_profile: self.number_in_profile,
            session: session.identity(),
            reply,
        };
        if self.idle_readers.send(idle_reader).is_err() {
            return None;
        }
        tokio::select! {
            biased;
            task = &mut answer => task.ok().map(Some),
            () = session.ended() => {
                self.lost.store(true, Ordering::Relaxed);
                Some(take_late_batch(answer))
            }
            // The next session of this login is refused.
            () = becomes_superuser(counted) => Some(take_late_batch(answer)),
            () = self.context.shutdown.drain.cancelled() => take_late_batch(answer).map(Some),
        }
    }

    /// Runs one attempt and records its result in the queue. Returns the session if it is clean, or
    /// if it runs the transaction of the first task of `waiting`, which is returned as well.
    async fn attempt(
        &self,
        mut session: Session,
        mut task: ClaimedTask,
        opened: Option<OpenedTransaction>,
        waiting: &mut Waiting,
    ) -> (Option<Session>, Option<OpenedTransaction>) {
        let (queue, shared) = (task.claim.queue().to_owned(), task.shared_commit_budget);
        let span = span(&task);
        self.started(&queue, &mut task);
        tracing::debug!(parent: &span, "started");
        let timer = Instant::now();
        if opened.is_some() {
            self.context.metrics.task_chained();
        }
        let (result, opened) = self.run_and_commit(&mut session, &mut task, opened, waiting).await;
        let ran = timer.elapsed();
        // The receipt is durable, so the reader need not wait until the queue knows it.
        let durable = matches!(result, AttemptResult::InTarget(_));
        let (context, executor) = (Arc::clone(&self.context), Arc::clone(&self.executor));
        let record = async move { conclude(&context, &executor, task, result, ran).await };
        let max_wait = if durable { Duration::ZERO } else { MAX_RECORD_WAIT };
        self.until_recorded(record, max_wait).await;
        if let Some(budget) = shared {
            self.batch_sizes.record(&queue, 1, (ran, budget), Instant::now());
        }
        match opened {
            Some(opened) => (Some(session), Some(opened)),
            None => (self.reusable(session).await, None),
        }
    }

    /// Runs the task, and begins the transaction of the first task of `waiting` with its COMMIT.
    /// Returns the result of the task, and the transaction of the next one.
    async fn run_and_commit(
        &self,
        session: &mut Session,
        task: &mut ClaimedTask,
        opened: Option<OpenedTransaction>,
        waiting: &mut Waiting,
    ) -> (AttemptResult, Option<OpenedTransaction>) {
        let queue = task.claim.queue().to_owned();
        let run = self.executor.run(session, task, opened);
        let mut ran = self.release_if_slow(&queue, waiting, run).await;
        let mut chain = session.may_share();
        loop {
            let executed = match ran {
                Ok(executed) => executed,
                Err(result) => break (result, None),
            };
            chain &= waiting.tasks.front().is_some_and(may_chain);
            let next = if chain { waiting.tasks.pop_front() } else { None };
            let claim = next.as_ref().map(|next| &*next.claim);
            let commit = self.executor.commit(session, task, executed, claim);
            let committed = self.release_if_slow(&queue, waiting, commit).await;
            if let Some(next) = next {
                waiting.tasks.push_front(next);
            }
            match committed {
                Committed::Ended(result, opened) => break (result, opened),
                Committed::RunAlone => {
                    chain = false;
                    let run = self.executor.run(session, task, None);
                    ran = self.release_if_slow(&queue, waiting, run).await;
                }
            }
        }
    }

    /// Resolves `step` of the running task. If it takes longer than the budget of the chain, releases
    /// the waiting tasks.
    async fn release_if_slow<T>(
        &self,
        queue: &str,
        waiting: &mut Waiting,
        step: impl Future<Output = T>,
    ) -> T {
        let mut step = pin!(step);
        let Some(budget) = waiting.tasks.front().map(|task| chain_budget(&task.claim)) else {
            return step.await;
        };
        if let Ok(done) = timeout(budget, &mut step).await {
            return done;
        }
        self.batch_sizes.cool_down(queue, Instant::now());
        // A release can wait for a lock, and the running task must not hold its own ones as long.
        let releases = waiting.tasks.drain(..).map(|task| self.recording.spawn(self.release(task)));
        waiting.releases.extend(releases);
        step.await
    }
}

/// Records the result of an attempt in the queue, and reports it.
async fn conclude(
    context: &Context,
    executor: &Executor,
    mut task: ClaimedTask,
    result: AttemptResult,
    ran: Duration,
) {
    let span = span(&task);
    let queue = task.claim.queue().to_owned();
    let sqlstate = result.sqlstate().map(str::to_owned);
    let in_target = matches!(result, AttemptResult::InTarget(_));
    let disposition = finish(executor, &task.claim, result).await;
    drop(task.in_flight_guard);
    context.metrics.task_finished(&queue, disposition, ran, sqlstate.as_deref());
    let (trace, sqlstate) = (task.trace.take(), sqlstate.as_deref());
    context.traces.attempt_ended(trace, &task.claim, disposition, sqlstate);
    context.attempt_ended(&task.claim, disposition, ran);
    let _entered = span.enter();
    match disposition {
        Disposition::Finished(Outcome::Succeeded) => tracing::debug!(duration = ?ran, "succeeded"),
        Disposition::Finished(outcome) => tracing::warn!(%outcome, sqlstate, "attempt failed"),
        Disposition::Retried(outcome) => {
            tracing::info!(%outcome, sqlstate, "attempt failed, will be retried");
        }
        Disposition::Released => tracing::info!("released"),
        Disposition::Lost => {
            let message = if in_target {
                "claim lost after the commit in the target; the receipt shows the success"
            } else {
                "claim lost, nothing was committed or recorded"
            };
            tracing::warn!("{message}");
            context.claimer.reconcile();
        }
    }
}

/// Returns the span for log lines about a task.
fn span(task: &ClaimedTask) -> tracing::Span {
    let claim = &task.claim;
    let traced = task.trace.as_ref().map(|trace| trace.trace_id());
    let trace_id = traced.as_deref().or_else(|| claim.traceparent().map(Traceparent::trace_id));
    tracing::info_span!(
        "task", id = %claim.id(), attempt = claim.attempt(), queue = claim.queue(), name = claim.name(), trace_id
    )
}

async fn becomes_superuser(session: Option<&Connected>) {
    match session {
        Some(session) => session.becomes_superuser().await,
        None => std::future::pending().await,
    }
}

/// Returns the tasks that the claimer assigned while the reader stopped waiting. They are claimed
/// already, so the reader has to run them, even if their first statement then fails on a closed
/// session.
fn take_late_batch(mut answer: oneshot::Receiver<Vec<ClaimedTask>>) -> Option<Vec<ClaimedTask>> {
    answer.close();
    answer.try_recv().ok()
}
