//! One try of a cell: a task is brought to the moment, the fault comes and goes, and the fleet has to
//! bring the task to its end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use proxy::{Act, At, Cut, Proxy};
use tokio::time::{sleep, timeout};

use super::cell::{Fault, Mode, Moment};
use super::injury::{heal, inject};
use super::seat::Seat;
use super::session::Session;
use super::site::{Site, Victim};
use super::subject::Subject;

/// How long a task may take to get where it is to be hit.
const PATIENCE: Duration = Duration::from_secs(40);

/// Quick tasks that have to get through while the fault lasts, where it is to be borne.
const UNDER_IT: usize = 20;

/// Longer than the orphan timeout, and than keepalives take to find a cut.
const NOTICED: Duration = Duration::from_secs(8);

/// From the fault, or from where it gave the database back, to the end of the tasks; `None`: they
/// were stuck.
pub(crate) async fn one(site: &mut Site<'_>) -> Result<Option<Duration>> {
    site.prepare().await?;
    site.ready().await?;
    match site.cell.moment {
        Moment::Enqueue => while_submitted(site).await,
        Moment::Idle => at_rest(site).await,
        _ => at_work(site).await,
    }
}

/// The fault meets a task that somebody has.
async fn at_work(site: &mut Site<'_>) -> Result<Option<Duration>> {
    let fault = site.cell.fault;
    let mut subjects = vec![site.subject()];
    if fault == Fault::Deadlock {
        subjects.push(site.subject());
    }
    for subject in &subjects {
        let hold = format!("/* chaos.hold */ SELECT pg_advisory_lock({})", subject.number);
        site.holder.execute(&hold).await?;
    }
    arm(site);
    for subject in &subjects {
        site.enqueue(*subject).await?;
    }
    let victim = until_there(site, &subjects).await?;
    let begun = Instant::now();
    let injury = inject(site, victim).await?;
    let mut from = Instant::now().max(begun);
    let early = fault.is_borne()
        || matches!(
            fault,
            Fault::DataDiskFull | Fault::TasksLocked | Fault::StandbyMissing | Fault::Serialization
        )
        || fault.is_the_task();
    // A dead worker's message does not arrive any more.
    let passes = matches!(fault, Fault::WorkerStopped | Fault::Drain | Fault::Latency);
    if early {
        release(site, passes).await;
        from = Instant::now();
    }
    if fault.is_borne() {
        for _ in 0..UNDER_IT {
            let quick = site.bystander();
            site.enqueue(quick).await?;
            subjects.push(quick);
        }
    }
    let ended_under_it = last(site, &subjects, begun).await;
    heal(site, injury).await?;
    if fault.keeps_all_out() {
        from = Instant::now();
    }
    if !early {
        release(site, passes).await;
        if matches!(fault, Fault::Drain | Fault::Sessions(_) | Fault::WorkersLocked) {
            from = Instant::now();
        }
    }
    gone(site, victim).await?;
    finished(site, &subjects, from, ended_under_it).await
}

/// The fault meets a fleet without work.
async fn at_rest(site: &mut Site<'_>) -> Result<Option<Duration>> {
    let fault = site.cell.fault;
    let begun = Instant::now();
    let victim = Victim::default();
    let injury = inject(site, victim).await?;
    let mut from = Instant::now();
    let mut subjects = Vec::new();
    let count = if fault.is_borne() { UNDER_IT } else { 1 };
    let under = !fault.takes_the_database();
    if under {
        for _ in 0..count {
            let subject = site.subject();
            site.enqueue(subject).await?;
            subjects.push(subject);
        }
    }
    let ended_under_it = last(site, &subjects, begun).await;
    heal(site, injury).await?;
    if !under {
        let subject = site.subject();
        site.enqueue(subject).await?;
        subjects.push(subject);
    }
    if fault.keeps_all_out() {
        from = Instant::now();
    }
    gone(site, victim).await?;
    finished(site, &subjects, from, ended_under_it).await
}

