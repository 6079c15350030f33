//! One trial of a cell: brings a task to the moment, injects and heals the fault, and waits until
//! the fleet has finished the task.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use proxy::{Cut, FaultAction, MessageMatch, Proxy};
use tokio::time::{sleep, timeout};

use super::cell::{Mode, Moment, Place};
use super::environment::{Environment, Victim};
use super::failover::disconnect_standby;
use super::fault::Fault;
use super::injection::{heal, inject};
use super::resources::pooler::Pooler;
use super::test_task::TestTask;
use super::worker_slot::WorkerSlot;
use crate::session::Session;

/// Time limit for a task to reach the moment.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Number of quick tasks that must succeed during a fault that the fleet tolerates.
const BYSTANDERS: usize = 20;

/// Time that suffices to detect the fault: longer than the orphan timeout and than the keepalive
/// time after which a cut connection is noticed.
const DETECTION_TIME: Duration = Duration::from_secs(8);

/// Runs a trial. Returns the time from the fault, or from the end of an outage of the database,
/// until all tasks have ended; `None` if a task was stuck.
pub(crate) async fn run(environment: &mut Environment<'_>) -> Result<Option<Duration>> {
    environment.prepare().await?;
    environment.ready().await?;
    match environment.cell.moment {
        Moment::Enqueue => during_enqueue(environment).await,
        Moment::Scheduled | Moment::Idle => while_idle(environment).await,
        _ => during_execution(environment).await,
    }
}

/// Runs a trial in which the fault hits a claimed task.
async fn during_execution(environment: &mut Environment<'_>) -> Result<Option<Duration>> {
    let fault = environment.cell.fault;
    let mut test_tasks = vec![environment.test_task()];
    if fault == Fault::Deadlock {
        test_tasks.push(environment.test_task());
    }
    for test_task in &test_tasks {
        let hold = format!("SELECT /* chaos.hold */ pg_advisory_lock({})", test_task.number);
        environment.holder.execute(&hold).await?;
    }
    if environment.cell.may_be_missing() {
        disconnect_standby(environment).await?;
    }
    arm(environment);
    for test_task in &test_tasks {
        environment.enqueue(*test_task).await?;
    }
    let victim = until_there(environment, &test_tasks).await?;
    let begun = Instant::now();
    let injection = inject(environment, victim).await?;
    let mut from = Instant::now().max(begun);
    let early = fault.is_tolerated()
        || matches!(
            fault,
            Fault::DataDiskFull
                | Fault::TempDiskFull
                | Fault::TasksLocked
                | Fault::DiskFrozen
                | Fault::StandbyMissing
                | Fault::Serialization
        )
        || fault.is_caused_by_task();
    let passes = environment.cell.held_message_arrives();
    if early {
        release(environment, passes).await;
        from = Instant::now();
    }
    if fault.is_tolerated() {
        for _ in 0..BYSTANDERS {
            let quick = environment.bystander();
            environment.enqueue(quick).await?;
            test_tasks.push(quick);
        }
    }
    let ended_under_it = last(environment, &test_tasks, begun).await;
    heal(environment, injection).await?;
    if fault.blocks_all_workers() {
        from = Instant::now();
    }
    if !early {
        release(environment, passes).await;
        if matches!(fault, Fault::Drain | Fault::Sessions(_) | Fault::WorkersLocked) {
            from = Instant::now();
        }
    }
    gone(environment, victim).await?;
    finished(environment, &test_tasks, from, ended_under_it).await
}

/// Runs a trial in which the fault hits a fleet without a running task.
async fn while_idle(environment: &mut Environment<'_>) -> Result<Option<Duration>> {
    let fault = environment.cell.fault;
    let victim = Victim::default();
    let mut test_tasks = Vec::new();
    let scheduled = environment.cell.moment == Moment::Scheduled;
    if scheduled {
        let test_task = environment.test_task();
        environment.enqueue(test_task).await?;
        test_tasks.push(test_task);
    }
    let begun = Instant::now();
    let injection = inject(environment, victim).await?;
    let mut from = Instant::now();
    let count = if fault.is_tolerated() { BYSTANDERS } else { 1 };
    let under = !fault.makes_database_unavailable();
    if under && !scheduled {
        for _ in 0..count {
            let test_task = environment.test_task();
            environment.enqueue(test_task).await?;
            test_tasks.push(test_task);
        }
    }
    let ended_under_it = last(environment, &test_tasks, begun).await;
    heal(environment, injection).await?;
    if !under && !scheduled {
        let test_task = environment.test_task();
        environment.enqueue(test_task).await?;
        test_tasks.push(test_task);
    }
    if fault.blocks_all_workers() {
        from = Instant::now();
    }
    gone(environment, victim).await?;
    finished(environment, &test_tasks, from, ended_under_it).await
}

