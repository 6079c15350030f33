//! Injects and heals each fault.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::{Cluster, Mode};
use rustix::process::Signal;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::cell::Moment;
use super::environment::{Environment, Victim};
use super::failover;
use super::fault::Fault;
use super::resources::network::{Impairment, Network};
use super::resources::pooler::Pooler;
use super::resources::scratch;
use super::worker_slot::WorkerSlot;
use crate::session::Session;

/// Terminates every session of the fleet with this name in this database.
const END: &str = "SELECT /* chaos.end */ pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename IN ('fleet', 'etl') AND a.application_name LIKE $1";

const HOUR: i64 = 3600;

/// Keeps all WAL from now on. Checkpoints would free space otherwise. The slot ends with its session.
const KEEP_LOG: &str =
    "SELECT /* chaos.keep_log */ pg_create_physical_replication_slot('chaos_full', true, true)";

/// Writes half a gigabyte of WAL.
const BURN: &str = "SELECT /* chaos.burn */ pg_logical_emit_message(false, 'chaos', repeat('x', 1000000)) FROM generate_series(1, 500)";

/// Takes locks until the server has no memory for more. The session keeps them, although the statement
/// fails.
const EXHAUST_LOCKS: &str = "SELECT /* chaos.exhaust_locks */ pg_advisory_lock(4713, n) FROM generate_series(1, 10000000) AS n";

/// State needed to heal the fault.
#[derive(Default)]
pub(crate) struct Injection {
    victim: Victim,
    /// Session that holds locks.
    lock: Option<Session>,
}

/// Injects the cell's fault.
pub(crate) async fn inject(environment: &mut Environment<'_>, victim: Victim) -> Result<Injection> {
    let mut injection = Injection { victim, lock: None };
    match environment.cell.fault {
        Fault::WorkerKilled
        | Fault::WorkerStopped
        | Fault::Drain
        | Fault::ShutdownTimeout
        | Fault::TermThenKill
        | Fault::OutOfMemory
        | Fault::ClockAhead
        | Fault::ClockBehind => to_worker(environment, victim).await?,
        Fault::BackendEnded
        | Fault::BackendKilled
        | Fault::BackendStopped
        | Fault::BackendStoppedPastTimeout => to_backend(environment, victim).await?,
        Fault::ServerKilled
        | Fault::TargetKilled
        | Fault::BothKilled
        | Fault::ServerImmediate
        | Fault::ServerRestart
        | Fault::TargetRestart
        | Fault::ServerFrozen
        | Fault::TargetFrozen
        | Fault::BothFrozen
        | Fault::DiskFrozen
        | Fault::ServerClockAhead
        | Fault::ServerClockBehind
        | Fault::StandbyMissing => to_server(environment).await?,
        Fault::Promotion
        | Fault::FrozenPromotion
        | Fault::OldPrimary
        | Fault::AsyncPromotion
        | Fault::AsyncOldPrimary => failover::promote(environment).await?,
        Fault::PoolerKilled | Fault::PoolerPaused | Fault::PoolerReloaded => {
            to_pooler(environment).await?;
        }
        Fault::Sessions(name) => end_sessions(environment, name).await?,
        Fault::NetworkCut => impair(environment, &[victim.worker_slot], Impairment::Cut)?,
        Fault::NetworkOneWay => impair(environment, &[victim.worker_slot], Impairment::OneWay)?,
        Fault::NetworkReset => impair(environment, &[victim.worker_slot], Impairment::Reset)?,
        Fault::PacketLoss => impair(environment, &[0, 1], Impairment::Loss)?,
        Fault::SlowLink => impair(environment, &[0, 1], Impairment::Slow)?,
        Fault::Latency => delay(environment, Duration::from_millis(200)),
        Fault::Refused | Fault::TooMany | Fault::ConnectRevoked => {
            refuse_connections(environment).await?;
        }
        Fault::LocksExhausted => injection.lock = Some(exhaust_locks(environment).await?),
        Fault::ReadOnly => set_read_only(environment, "on").await?,
        Fault::DataDiskFull | Fault::TempDiskFull => {
            environment.test_bed.disk.as_ref().context("no disk")?.fill()?;
        }
        Fault::WalDiskFull => fill_log(environment).await?,
        Fault::TasksLocked => injection.lock = Some(lock(environment, "mill.tasks").await?),
        Fault::WorkersLocked => injection.lock = Some(lock(environment, "mill.workers").await?),
        Fault::Serialization => {
            let sql = "UPDATE /* chaos.conflict */ public.counter SET n = n + 1";
            environment.session.execute(sql).await?;
        }
        Fault::Message(_)
        | Fault::NeverEnds
        | Fault::Deadlock
        | Fault::OwnCommit
        | Fault::OwnCommitInBlock
        | Fault::LogFull => {}
    }
    Ok(injection)
}

