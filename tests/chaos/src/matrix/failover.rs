//! Promotes a standby: after the primary has died or frozen, or while the primary works.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::Cluster;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::cell::{Mode, Moment};
use super::environment::Environment;
use super::fault::Fault;
use crate::session::Session;

/// Time limit for a standby to receive or to leave.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Number of standbys that have not replayed all WAL of the primary.
const BEHIND: &str = "SELECT /* chaos.behind */ count(*) FROM pg_stat_replication r
WHERE r.replay_lsn IS DISTINCT FROM pg_current_wal_lsn()";

const STANDBYS: &str = "SELECT /* chaos.standbys */ count(*) FROM pg_stat_replication";

const EFFECTS: &str = "SELECT /* chaos.all_effects */ count(*) FROM public.effect";

/// Promotes the standby, and ends the primary as the fault requires.
pub(crate) async fn promote(environment: &mut Environment<'_>) -> Result<()> {
    let fault = environment.cell.fault;
    if fault.standby_is_asynchronous() && !environment.cell.may_be_missing() {
        disconnect_standby(environment).await?;
    }
    let standby = environment.standby.take().context("no standby")?;
    block_in_place(|| {
        let primary = &mut environment.test_bed.cluster;
        if fault == Fault::FrozenPromotion {
            primary.freeze()?;
        } else if !fault.keeps_old_primary() {
            primary.crash()?;
        }
        standby.promote()
    })?;
    let primary = std::mem::replace(&mut environment.test_bed.cluster, standby);
    if fault == Fault::FrozenPromotion {
        environment.frozen = Some(primary);
    } else if fault.keeps_old_primary() {
        environment.old_primary = Some(primary);
    }
    let url = environment.test_bed.cluster.url(&environment.database);
    for proxies in
        environment.worker_slots.iter().filter_map(|worker_slot| worker_slot.proxies.as_ref())
    {
        proxies.tasks.set_upstream(&url)?;
        proxies.control.set_upstream(&url)?;
    }
    environment.session = Session::open(&url).await?;
    environment.holder = Session::open(&url).await?;
    Ok(())
}

/// Waits until the standby has received everything, and ends the replication. What the primary
/// commits from now on is lost with it.
pub(crate) async fn disconnect_standby(environment: &Environment<'_>) -> Result<()> {
    until_none(&environment.session, BEHIND, "the standby does not catch up").await?;
    let standby = environment.standby.as_ref().context("no standby")?;
    let session = Session::open(&standby.url("postgres")).await?;
    session.execute("ALTER /* chaos.disconnect */ SYSTEM SET primary_conninfo = ''").await?;
    session.execute("SELECT /* chaos.reload */ pg_reload_conf()").await?;
    until_none(&environment.session, STANDBYS, "the standby does not disconnect").await
}

async fn until_none(session: &Session, count: &str, problem: &str) -> Result<()> {
    let begun = Instant::now();
    while session.one::<i64>(count, &[]).await? != Some(0) {
        ensure!(begun.elapsed() < TIMEOUT, "{problem}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Ends the old primary. Before, checks that it has acknowledged the commit of the task if no commit
/// waits for the standby, and has not acknowledged it otherwise.
pub(crate) async fn end_old_primary(environment: &mut Environment<'_>) -> Result<()> {
    let Some(mut old) = environment.old_primary.take() else { return Ok(()) };
    let cell = environment.cell;
    if cell.moment == Moment::Executing && cell.mode == Mode::Transaction {
        let there: Option<i64> = of(&old, environment).await?.one(EFFECTS, &[]).await?;
        let here: Option<i64> = environment.session.one(EFFECTS, &[]).await?;
        let additional = there.unwrap_or_default() - here.unwrap_or_default();
        let expected = i64::from(cell.fault.standby_is_asynchronous());
        ensure!(additional == expected, "{additional} effects exist only on the old primary");
    }
    block_in_place(|| old.crash())
}

async fn of(server: &Cluster, environment: &Environment<'_>) -> Result<Session> {
    Session::open(&server.url(&environment.database)).await
}