/// Runs a trial in which the fault hits the client that enqueues.
async fn during_enqueue(environment: &mut Environment<'_>) -> Result<Option<Duration>> {
    let fault = environment.cell.fault;
    let test_task = environment.test_task();
    let url = environment.test_bed.cluster.url(&environment.database);
    let proxy = Proxy::start(&url).await?;
    let mut url = proxy.url(&url);
    if fault.needs_pooler() {
        let pooler = Pooler::start(&environment.test_bed.scratch, &url).await?;
        url = pooler.url(&url);
        environment.pooler = Some(pooler);
    }
    let before = matches!(
        fault,
        Fault::DataDiskFull
            | Fault::WalDiskFull
            | Fault::TasksLocked
            | Fault::LocksExhausted
            | Fault::ReadOnly
            | Fault::DiskFrozen
            | Fault::PoolerPaused
            | Fault::StandbyMissing
    );
    let act = if let Fault::Message(cut) = fault {
        FaultAction::Cut(cut)
    } else {
        FaultAction::HoldAnswer
    };
    if !before {
        proxy.arm(MessageMatch::Text("chaos.enqueue".to_owned()), act);
    }
    let injection = if before { Some(inject(environment, Victim::default()).await?) } else { None };
    let submitted = async { (submit(&url, test_task).await, Instant::now()) };
    let broken = async {
        let injection = match injection {
            Some(injection) => injection,
            None => {
                timeout(TIMEOUT, proxy.fired()).await.context("no enqueue was sent")?;
                inject(environment, Victim::default()).await?
            }
        };
        sleep(fault.duration(environment.short)).await;
        heal(environment, injection).await?;
        // The answer is lost, unless the connection survives the fault.
        proxy.release(fault == Fault::PoolerReloaded);
        anyhow::Ok(Instant::now())
    };
    let ((submitted, answered), healed) = tokio::join!(submitted, broken);
    let (healed, ()) = (healed?, submitted?);
    proxy.disarm();
    environment.make_due(test_task).await?;
    let bystander = environment.bystander();
    environment.enqueue(bystander).await?;
    let deadline = answered + fault.bound();
    let ended = environment.until_ended(&[test_task, bystander], deadline).await;
    Ok(ended.map(|_| answered.saturating_duration_since(healed)))
}