/// Heals the fault.
pub(crate) async fn heal(environment: &mut Environment<'_>, injection: Injection) -> Result<()> {
    let Injection { victim, lock } = injection;
    match environment.cell.fault {
        Fault::WorkerStopped => {
            environment.worker_slots[victim.worker_slot].signal(Signal::CONT)?;
        }
        Fault::ClockAhead | Fault::ClockBehind => check_clocks(environment).await?,
        Fault::BackendStopped | Fault::BackendStoppedPastTimeout => {
            let pid = victim.backend.context("no backend")?;
            scratch::signal(pid.cast_unsigned(), Signal::CONT)?;
        }
        Fault::ServerKilled | Fault::TargetKilled | Fault::BothKilled | Fault::ServerImmediate => {
            each_server(environment, Cluster::start_again)?;
        }
        Fault::NetworkCut
        | Fault::NetworkOneWay
        | Fault::NetworkReset
        | Fault::PacketLoss
        | Fault::SlowLink
        | Fault::Refused => environment.test_bed.networks.iter().try_for_each(Network::heal)?,
        Fault::Latency => delay(environment, Duration::ZERO),
        Fault::TooMany => limit_connections(environment, -1).await?,
        Fault::ConnectRevoked => {
            let grant = format!("GRANT CONNECT ON DATABASE {} TO PUBLIC", environment.database);
            environment.session.execute(&grant).await?;
        }
        Fault::ReadOnly => set_read_only(environment, "DEFAULT").await?,
        Fault::DataDiskFull | Fault::TempDiskFull => {
            environment.test_bed.disk.as_ref().context("no disk")?.free()?;
        }
        Fault::WalDiskFull => {
            environment.test_bed.disk.as_ref().context("no disk")?.free()?;
            until_up(environment).await?;
        }
        Fault::ServerFrozen | Fault::TargetFrozen | Fault::BothFrozen => {
            each_server(environment, |server| server.thaw())?;
        }
        Fault::DiskFrozen => thaw_disk(environment).await?,
        Fault::ServerClockAhead | Fault::ServerClockBehind => {
            environment.test_bed.clock.as_ref().context("no clock")?.set(0)?;
        }
        Fault::StandbyMissing => wait_for_standby(environment, "DEFAULT").await?,
        Fault::BackendKilled => until_up(environment).await?,
        Fault::OldPrimary | Fault::AsyncOldPrimary => {
            failover::end_old_primary(environment).await?;
        }
        Fault::PoolerKilled => {
            let scratch = Arc::clone(&environment.test_bed.scratch);
            pooler(environment)?.start_again(&scratch).await?;
        }
        Fault::PoolerPaused => order_pooler(environment, "RESUME").await?,
        _ => {}
    }
    drop(lock);
    Ok(())
}

/// Does something to the server of the queue, to the target, or to both.
async fn to_server(environment: &mut Environment<'_>) -> Result<()> {
    match environment.cell.fault {
        Fault::ServerImmediate => {
            each_server(environment, |server| server.stop(Mode::Immediate))?;
        }
        Fault::ServerRestart | Fault::TargetRestart => {
            each_server(environment, |server| server.restart(Mode::Fast))?;
        }
        Fault::ServerFrozen | Fault::TargetFrozen | Fault::BothFrozen => {
            each_server(environment, |server| server.freeze())?;
        }
        Fault::DiskFrozen => {
            environment.test_bed.frozen_disk.as_ref().context("no disk")?.freeze()?;
        }
        Fault::ServerClockAhead => step_server_clock(environment, HOUR).await?,
        Fault::ServerClockBehind => step_server_clock(environment, -HOUR).await?,
        Fault::StandbyMissing => wait_for_standby(environment, "'nobody'").await?,
        _ => each_server(environment, Cluster::crash)?,
    }
    Ok(())
}

/// Refuses new connections of the fleet, and ends the open ones.
async fn refuse_connections(environment: &Environment<'_>) -> Result<()> {
    match environment.cell.fault {
        Fault::Refused => impair(environment, &[0, 1], Impairment::Refuse)?,
        Fault::TooMany => limit_connections(environment, 0).await?,
        _ => {
            let revoke = format!("REVOKE CONNECT ON DATABASE {} FROM PUBLIC", environment.database);
            environment.session.execute(&revoke).await?;
        }
    }
    end_sessions(environment, "pgmill%").await
}

