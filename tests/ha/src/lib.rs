//! Injects faults into a cluster that Patroni manages, under load, and verifies the outcome.
//!
//! Modules: `catalog` lists the trials, pairs of a fault and a mode of replication. `settings` has
//! the settings of deploy/patroni. `node` is one server with its Patroni, `patroni` all of them
//! with etcd, `programs` finds both. `fleet` runs the workers, `producer` enqueues tasks, `session` is a connection that
//! survives faults. `trial` injects one fault, `outcome` counts its effects on the tasks, `report`
//! prints them.

mod catalog;
mod fleet;
mod node;
mod outcome;
mod patroni;
mod producer;
mod programs;
mod report;
mod session;
mod settings;
mod trial;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use cli::exit;
use cluster::{Binaries, Signals, signal_exit_code};

use catalog::Trial;
use outcome::Outcome;
use patroni::Patroni;
use programs::Programs;
use settings::Settings;

/// Injects faults into a Patroni cluster under load and verifies the outcome
#[derive(Parser)]
#[command(name = "ha", version, max_term_width = 100, after_help = AFTER_HELP)]
struct Args {
    /// Run only a switchover, a kill and a freeze, in synchronous mode and with the shortest TTL;
    /// accept any pause, because it depends on the load of the machine
    #[arg(long)]
    short: bool,
    /// Run only trials whose line in --list contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print the trials without running them
    #[arg(long)]
    list: bool,
    /// Write the results into this page, between its two markers
    #[arg(long, value_name = "FILE", conflicts_with_all = ["short", "only"])]
    write: Option<PathBuf>,
    /// Leave the directory with the logs
    #[arg(long)]
    keep: bool,
    /// Python environment with Patroni; without it, Patroni is searched for in PATH
    #[arg(long, value_name = "DIR")]
    patroni: Option<PathBuf>,
    /// Folder with the server's programs
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  ha
  ha --short
  ha --only 'frozen, asynchronous' --keep

Needs etcd (apt-get install etcd-server), and Patroni 3.1 or later, which `make ha-check` installs

Exit codes: 0 every goal was reached; 1 a goal was missed, or an error; 2 usage; 128 + n ended by
signal n";

/// Runs the program: parses the command line, injects the faults, reports the outcome.
#[must_use]
pub fn main() -> ExitCode {
    cli::main(|| run(&Args::try_parse()?))
}

fn run(args: &Args) -> Result<u8> {
    let mut trials = catalog::trials(args.short);
    let text = args.only.as_deref().unwrap_or("");
    trials.retain(|trial| trial.to_string().contains(text));
    ensure!(!trials.is_empty(), "no trial matches \"{text}\"");
    if args.list {
        trials.iter().for_each(|trial| println!("{trial}"));
        return Ok(exit::OK);
    }
    let programs = Programs::find(args.patroni.as_deref())?;
    let binaries = Binaries::find_or_install(args.directory.as_deref())?;
    let settings = Settings::shipped(args.short);
    let runtime = cli::many_threads()?;
    runtime.block_on(async {
        // Install the handlers before any setup: from then on, no signal ends this process without
        // clean-up.
        let mut signals = Signals::new()?;
        eprintln!("ha: starting etcd and three nodes");
        let mut patroni = Patroni::new(programs, &binaries, &settings, args.keep)?;
        let outcomes = tokio::select! {
            biased;
            signal = signals.next() => {
                eprintln!("ha: interrupted, cleaning up");
                return Ok(signal_exit_code(signal.as_raw()));
            }
            outcomes = run_trials(&trials, &settings, &mut patroni) => outcomes,
        };
        finish(args, &settings, &outcomes.inspect_err(|_| eprintln!("{}", patroni.tails()))?)
    })
}

/// Runs the trials in order. After an error, the state of the cluster is unknown, and the remaining
/// trials are not run.
async fn run_trials(
    trials: &[Trial],
    settings: &Settings,
    patroni: &mut Patroni,
) -> Result<Vec<Outcome>> {
    let begun = Instant::now();
    patroni.start().await?;
    let mut outcomes = Vec::new();
    for (n, trial) in trials.iter().enumerate() {
        patroni.replicate(trial.mode, settings).await?;
        let outcome = trial::run(patroni, *trial, settings, n).await?;
        let seconds = begun.elapsed().as_secs();
        eprintln!("[{}/{}, {seconds} s] {outcome}", n + 1, trials.len());
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

fn finish(args: &Args, settings: &Settings, outcomes: &[Outcome]) -> Result<u8> {
    let report = report::report(outcomes, settings);
    println!("{report}");
    if let Some(page) = &args.write {
        report::write(page, &report)?;
    }
    let judge = if args.short { Outcome::correct } else { Outcome::passed };
    Ok(if outcomes.iter().all(judge) { exit::OK } else { exit::FAILURE })
}
