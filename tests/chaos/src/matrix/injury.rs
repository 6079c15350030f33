//! How each fault is done, and undone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::Mode;
use rustix::process::Signal;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::cell::Fault;
use super::network::{Network, Spoiled};
use super::scratch;
use super::seat::Seat;
use super::session::Session;
use super::site::{Site, Victim};

/// Every session of the fleet with such a name, in this database.
const END: &str = "/* chaos.end */
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename IN ('fleet', 'etl') AND a.application_name LIKE $1";

const HOUR: i64 = 3600;

/// Half a gigabyte of log in one go: step by step, checkpoints would make room behind it.
const BURN: &str = "/* chaos.burn */
SELECT pg_logical_emit_message(false, 'chaos', repeat('x', 1000000)) FROM generate_series(1, 500)";

/// What has to be undone.
#[derive(Default)]
pub(crate) struct Injury {
    victim: Victim,
    /// Has a table locked.
    lock: Option<Session>,
}

/// Does the cell's fault.
pub(crate) async fn inject(site: &mut Site<'_>, victim: Victim) -> Result<Injury> {
    let mut injury = Injury { victim, lock: None };
    match site.cell.fault {
        Fault::WorkerKilled
        | Fault::WorkerStopped
        | Fault::Drain
        | Fault::GraceOver
        | Fault::TermThenKill
        | Fault::OutOfMemory
        | Fault::ClockAhead
        | Fault::ClockBehind => to_worker(site, victim).await?,
        Fault::BackendEnded
        | Fault::BackendKilled
        | Fault::BackendStopped
        | Fault::BackendStoppedPastTimeout => to_backend(site, victim).await?,
        Fault::ServerKilled => block_in_place(|| site.ground.cluster.crash())?,
        Fault::ServerImmediate => block_in_place(|| site.ground.cluster.stop(Mode::Immediate))?,
        Fault::ServerRestart => block_in_place(|| site.ground.cluster.restart(Mode::Fast))?,
        Fault::ServerFrozen => site.ground.cluster.freeze()?,
        Fault::StandbyMissing => wait_for_standby(site, "'nobody'").await?,
        Fault::Promotion => promote(site).await?,
        Fault::Sessions(name) => end_sessions(site, name).await?,
        Fault::NetworkCut => spoil(site, &[victim.seat], Spoiled::Cut)?,
        Fault::NetworkOneWay => spoil(site, &[victim.seat], Spoiled::OneWay)?,
        Fault::NetworkReset => spoil(site, &[victim.seat], Spoiled::Reset)?,
        Fault::PacketLoss => spoil(site, &[0, 1], Spoiled::Loss)?,
        Fault::SlowLink => spoil(site, &[0, 1], Spoiled::Slow)?,
        Fault::Latency => delay(site, Duration::from_millis(200)),
        Fault::Refused => {
            spoil(site, &[0, 1], Spoiled::Refuse)?;
            end_sessions(site, "pgmill%").await?;
        }
        Fault::TooMany => {
            limit_connections(site, 0).await?;
            end_sessions(site, "pgmill%").await?;
        }
        Fault::DataDiskFull => site.ground.disk.as_ref().context("no disk")?.fill()?,
        Fault::WalDiskFull => fill_log(site).await?,
        Fault::TasksLocked => injury.lock = Some(lock(site, "mill.tasks").await?),
        Fault::WorkersLocked => injury.lock = Some(lock(site, "mill.workers").await?),
        Fault::Serialization => {
            let sql = "/* chaos.conflict */ UPDATE public.counter SET n = n + 1";
            site.session.execute(sql).await?;
        }
        Fault::Message(_)
        | Fault::NeverEnds
        | Fault::Deadlock
        | Fault::OwnCommit
        | Fault::OwnCommitInBlock => {}
    }
    Ok(injury)
}

/// Undoes it.
pub(crate) async fn heal(site: &mut Site<'_>, injury: Injury) -> Result<()> {
    let Injury { victim, lock } = injury;
    match site.cell.fault {
        Fault::WorkerStopped => site.seats[victim.seat].signal(Signal::CONT)?,
        Fault::ClockAhead | Fault::ClockBehind => mend_clocks(site).await?,
        Fault::BackendStopped | Fault::BackendStoppedPastTimeout => {
            let pid = victim.backend.context("no backend")?;
            scratch::signal(pid.cast_unsigned(), Signal::CONT)?;
        }
        Fault::ServerKilled | Fault::ServerImmediate => {
            block_in_place(|| site.ground.cluster.start_again())?;
        }
        Fault::NetworkCut
        | Fault::NetworkOneWay
        | Fault::NetworkReset
        | Fault::PacketLoss
        | Fault::SlowLink
        | Fault::Refused => site.ground.networks.iter().try_for_each(Network::heal)?,
        Fault::Latency => delay(site, Duration::ZERO),
        Fault::TooMany => limit_connections(site, -1).await?,
        Fault::DataDiskFull => site.ground.disk.as_ref().context("no disk")?.free()?,
        Fault::WalDiskFull => {
            site.ground.disk.as_ref().context("no disk")?.free()?;
            until_up(site).await?;
        }
        Fault::ServerFrozen => site.ground.cluster.thaw()?,
        Fault::StandbyMissing => wait_for_standby(site, "DEFAULT").await?,
        Fault::BackendKilled => until_up(site).await?,
        _ => {}
    }
    drop(lock);
    Ok(())
}