async fn to_pooler(environment: &mut Environment<'_>) -> Result<()> {
    match environment.cell.fault {
        Fault::PoolerKilled => pooler(environment)?.kill(),
        Fault::PoolerPaused => order_pooler(environment, "PAUSE").await,
        _ => {
            pooler(environment)?.configure("default_pool_size = 6")?;
            order_pooler(environment, "RELOAD").await
        }
    }
}

/// Does something to each server that the fault hits.
fn each_server(
    environment: &mut Environment<'_>,
    operation: fn(&mut Cluster) -> Result<()>,
) -> Result<()> {
    let servers = environment.test_bed.servers(environment.cell.fault);
    block_in_place(|| servers.into_iter().try_for_each(operation))
}

async fn to_worker(environment: &mut Environment<'_>, victim: Victim) -> Result<()> {
    let fault = environment.cell.fault;
    let worker_slot = &mut environment.worker_slots[victim.worker_slot];
    match fault {
        Fault::WorkerKilled => worker_slot.kill(),
        Fault::WorkerStopped => worker_slot.signal(Signal::STOP)?,
        Fault::TermThenKill => {
            worker_slot.signal(Signal::TERM)?;
            sleep(Duration::from_millis(300)).await;
            worker_slot.kill();
        }
        Fault::OutOfMemory => return until_out_of_memory(environment).await,
        Fault::ClockAhead | Fault::ClockBehind => {
            let off = if fault == Fault::ClockAhead { HOUR } else { -HOUR };
            environment
                .worker_slots
                .iter()
                .try_for_each(|worker_slot| worker_slot.set_clock(off))?;
        }
        _ => worker_slot.signal(Signal::TERM)?,
    }
    Ok(())
}

async fn to_backend(environment: &Environment<'_>, victim: Victim) -> Result<()> {
    let pid = victim.backend.context("no backend")?;
    let signal = match environment.cell.fault {
        Fault::BackendEnded => {
            let sql = "SELECT /* chaos.end_one */ pg_terminate_backend($1)";
            return environment.task_session().rows(sql, &[&pid]).await.map(drop);
        }
        Fault::BackendKilled => Signal::KILL,
        _ => Signal::STOP,
    };
    scratch::signal(pid.cast_unsigned(), signal)
}

/// Returns once the OOM killer has killed the worker whose task allocated too much.
async fn until_out_of_memory(environment: &mut Environment<'_>) -> Result<()> {
    let [one, other] = &mut environment.worker_slots[..] else { return Ok(()) };
    let status = tokio::select! {
        ended = one.until_ended() => ended,
        ended = other.until_ended() => ended,
    };
    let status = status?;
    ensure!(!status.success(), "a worker ended with {status} instead of being killed for memory");
    Ok(())
}

/// Checks that the workers' clocks were wrong and are correct again. An idle worker may not have
/// logged anything since the correction.
async fn check_clocks(environment: &Environment<'_>) -> Result<()> {
    let mut off = Vec::new();
    for output in environment.worker_slots.iter().filter_map(WorkerSlot::clock_reading) {
        let sql = "SELECT /* chaos.off */ (extract(epoch FROM $1::text::timestamptz - now()) / 3600)::float8";
        off.push(environment.session.one::<f64>(sql, &[&output]).await?.unwrap_or_default());
    }
    let meant = off.iter().any(|hours| (0.9..1.1).contains(&hours.abs()));
    ensure!(meant, "the workers' clocks are wrong by {off:?} hours");
    environment.worker_slots.iter().try_for_each(|worker_slot| worker_slot.set_clock(0))
}

/// Sets the server's clock off by this many seconds.
async fn step_server_clock(environment: &Environment<'_>, off: i64) -> Result<()> {
    let now = "SELECT /* chaos.now */ extract(epoch FROM clock_timestamp())::int8";
    let before: i64 = environment.session.one(now, &[]).await?.context("no time")?;
    environment.test_bed.clock.as_ref().context("no clock")?.set(off)?;
    let after: i64 = environment.session.one(now, &[]).await?.context("no time")?;
    ensure!((after - before - off).abs() < 60, "the clock went from {before} to {after}");
    Ok(())
}

/// Checks that a commit waits for the disk, and thaws the disk.
async fn thaw_disk(environment: &Environment<'_>) -> Result<()> {
    let sql =
        "SELECT /* chaos.frozen */ count(*) FROM pg_stat_activity a WHERE a.wait_event = 'WALSync'";
    let waiting: Option<i64> = environment.session.one(sql, &[]).await?;
    let commits = matches!(
        environment.cell.moment,
        Moment::Enqueue | Moment::Executing | Moment::Completing | Moment::Scheduled
    );
    ensure!(!commits || waiting > Some(0), "no commit waits for the frozen disk");
    environment.test_bed.frozen_disk.as_ref().context("no disk")?.thaw()
}