/// Enqueues like a client that wants the task exactly once: with a key, until it has a reply.
async fn submit(url: &str, test_task: TestTask) -> Result<()> {
    let begun = Instant::now();
    loop {
        let reported = match Session::open(url).await {
            Ok(session) => session.execute(&test_task.enqueue()).await,
            Err(error) => Err(error),
        };
        match reported {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > TIMEOUT => return Err(error),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Prepares the proxies to hold a task, or to cut its session, at a message.
fn arm(environment: &Environment<'_>) {
    let transaction = environment.cell.mode == Mode::Transaction;
    let act = |otherwise| match environment.cell.fault {
        Fault::Message(cut) => FaultAction::Cut(cut),
        _ => otherwise,
    };
    let before_commit =
        matches!(environment.cell.fault, Fault::Message(Cut::Before | Cut::UnseenBefore));
    let (on_tasks, text, act) = match environment.cell.moment {
        Moment::Claimed if transaction => (true, "worker.begin", act(FaultAction::Hold)),
        Moment::Claimed => (true, "worker.set_task_settings", act(FaultAction::Hold)),
        Moment::Completing if transaction && before_commit => {
            (true, "worker.commit", act(FaultAction::Hold))
        }
        Moment::Completing if !transaction => (false, "queue.complete", act(FaultAction::Hold)),
        Moment::CommitSent if transaction => (true, "worker.commit", act(FaultAction::HoldAnswer)),
        Moment::CommitSent => (false, "queue.complete", act(FaultAction::HoldAnswer)),
        Moment::Recording => (false, "queue.complete", act(FaultAction::Hold)),
        _ => return,
    };
    for proxies in
        environment.worker_slots.iter().filter_map(|worker_slot| worker_slot.proxies.as_ref())
    {
        let way = if on_tasks { &proxies.tasks } else { &proxies.control };
        way.arm(MessageMatch::Text(text.to_owned()), act);
    }
}

/// Waits until the tasks have reached the moment. Returns the worker and the backend of the first
/// task.
async fn until_there(environment: &mut Environment<'_>, test_tasks: &[TestTask]) -> Result<Victim> {
    let (fault, moment, mode) =
        (environment.cell.fault, environment.cell.moment, environment.cell.mode);
    if fault.is_caused_by_task() && fault != Fault::Deadlock {
        return Ok(Victim::default());
    }
    let message = matches!(fault, Fault::Message(_));
    match moment {
        Moment::Executing => return environment.until_held(test_tasks).await,
        Moment::Completing if mode == Mode::Transaction && !message => {
            return environment.until_held(test_tasks).await;
        }
        Moment::Heartbeat => {
            let victim = environment.until_held(test_tasks).await?;
            let proxies = environment.worker_slots[victim.worker_slot]
                .proxies
                .as_ref()
                .context("no proxies")?;
            let act = if let Fault::Message(cut) = fault {
                FaultAction::Cut(cut)
            } else {
                FaultAction::Hold
            };
            proxies.control.arm(MessageMatch::Text("queue.heartbeat".to_owned()), act);
            timeout(TIMEOUT, proxies.control.fired()).await.context("no heartbeat")?;
            return Ok(victim);
        }
        _ => {}
    }
    let worker_slot = timeout(TIMEOUT, triggered_slot(environment))
        .await
        .context("no proxy saw the message at which the fault should be injected")??;
    for (n, proxies) in
        environment.worker_slots.iter().map(|worker_slot| worker_slot.proxies.as_ref()).enumerate()
    {
        if let Some(proxies) = proxies.filter(|_| n != worker_slot) {
            proxies.tasks.disarm();
            proxies.control.disarm();
        }
    }
    if moment == Moment::CommitSent && !message && environment.cell.place == Place::Target {
        // Nobody records the success until the worker has the reply.
        environment.until_effective(test_tasks[0]).await?;
    } else if moment == Moment::CommitSent && !message {
        // The proxy holds the reply to the message, and the server executes the message.
        let ended = environment.until_ended(test_tasks, Instant::now() + TIMEOUT).await;
        ensure!(ended.is_some(), "a sent commit was not executed");
    }
    Ok(Victim { worker_slot, backend: environment.backend(test_tasks[0]).await? })
}

/// Returns the worker slot whose trap was triggered.
async fn triggered_slot(environment: &Environment<'_>) -> Result<usize> {
    async fn closed(worker_slot: &WorkerSlot) -> Result<()> {
        let proxies = worker_slot.proxies.as_ref().context("no proxies")?;
        tokio::select! {
            () = proxies.tasks.fired() => {}
            () = proxies.control.fired() => {}
        }
        Ok(())
    }
    let [one, other] = &environment.worker_slots[..] else {
        anyhow::bail!("expected two worker slots")
    };
    tokio::select! {
        closed = closed(one) => closed.map(|()| 0),
        closed = closed(other) => closed.map(|()| 1),
    }
}

/// Waits for the duration of the fault, or until the fleet has worked around the fault. Returns
/// when the tasks finished, if they have.
async fn last(
    environment: &mut Environment<'_>,
    test_tasks: &[TestTask],
    begun: Instant,
) -> Option<Instant> {
    let fault = environment.cell.fault;
    let while_idle = environment.cell.moment == Moment::Idle;
    let fault_duration = match fault.duration(environment.short) {
        // Another worker runs the task at once. Wait nevertheless until the fault is detected.
        _ if while_idle && fault.other_worker_can_take_over() => DETECTION_TIME,
        fault_duration => fault_duration,
    };
    let ended = match test_tasks {
        [] => None,
        // A frozen server does not reply.
        _ if matches!(fault, Fault::ServerFrozen | Fault::BothFrozen) => None,
        _ => environment.until_ended(test_tasks, begun + fault_duration).await,
    };
    let min_duration = match fault {
        Fault::PacketLoss | Fault::SlowLink | Fault::Latency => DETECTION_TIME,
        _ if fault.other_worker_can_take_over() && !while_idle => Duration::ZERO,
        _ => fault_duration,
    };
    sleep(min_duration.saturating_sub(begun.elapsed())).await;
    ended
}

/// Releases everything that holds the tasks.
async fn release(environment: &mut Environment<'_>, passes: bool) {
    for proxies in
        environment.worker_slots.iter().filter_map(|worker_slot| worker_slot.proxies.as_ref())
    {
        for way in [&proxies.tasks, &proxies.control] {
            way.release(passes);
            way.disarm();
        }
    }
    // After a server outage the locks are gone too.
    let unlock = "SELECT /* chaos.release */ pg_advisory_unlock_all()";
    let _ = environment.holder.execute(unlock).await;
}

/// Checks that a worker asked to stop has ended successfully.
async fn gone(environment: &mut Environment<'_>, victim: Victim) -> Result<()> {
    if matches!(environment.cell.fault, Fault::Drain | Fault::ShutdownTimeout) {
        let worker_slot = &mut environment.worker_slots[victim.worker_slot];
        let tail = worker_slot.tail();
        let status = worker_slot.until_ended().await?;
        ensure!(status.success(), "a worker asked to stop ended with {status}{tail}");
    }
    Ok(())
}

/// Waits until the tasks and a newly enqueued quick task have finished.
async fn finished(
    environment: &mut Environment<'_>,
    test_tasks: &[TestTask],
    from: Instant,
    ended_under_it: Option<Instant>,
) -> Result<Option<Duration>> {
    let bound = environment.cell.fault.bound();
    let deadline = from.max(Instant::now()) + bound;
    let bystander = environment.bystander();
    environment.enqueue(bystander).await?;
    let awaited = if environment.cell.may_be_missing() { &[] } else { test_tasks };
    let ended = match ended_under_it {
        Some(ended) => Some(ended),
        None => environment.until_ended(awaited, deadline).await,
    };
    let quick = environment.until_ended(&[bystander], deadline).await;
    Ok(ended.and_then(|ended| quick.map(|_| ended.saturating_duration_since(from))))
}
