//! A fleet at work, in a quarter of a minute.
//!
//! On a private cluster that goes away at the end, two real worker processes load files of orders,
//! merge them and refresh reports; one worker is killed under its tasks. What is in the database at
//! the end is compared with totals that no SQL took part in.
//!
//! The way through the files: `shop` makes the database, `data` the orders, `fleet` starts the
//! workers, `workload` enqueues, `watch` looks on through `snapshot` and tells `screen`, `report`
//! prints and checks, `keep` leaves it all running if asked.

mod data;
mod fleet;
mod keep;
mod report;
mod screen;
mod shop;
mod signals;
mod snapshot;
mod watch;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use cluster::{Binaries, Cluster, Options};
use queue::exit;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::data::BATCHES;
use crate::fleet::{Fleet, READERS};
use crate::screen::Screen;
use crate::shop::{OPERATOR, Shop};
use crate::signals::Signals;
use crate::snapshot::{Snapshot, Totals};
use crate::watch::{Watch, place};

/// Shows a fleet at work on a private cluster, and checks what it did
#[derive(Parser)]
#[command(name = "demo", version, after_help = AFTER_HELP)]
struct Args {
    /// Leave the cluster and the workers running, and print how to get in and how to stop them
    #[arg(long)]
    keep: bool,
    /// Folder with initdb, pg_ctl and postgres, or with bin/ or native/bin/ that holds them
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  demo
  demo --keep
  demo --pg /usr/lib/postgresql/17

The programs of the fleet have to be built beside this one: `make demo` does it all.

Exit codes: 0 everything as it should be; 1 a check was wrong, or something failed or took too long;
2 usage; 128 + n ended by signal n";

/// Past the limit of the watching, for whatever hangs elsewhere.
const LAST_RESORT: Duration = Duration::from_secs(90);

/// The program: reads the command line, shows the fleet, says how it went.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Nothing is left to do if not even the message can be written.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::OK });
        }
    };
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::from(exit::FAILURE)
        }
    }
}

fn run(args: &Args) -> Result<u8> {
    let program = fleet::program("worker")?;
    let binaries = Binaries::find_or_install(args.directory.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before the start: from here on, a signal no longer ends this process without clean-up.
        let mut signals = Signals::new()?;
        let mut screen = Screen::new();
        screen.event(&format!(
            "starting a private cluster of PostgreSQL {} from {}",
            binaries.major(),
            binaries.directory().display()
        ));
        let mut starting = spawn_blocking(|| Cluster::start(Options::new(binaries)));
        let mut cluster = tokio::select! {
            biased;
            signal = signals.next() => {
                // What it has begun, it has to end: then the cluster is dropped and gone.
                let _ = starting.await;
                return Ok(signal);
            }
            started = &mut starting => started??,
        };
        let shown = timeout(LAST_RESORT, show(args, program, &mut cluster, &mut screen));
        let ended = tokio::select! {
            signal = signals.next() => Ok(signal),
            shown = shown => shown.context("it hangs").flatten(),
        };
        screen.clear();
        ended
    })
}

/// The whole story. Dropped in the middle, it leaves no worker behind.
async fn show(
    args: &Args,
    program: PathBuf,
    cluster: &mut Cluster,
    screen: &mut Screen,
) -> Result<u8> {
    let shop = Shop::open(cluster).await?;
    let expected = shop.write_batches()?;
    screen.event(&format!("{} files of orders are in {}", BATCHES, shop.directory.display()));
    let mut fleet = Fleet::new(program, shop.clone());
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
    if args.keep {
        screen.line(&format!("\n{}", keep::keep(cluster, &mut fleet, &shop)?));
    } else {
        fleet.stop().await?;
        screen.line(&format!("\n{}", report::summary(&snapshot, screen.elapsed())));
    }
    ensure!(wrong == 0, "{wrong} of {} checks are wrong", checks.len());
    Ok(exit::OK)
}

/// Everything that the fleet does; returns how it ended.
async fn work(
    client: &Client,
    shop: &Shop,
    fleet: &mut Fleet,
    screen: &mut Screen,
) -> Result<Snapshot> {
    let mut watch = Watch::new(client, screen);
    let pids = [fleet.start_worker()?, fleet.start_worker()?];
    watch.until_ready(fleet, 2).await?;
    watch.event(&format!(
        "two workers of {READERS} readers are ready: {} and {}",
        place(fleet, pids[0]),
        place(fleet, pids[1])
    ));
    workload::enqueue_loads(client, shop).await?;
    watch.event(&format!("enqueued {BATCHES} loads; each enqueues its own merge"));
    watch.until_ended(fleet, workload::FIRST_PHASE).await?;
    let pid = fleet.start_worker()?;
    watch.until_ready(fleet, 2).await?;
    watch.event(&format!(
        "all batches are merged; worker {} takes the place of the killed one",
        place(fleet, pid)
    ));
    workload::enqueue_reports(client).await?;
    watch.event(
        "enqueued the reports, a CALL that commits, a VACUUM, and a task that cannot succeed",
    );
    watch.until_ended(fleet, workload::ALL).await
}
