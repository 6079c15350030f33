//! A fleet at work, in a quarter of a minute.
//!
//! On a private cluster that goes away at the end, two real worker processes load files of orders,
//! merge them and refresh reports; one worker is killed under its tasks. What is in the database at
//! the end is compared with totals that no SQL took part in.
//!
//! The way through the files: `shop` makes the database, `data` the orders, `fleet` starts the
//! workers, `workload` enqueues, `monitor` looks on through `snapshot` and tells `screen`, `report`
//! prints and checks, `keep` leaves it all running if asked. `scenario` has them in order.

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
use cluster::{Binaries, Cluster, Options, Signals, sibling_program, signal_exit_code};
use queue::exit;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::scenario::run as run_scenario;
use crate::screen::Screen;

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
const HARD_TIMEOUT: Duration = Duration::from_secs(90);

/// The program: reads the command line, shows the fleet, says how it went.
#[must_use]
pub fn main() -> ExitCode {
    let args: Args = match cluster::arguments() {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(exit::FAILURE)
        }
    }
}

fn run(args: &Args) -> Result<u8> {
    let program = sibling_program("worker")?;
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
                screen.event("interrupted, cleaning up");
                let _ = starting.await;
                return Ok(signal_exit_code(signal.as_raw()));
            }
            started = &mut starting => started??,
        };
        let text =
            timeout(HARD_TIMEOUT, run_scenario(program, args.keep, &mut cluster, &mut screen));
        let ended = tokio::select! {
            signal = signals.next() => {
                screen.clear();
                screen.event("interrupted, cleaning up");
                Ok(signal_exit_code(signal.as_raw()))
            }
            text = text => text.context("it hangs").flatten().map(|()| exit::OK),
        };
        screen.clear();
        ended
    })
}