async fn end_sessions(environment: &Environment<'_>, name: &str) -> Result<()> {
    let ended = environment.session.rows(END, &[&name]).await?;
    ensure!(!ended.is_empty(), "no session \"{name}\" to terminate");
    Ok(())
}

/// Makes commits wait for a standby with this name.
async fn wait_for_standby(environment: &Environment<'_>, name: &str) -> Result<()> {
    let set = format!("ALTER /* chaos.standby */ SYSTEM SET synchronous_standby_names = {name}");
    environment.session.execute(&set).await?;
    environment.session.execute("SELECT /* chaos.reload */ pg_reload_conf()").await
}

async fn limit_connections(environment: &Environment<'_>, max_connections: i32) -> Result<()> {
    let Environment { database, session, .. } = environment;
    let sql =
        format!("ALTER /* chaos.limit */ DATABASE {database} CONNECTION LIMIT {max_connections}");
    session.execute(&sql).await
}

/// Changes the default of all transactions of the server.
async fn set_read_only(environment: &Environment<'_>, value: &str) -> Result<()> {
    let set =
        format!("ALTER /* chaos.read_only */ SYSTEM SET default_transaction_read_only = {value}");
    environment.session.execute(&set).await?;
    environment.session.execute("SELECT /* chaos.reload */ pg_reload_conf()").await
}

async fn exhaust_locks(environment: &Environment<'_>) -> Result<Session> {
    let session = Session::open(&environment.test_bed.cluster.url(&environment.database)).await?;
    let exhausted = session.execute(EXHAUST_LOCKS).await;
    let error = exhausted.err().context("the server has memory for ten million locks")?;
    ensure!(format!("{error:#}").contains("out of shared memory"), "{error:#}");
    Ok(session)
}

async fn lock(environment: &Environment<'_>, table: &str) -> Result<Session> {
    let session = Session::open(&environment.test_bed.cluster.url(&environment.database)).await?;
    let sql = format!("BEGIN /* chaos.lock */; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
    session.execute(&sql).await?;
    Ok(session)
}

fn impair(environment: &Environment<'_>, worker_slots: &[usize], how: Impairment) -> Result<()> {
    let networks = &environment.test_bed.networks;
    worker_slots
        .iter()
        .try_for_each(|worker_slot| networks.get(*worker_slot).context("no network")?.impair(how))
}

fn delay(environment: &Environment<'_>, by: Duration) {
    for proxies in
        environment.worker_slots.iter().filter_map(|worker_slot| worker_slot.proxies.as_ref())
    {
        proxies.tasks.delay(by);
        proxies.control.delay(by);
    }
}

fn pooler<'a>(environment: &'a mut Environment<'_>) -> Result<&'a mut Pooler> {
    environment.pooler.as_mut().context("no pooler")
}

/// Sends a command to the console of the pooler.
async fn order_pooler(environment: &mut Environment<'_>, command: &str) -> Result<()> {
    Session::open(pooler(environment)?.console()).await?.execute(command).await
}

/// Writes WAL until the server fails.
async fn fill_log(environment: &mut Environment<'_>) -> Result<()> {
    let panics = |environment: &Environment<'_>| {
        let log = std::fs::read_to_string(environment.test_bed.cluster.log()).unwrap_or_default();
        log.matches("PANIC:").count()
    };
    let before = panics(environment);
    let burner = Session::open(&environment.test_bed.cluster.url(&environment.database)).await?;
    burner.execute(KEEP_LOG).await?;
    environment.test_bed.disk.as_ref().context("no disk")?.fill()?;
    // The session fails when its server goes down.
    let _ = burner.execute(BURN).await;
    ensure!(panics(environment) > before, "the server keeps running although its WAL disk is full");
    Ok(())
}

/// Starts the server if it is down, and waits until it accepts connections.
async fn until_up(environment: &mut Environment<'_>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let opened = Session::open(&environment.test_bed.cluster.url(&environment.database)).await;
        let Err(error) = opened else { return Ok(()) };
        ensure!(begun.elapsed() < Duration::from_secs(30), "the server stays down: {error:#}");
        if environment.test_bed.cluster.pid().is_none() {
            block_in_place(|| environment.test_bed.cluster.start_again())?;
        }
        sleep(Duration::from_millis(50)).await;
    }
}
