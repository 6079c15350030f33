//! Shows a fleet at work, in 15 seconds.
//!
//! On a private cluster that is removed at the end, two real worker processes load order files,
//! merge them and refresh reports; one worker is killed while it runs tasks. At the end, the
//! content of the database is compared with totals computed without SQL.
//!
//! Modules: `shop` creates the database, `data` the orders, `fleet` starts the workers, `workload`
//! enqueues, `monitor` polls the queue through `snapshot` and updates `screen`, `report` prints and
//! checks, `keep` leaves everything running on request. `scenario` runs these steps in order.

mod data;
mod fleet;
mod keep;
mod monitor;
mod report;
mod scenario;
mod screen;
mod shop;
mod snapshot;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use cli::exit;
use cluster::{Binaries, Cluster, Options, Signals, sibling_program, signal_exit_code};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::scenario::run as run_scenario;
use crate::screen::Screen;

/// Shows a fleet at work on a private cluster and verifies its results
#[derive(Parser)]
#[command(name = "demo", version, after_help = AFTER_HELP)]
struct Args {
    /// Leave the cluster and the workers running, and print how to connect and how to stop them
    #[arg(long)]
    keep: bool,
    /// Folder with initdb, pg_ctl and postgres, or a parent folder with bin/ or native/bin/
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  demo
  demo --keep
  demo --pg /usr/lib/postgresql/17

The fleet's programs must be built together with this one; `make demo` does both.

Exit codes: 0 all checks passed; 1 a check failed, an error, or a timeout; 2 usage; 128 + n ended by
signal n";

/// Time limit of the whole program. It is longer than the monitor's time limit, and ends hangs
/// elsewhere.
const HARD_TIMEOUT: Duration = Duration::from_secs(90);

/// Runs the program: parses the command line, runs the scenario, returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    cli::main(|| run(&Args::try_parse()?))
}

fn run(args: &Args) -> Result<u8> {
    let program = sibling_program("worker")?;
    let binaries = Binaries::find_or_install(args.directory.as_deref())?;
    let runtime = cli::many_threads()?;
    runtime.block_on(async {
        // Install the handlers before the server starts: from then on, no signal ends this process
        // without clean-up.
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
                // Let the start finish; dropping the value then removes the cluster.
                screen.event("interrupted, cleaning up");
                let _ = starting.await;
                return Ok(signal_exit_code(signal.as_raw()));
            }
            started = &mut starting => started??,
        };
        let reported =
            timeout(HARD_TIMEOUT, run_scenario(program, args.keep, &mut cluster, &mut screen));
        let ended = tokio::select! {
            signal = signals.next() => {
                screen.clear();
                screen.event("interrupted, cleaning up");
                Ok(signal_exit_code(signal.as_raw()))
            }
            reported = reported => reported.with_context(|| format!("the demo has not finished after {HARD_TIMEOUT:?}")).flatten().map(|()| exit::OK),
        };
        screen.clear();
        ended
    })
}
