//! The steps of the demo, in order.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use cluster::Cluster;
use tokio_postgres::Client;

use crate::data::BATCHES;
use crate::fleet::{Fleet, READERS};
use crate::monitor::{Monitor, worker_label};
use crate::screen::Screen;
use crate::shop::{OPERATOR, Shop};
use crate::snapshot::{Snapshot, Totals};
use crate::{keep, report, workload};

/// Runs the whole scenario. Dropping the future ends its workers.
///
/// # Errors
/// Returns an error if a check fails, a worker or the database fails, or the time limit expires.
pub(crate) async fn run(
    program: PathBuf,
    keep: bool,
    cluster: &mut Cluster,
    screen: &mut Screen,
) -> Result<()> {
    let shop = Shop::open(cluster).await?;
    let expected = shop.write_batches()?;
    screen.event(&format!("{} files of orders are in {}", BATCHES, shop.directory.display()));
    let mut fleet = Fleet::new(program, shop.clone(), keep);
    let session = shop.session(OPERATOR).await?;
    let client = &session.client;

    let snapshot = work(client, &shop, &mut fleet, screen).await?;

    screen.clear();
    screen.line("");
    screen.line(&report::tasks(&snapshot, &fleet));
    screen.line("");
    let checks = report::checks(&expected, &Totals::take(client).await?, &snapshot);
    screen.line(&report::verdicts(&checks));
    let wrong = checks.iter().filter(|check| !check.holds()).count();
    if keep {
        screen.line(&format!("\n{}", keep::keep(cluster, &mut fleet, &shop)?));
    } else {
        fleet.stop().await?;
        screen.line(&format!("\n{}", report::summary(&snapshot, screen.elapsed())));
    }
    ensure!(wrong == 0, "{wrong} of {} checks failed", checks.len());
    Ok(())
}

/// Runs all of the fleet's work and returns the final snapshot.
async fn work(
    client: &Client,
    shop: &Shop,
    fleet: &mut Fleet,
    screen: &mut Screen,
) -> Result<Snapshot> {
    let mut monitor = Monitor::new(client, screen);
    let pids = [fleet.start_worker()?, fleet.start_worker()?];
    monitor.until_ready(fleet, 2).await?;
    monitor.event(&format!(
        "two workers of {READERS} readers are ready: {} and {}",
        worker_label(fleet, pids[0]),
        worker_label(fleet, pids[1])
    ));
    workload::enqueue_loads(client, shop).await?;
    monitor.event(&format!("enqueued {BATCHES} loads; each enqueues its own merge"));
    monitor.until_ended(fleet, workload::FIRST_PHASE).await?;
    let pid = fleet.start_worker()?;
    monitor.until_ready(fleet, 2).await?;
    monitor.event(&format!(
        "all batches are merged; worker {} replaces the killed one",
        worker_label(fleet, pid)
    ));
    workload::enqueue_reports(client).await?;
    monitor.event(
        "enqueued the reports, a CALL that commits, a VACUUM, and a task that cannot succeed",
    );
    monitor.until_ended(fleet, workload::ALL).await
}