async fn to_worker(site: &mut Site<'_>, victim: Victim) -> Result<()> {
    let fault = site.cell.fault;
    let seat = &mut site.seats[victim.seat];
    match fault {
        Fault::WorkerKilled => seat.kill(),
        Fault::WorkerStopped => seat.signal(Signal::STOP)?,
        Fault::TermThenKill => {
            seat.signal(Signal::TERM)?;
            sleep(Duration::from_millis(300)).await;
            seat.kill();
        }
        Fault::OutOfMemory => return until_out_of_memory(site).await,
        Fault::ClockAhead | Fault::ClockBehind => {
            let off = if fault == Fault::ClockAhead { HOUR } else { -HOUR };
            site.seats.iter().try_for_each(|seat| seat.set_clock(off))?;
        }
        _ => seat.signal(Signal::TERM)?,
    }
    Ok(())
}

async fn to_backend(site: &Site<'_>, victim: Victim) -> Result<()> {
    let pid = victim.backend.context("no backend")?;
    let signal = match site.cell.fault {
        Fault::BackendEnded => {
            let sql = "/* chaos.end_one */ SELECT pg_terminate_backend($1)";
            return site.session.rows(sql, &[&pid]).await.map(drop);
        }
        Fault::BackendKilled => Signal::KILL,
        _ => Signal::STOP,
    };
    scratch::signal(pid.cast_unsigned(), signal)
}

/// Once the kernel has killed the worker whose task asked for too much.
async fn until_out_of_memory(site: &mut Site<'_>) -> Result<()> {
    let [one, other] = &mut site.seats[..] else { return Ok(()) };
    let status = tokio::select! {
        ended = one.until_ended() => ended,
        ended = other.until_ended() => ended,
    };
    let status = status?;
    ensure!(!status.success(), "a worker ended with {status} instead of running out of memory");
    Ok(())
}

/// The clocks are right again; they were off indeed. Of a worker that had nothing to do, the last
/// word may be older than that.
async fn mend_clocks(site: &Site<'_>) -> Result<()> {
    let mut off = Vec::new();
    for said in site.seats.iter().filter_map(Seat::says_it_is) {
        let sql = "/* chaos.off */
            SELECT (extract(epoch FROM $1::text::timestamptz - now()) / 3600)::float8";
        off.push(site.session.one::<f64>(sql, &[&said]).await?.unwrap_or_default());
    }
    let meant = off.iter().any(|hours| (0.9..1.1).contains(&hours.abs()));
    ensure!(meant, "the workers' clocks are {off:?} hours off");
    site.seats.iter().try_for_each(|seat| seat.set_clock(0))
}

async fn end_sessions(site: &Site<'_>, name: &str) -> Result<()> {
    let ended = site.session.rows(END, &[&name]).await?;
    ensure!(!ended.is_empty(), "no session \"{name}\" to end");
    Ok(())
}

/// Commits wait for a standby of this name.
async fn wait_for_standby(site: &Site<'_>, name: &str) -> Result<()> {
    let set = format!("/* chaos.standby */ ALTER SYSTEM SET synchronous_standby_names = {name}");
    site.session.execute(&set).await?;
    site.session.execute("/* chaos.reload */ SELECT pg_reload_conf()").await
}

async fn limit_connections(site: &Site<'_>, most: i32) -> Result<()> {
    let Site { database, session, .. } = site;
    let sql = format!("/* chaos.limit */ ALTER DATABASE {database} CONNECTION LIMIT {most}");
    session.execute(&sql).await
}

async fn lock(site: &Site<'_>, table: &str) -> Result<Session> {
    let session = Session::open(&site.ground.cluster.url(&site.database)).await?;
    let sql = format!("/* chaos.lock */ BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
    session.execute(&sql).await?;
    Ok(session)
}

fn spoil(site: &Site<'_>, seats: &[usize], how: Spoiled) -> Result<()> {
    let networks = &site.ground.networks;
    seats.iter().try_for_each(|seat| networks.get(*seat).context("no network")?.spoil(how))
}

fn delay(site: &Site<'_>, by: Duration) {
    for ways in site.seats.iter().filter_map(|seat| seat.ways.as_ref()) {
        ways.tasks.delay(by);
        ways.control.delay(by);
    }
}

/// The server is gone for good, and its standby takes its place.
async fn promote(site: &mut Site<'_>) -> Result<()> {
    let standby = site.standby.take().context("no standby")?;
    block_in_place(|| {
        site.ground.cluster.crash()?;
        standby.promote()
    })?;
    site.ground.cluster = standby;
    let url = site.ground.cluster.url(&site.database);
    for ways in site.seats.iter().filter_map(|seat| seat.ways.as_ref()) {
        ways.tasks.lead_to(&url)?;
        ways.control.lead_to(&url)?;
    }
    site.session = Session::open(&url).await?;
    site.holder = Session::open(&url).await?;
    Ok(())
}

/// Writes log until the server cannot and goes down.
async fn fill_log(site: &mut Site<'_>) -> Result<()> {
    let panics = |site: &Site<'_>| {
        let log = std::fs::read_to_string(site.ground.cluster.log()).unwrap_or_default();
        log.matches("PANIC:").count()
    };
    let before = panics(site);
    site.ground.disk.as_ref().context("no disk")?.fill()?;
    let burner = Session::open(&site.ground.cluster.url(&site.database)).await?;
    // Its error is that of a session whose server has gone down, or nearly.
    let _ = burner.execute(BURN).await;
    ensure!(panics(site) > before, "the server lives on though the disk of its log is full");
    Ok(())
}

/// Starts the server if it is down, and waits until it accepts.
async fn until_up(site: &mut Site<'_>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let opened = Session::open(&site.ground.cluster.url(&site.database)).await;
        let Err(error) = opened else { return Ok(()) };
        ensure!(begun.elapsed() < Duration::from_secs(30), "the server stays down: {error:#}");
        if site.ground.cluster.pid().is_none() {
            block_in_place(|| site.ground.cluster.start_again())?;
        }
        sleep(Duration::from_millis(50)).await;
    }
}