/// The fault meets the client that submits.
async fn while_submitted(site: &mut Site<'_>) -> Result<Option<Duration>> {
    let fault = site.cell.fault;
    let subject = site.subject();
    let url = site.ground.cluster.url(&site.database);
    let proxy = Proxy::start(&url).await?;
    let url = proxy.url(&url);
    let before = matches!(
        fault,
        Fault::DataDiskFull | Fault::WalDiskFull | Fault::TasksLocked | Fault::StandbyMissing
    );
    let act = if let Fault::Message(cut) = fault { Act::Cut(cut) } else { Act::HoldAnswer };
    if !before {
        proxy.arm(At::Text("chaos.enqueue".to_owned()), act);
    }
    let injury = if before { Some(inject(site, Victim::default()).await?) } else { None };
    let submitted = async { (submit(&url, subject).await, Instant::now()) };
    let broken = async {
        let injury = match injury {
            Some(injury) => injury,
            None => {
                timeout(PATIENCE, proxy.fired()).await.context("nothing was submitted")?;
                inject(site, Victim::default()).await?
            }
        };
        sleep(fault.lasts(site.short)).await;
        heal(site, injury).await?;
        proxy.release(false);
        anyhow::Ok(Instant::now())
    };
    let ((submitted, answered), healed) = tokio::join!(submitted, broken);
    let (healed, ()) = (healed?, submitted?);
    proxy.disarm();
    site.mend().await;
    let bystander = site.bystander();
    site.enqueue(bystander).await?;
    let deadline = answered + fault.bound();
    let ended = site.until_ended(&[subject, bystander], deadline).await;
    Ok(ended.map(|_| answered.saturating_duration_since(healed)))
}

