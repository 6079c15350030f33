//! One try of a cell: a task is brought to the moment, the fault comes and goes, and the fleet has to
//! bring the task to its end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use proxy::{Cut, FaultAction, MessageMatch, Proxy};
use tokio::time::{sleep, timeout};

use super::cell::{Fault, Mode, Moment};
use super::environment::{Environment, Victim};
use super::injection::{heal, inject};
use super::session::Session;
use super::test_task::TestTask;
use super::worker_slot::WorkerSlot;

/// How long a task may take to get where it is to be hit.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Quick tasks that have to get through while the fault lasts, where it is to be borne.
const BYSTANDERS: usize = 20;

/// Longer than the orphan timeout, and than keepalives take to find a cut.
const DETECTION_TIME: Duration = Duration::from_secs(8);

/// From the fault, or from where it gave the database back, to the end of the tasks; `None`: they
/// were stuck.
pub(crate) async fn run(environment: &mut Environment<'_>) -> Result<Option<Duration>> {
    environment.prepare().await?;
    environment.ready().await?;
    match environment.cell.moment {
        Moment::Enqueue => during_enqueue(environment).await,
        Moment::Idle => while_idle(environment).await,
        _ => during_execution(environment).await,
    }
}

/// The fault meets a task that somebody has.
async fn during_execution(environment: &mut Environment<'_>) -> Result<Option<Duration>> {
    let fault = environment.cell.fault;
    let mut test_tasks = vec![environment.test_task()];
    if fault == Fault::Deadlock {
        test_tasks.push(environment.test_task());
    }
    for test_task in &test_tasks {
        let hold = format!("/* chaos.hold */ SELECT pg_advisory_lock({})", test_task.number);
        environment.holder.execute(&hold).await?;
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
            Fault::DataDiskFull | Fault::TasksLocked | Fault::StandbyMissing | Fault::Serialization
        )
        || fault.is_caused_by_task();
    // A dead worker's message does not arrive any more.
    let passes = matches!(fault, Fault::WorkerStopped | Fault::Drain | Fault::Latency);
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

/// The fault meets a fleet without work.
async fn while_idle(environment: &mut Environment<'_>) -> Result<Option<Duration>> {
    let fault = environment.cell.fault;
    let begun = Instant::now();
    let victim = Victim::default();
    let injection = inject(environment, victim).await?;
    let mut from = Instant::now();
    let mut test_tasks = Vec::new();
    let count = if fault.is_tolerated() { BYSTANDERS } else { 1 };
    let under = !fault.makes_database_unavailable();
    if under {
        for _ in 0..count {
            let test_task = environment.test_task();
            environment.enqueue(test_task).await?;
            test_tasks.push(test_task);
        }
    }
    let ended_under_it = last(environment, &test_tasks, begun).await;
    heal(environment, injection).await?;
    if !under {
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

/// The fault meets the client that submits.
async fn during_enqueue(environment: &mut Environment<'_>) -> Result<Option<Duration>> {
    let fault = environment.cell.fault;
    let test_task = environment.test_task();
    let url = environment.test_bed.cluster.url(&environment.database);
    let proxy = Proxy::start(&url).await?;
    let url = proxy.url(&url);
    let before = matches!(
        fault,
        Fault::DataDiskFull | Fault::WalDiskFull | Fault::TasksLocked | Fault::StandbyMissing
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
                timeout(TIMEOUT, proxy.fired()).await.context("nothing was submitted")?;
                inject(environment, Victim::default()).await?
            }
        };
        sleep(fault.duration(environment.short)).await;
        heal(environment, injection).await?;
        proxy.release(false);
        anyhow::Ok(Instant::now())
    };
    let ((submitted, answered), healed) = tokio::join!(submitted, broken);
    let (healed, ()) = (healed?, submitted?);
    proxy.disarm();
    environment.reconnect().await;
    let bystander = environment.bystander();
    environment.enqueue(bystander).await?;
    let deadline = answered + fault.bound();
    let ended = environment.until_ended(&[test_task, bystander], deadline).await;
    Ok(ended.map(|_| answered.saturating_duration_since(healed)))
}

/// As a client does that wants its task submitted once: with a key, until there is an answer.
async fn submit(url: &str, test_task: TestTask) -> Result<()> {
    let begun = Instant::now();
    loop {
        let reply = match Session::open(url).await {
            Ok(session) => session.execute(&test_task.enqueue(true)).await,
            Err(error) => Err(error),
        };
        match reply {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > TIMEOUT => return Err(error),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Sets the traps that hold a task, or cut its session, at a message.
fn arm(environment: &Environment<'_>) {
    let transaction = environment.cell.mode == Mode::Transaction;
    let act = |otherwise| match environment.cell.fault {
        Fault::Message(cut) => FaultAction::Cut(cut),
        _ => otherwise,
    };
    let before_commit = environment.cell.fault == Fault::Message(Cut::Before);
    let (on_tasks, text, act) = match environment.cell.moment {
        Moment::Claimed if transaction => (true, "worker.begin", act(FaultAction::Hold)),
        Moment::Claimed => (true, "worker.set_task_settings", act(FaultAction::Hold)),
        Moment::Completing if transaction && before_commit => {
            (true, "worker.commit", act(FaultAction::Hold))
        }
        Moment::Completing if !transaction => (false, "queue.complete", act(FaultAction::Hold)),
        Moment::CommitSent if transaction => (true, "worker.commit", act(FaultAction::HoldAnswer)),
        Moment::CommitSent => (false, "queue.complete", act(FaultAction::HoldAnswer)),
        _ => return,
    };
    for proxies in
        environment.worker_slots.iter().filter_map(|worker_slot| worker_slot.proxies.as_ref())
    {
        let way = if on_tasks { &proxies.tasks } else { &proxies.control };
        way.arm(MessageMatch::Text(text.to_owned()), act);
    }
}

/// Once the tasks are where they are to be hit: who has the first.
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
            let proxies =
                environment.worker_slots[victim.worker_slot].proxies.as_ref().context("no way")?;
            let act = if let Fault::Message(cut) = fault {
                FaultAction::Cut(cut)
            } else {
                FaultAction::Hold
            };
            proxies.control.arm(MessageMatch::Text("queue.heartbeat".to_owned()), act);
            timeout(TIMEOUT, proxies.control.fired()).await.context("no beat")?;
            return Ok(victim);
        }
        _ => {}
    }
    let worker_slot =
        timeout(TIMEOUT, triggered_slot(environment)).await.context("no trap has closed")??;
    for (n, proxies) in
        environment.worker_slots.iter().map(|worker_slot| worker_slot.proxies.as_ref()).enumerate()
    {
        if let Some(proxies) = proxies.filter(|_| n != worker_slot) {
            proxies.tasks.disarm();
            proxies.control.disarm();
        }
    }
    if moment == Moment::CommitSent && !message {
        // Its answer is held: it is carried out.
        let ended = environment.until_ended(test_tasks, Instant::now() + TIMEOUT).await;
        ensure!(ended.is_some(), "a commit that was sent is not carried out");
    }
    Ok(Victim { worker_slot, backend: environment.backend(test_tasks[0]).await? })
}

/// The worker_slot whose trap has closed.
async fn triggered_slot(environment: &Environment<'_>) -> Result<usize> {
    async fn closed(worker_slot: &WorkerSlot) -> Result<()> {
        let proxies = worker_slot.proxies.as_ref().context("no way")?;
        tokio::select! {
            () = proxies.tasks.fired() => {}
            () = proxies.control.fired() => {}
        }
        Ok(())
    }
    let [one, other] = &environment.worker_slots[..] else { anyhow::bail!("not two worker_slots") };
    tokio::select! {
        closed = closed(one) => closed.map(|()| 0),
        closed = closed(other) => closed.map(|()| 1),
    }
}

/// Lets the fault last: for its time, or until it has been got around. When the tasks had ended, if
/// they have.
async fn last(
    environment: &mut Environment<'_>,
    test_tasks: &[TestTask],
    begun: Instant,
) -> Option<Instant> {
    let fault = environment.cell.fault;
    let while_idle = environment.cell.moment == Moment::Idle;
    let most = match fault.duration(environment.short) {
        // Somebody else runs the task at once; this long, so that all notice.
        _ if while_idle && fault.other_worker_can_take_over() => DETECTION_TIME,
        most => most,
    };
    let ended = match test_tasks {
        [] => None,
        // It answers nobody.
        _ if fault == Fault::ServerFrozen => None,
        _ => environment.until_ended(test_tasks, begun + most).await,
    };
    let least = match fault {
        Fault::PacketLoss | Fault::SlowLink | Fault::Latency => DETECTION_TIME,
        _ if fault.other_worker_can_take_over() && !while_idle => Duration::ZERO,
        _ => most,
    };
    sleep(least.saturating_sub(begun.elapsed())).await;
    ended
}

/// Nothing holds the tasks any more.
async fn release(environment: &mut Environment<'_>, passes: bool) {
    for proxies in
        environment.worker_slots.iter().filter_map(|worker_slot| worker_slot.proxies.as_ref())
    {
        for way in [&proxies.tasks, &proxies.control] {
            way.release(passes);
            way.disarm();
        }
    }
    // If the server was away, so are the locks.
    let unlock = "/* chaos.release */ SELECT pg_advisory_unlock_all()";
    let _ = environment.holder.execute(unlock).await;
}

/// A worker that was told to end has done so, and well.
async fn gone(environment: &mut Environment<'_>, victim: Victim) -> Result<()> {
    if matches!(environment.cell.fault, Fault::Drain | Fault::ShutdownTimeout) {
        let worker_slot = &mut environment.worker_slots[victim.worker_slot];
        let tail = worker_slot.tail();
        let status = worker_slot.until_ended().await?;
        ensure!(status.success(), "a worker that was told to end ended with {status}{tail}");
    }
    Ok(())
}

/// Waits for the ends of the tasks, and of a quick one that comes now.
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
    let ended = match ended_under_it {
        Some(ended) => Some(ended),
        None => environment.until_ended(test_tasks, deadline).await,
    };
    let quick = environment.until_ended(&[bystander], deadline).await;
    Ok(ended.and_then(|ended| quick.map(|_| ended.saturating_duration_since(from))))
}