/// As a client does that wants its task submitted once: with a key, until there is an answer.
async fn submit(url: &str, subject: Subject) -> Result<()> {
    let begun = Instant::now();
    loop {
        let told = match Session::open(url).await {
            Ok(session) => session.execute(&subject.enqueue(true)).await,
            Err(error) => Err(error),
        };
        match told {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > PATIENCE => return Err(error),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Sets the traps that hold a task, or cut its session, at a message.
fn arm(site: &Site<'_>) {
    let transaction = site.cell.mode == Mode::Transaction;
    let act = |otherwise| match site.cell.fault {
        Fault::Message(cut) => Act::Cut(cut),
        _ => otherwise,
    };
    let before_commit = site.cell.fault == Fault::Message(Cut::Before);
    let (on_tasks, text, act) = match site.cell.moment {
        Moment::Claimed if transaction => (true, "worker.begin", act(Act::Hold)),
        Moment::Claimed => (true, "worker.announce", act(Act::Hold)),
        Moment::AtEnd if transaction && before_commit => (true, "worker.commit", act(Act::Hold)),
        Moment::AtEnd if !transaction => (false, "queue.complete", act(Act::Hold)),
        Moment::CommitSent if transaction => (true, "worker.commit", act(Act::HoldAnswer)),
        Moment::CommitSent => (false, "queue.complete", act(Act::HoldAnswer)),
        _ => return,
    };
    for ways in site.seats.iter().filter_map(|seat| seat.ways.as_ref()) {
        let way = if on_tasks { &ways.tasks } else { &ways.control };
        way.arm(At::Text(text.to_owned()), act);
    }
}

/// Once the tasks are where they are to be hit: who has the first.
async fn until_there(site: &mut Site<'_>, subjects: &[Subject]) -> Result<Victim> {
    let (fault, moment, mode) = (site.cell.fault, site.cell.moment, site.cell.mode);
    if fault.is_the_task() && fault != Fault::Deadlock {
        return Ok(Victim::default());
    }
    let message = matches!(fault, Fault::Message(_));
    match moment {
        Moment::Executing => return site.until_held(subjects).await,
        Moment::AtEnd if mode == Mode::Transaction && !message => {
            return site.until_held(subjects).await;
        }
        Moment::Beat => {
            let victim = site.until_held(subjects).await?;
            let ways = site.seats[victim.seat].ways.as_ref().context("no way")?;
            let act = if let Fault::Message(cut) = fault { Act::Cut(cut) } else { Act::Hold };
            ways.control.arm(At::Text("queue.beat".to_owned()), act);
            timeout(PATIENCE, ways.control.fired()).await.context("no beat")?;
            return Ok(victim);
        }
        _ => {}
    }
    let seat = timeout(PATIENCE, trapped(site)).await.context("no trap has closed")??;
    for (n, ways) in site.seats.iter().map(|seat| seat.ways.as_ref()).enumerate() {
        if let Some(ways) = ways.filter(|_| n != seat) {
            ways.tasks.disarm();
            ways.control.disarm();
        }
    }
    if moment == Moment::CommitSent && !message {
        // Its answer is held: it is carried out.
        let ended = site.until_ended(subjects, Instant::now() + PATIENCE).await;
        ensure!(ended.is_some(), "a commit that was sent is not carried out");
    }
    Ok(Victim { seat, backend: site.backend(subjects[0]).await? })
}

/// The seat whose trap has closed.
async fn trapped(site: &Site<'_>) -> Result<usize> {
    async fn closed(seat: &Seat) -> Result<()> {
        let ways = seat.ways.as_ref().context("no way")?;
        tokio::select! {
            () = ways.tasks.fired() => {}
            () = ways.control.fired() => {}
        }
        Ok(())
    }
    let [one, other] = &site.seats[..] else { anyhow::bail!("not two seats") };
    tokio::select! {
        closed = closed(one) => closed.map(|()| 0),
        closed = closed(other) => closed.map(|()| 1),
    }
}

/// Lets the fault last: for its time, or until it has been got around. When the tasks had ended, if
/// they have.
async fn last(site: &mut Site<'_>, subjects: &[Subject], begun: Instant) -> Option<Instant> {
    let fault = site.cell.fault;
    let at_rest = site.cell.moment == Moment::Idle;
    let most = match fault.lasts(site.short) {
        // Somebody else runs the task at once; this long, so that all notice.
        _ if at_rest && fault.can_be_got_around() => NOTICED,
        most => most,
    };
    let ended = match subjects {
        [] => None,
        // It answers nobody.
        _ if fault == Fault::ServerFrozen => None,
        _ => site.until_ended(subjects, begun + most).await,
    };
    let least = match fault {
        Fault::PacketLoss | Fault::SlowLink | Fault::Latency => NOTICED,
        _ if fault.can_be_got_around() && !at_rest => Duration::ZERO,
        _ => most,
    };
    sleep(least.saturating_sub(begun.elapsed())).await;
    ended
}

/// Nothing holds the tasks any more.
async fn release(site: &mut Site<'_>, passes: bool) {
    for ways in site.seats.iter().filter_map(|seat| seat.ways.as_ref()) {
        for way in [&ways.tasks, &ways.control] {
            way.release(passes);
            way.disarm();
        }
    }
    // If the server was away, so are the locks.
    let unlock = "/* chaos.release */ SELECT pg_advisory_unlock_all()";
    let _ = site.holder.execute(unlock).await;
}

/// A worker that was told to end has done so, and well.
async fn gone(site: &mut Site<'_>, victim: Victim) -> Result<()> {
    if matches!(site.cell.fault, Fault::Drain | Fault::GraceOver) {
        let seat = &mut site.seats[victim.seat];
        let tail = seat.tail();
        let status = seat.until_ended().await?;
        ensure!(status.success(), "a worker that was told to end ended with {status}{tail}");
    }
    Ok(())
}

/// Waits for the ends of the tasks, and of a quick one that comes now.
async fn finished(
    site: &mut Site<'_>,
    subjects: &[Subject],
    from: Instant,
    ended_under_it: Option<Instant>,
) -> Result<Option<Duration>> {
    let bound = site.cell.fault.bound();
    let deadline = from.max(Instant::now()) + bound;
    let bystander = site.bystander();
    site.enqueue(bystander).await?;
    let ended = match ended_under_it {
        Some(ended) => Some(ended),
        None => site.until_ended(subjects, deadline).await,
    };
    let quick = site.until_ended(&[bystander], deadline).await;
    Ok(ended.and_then(|ended| quick.map(|_| ended.saturating_duration_since(from))))
}
