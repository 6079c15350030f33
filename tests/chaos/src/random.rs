//! Runs a seeded plan of load, faults and operator actions on a private cluster with a fleet of
//! real workers. At the end the checker reports which promises held.
//!
//! Modules: `plan` draws the steps, which are `work_item`s for `load_generator`, faults, and
//! actions for `operator`. `servers` runs the servers. `director` executes the plan. `monitors` observe
//! running tasks meanwhile. `progress` and `report` print the results.

mod director;
mod load_generator;
mod monitors;
mod operator;
mod plan;
mod progress;
mod report;
mod servers;
mod work_item;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use cli::exit;
use cluster::{Binaries, Signals, signal_exit_code};
use rand::RngExt;
use tokio::task::block_in_place;

use self::director::Director;
use self::plan::{Plan, Size};
use self::progress::Progress;
use self::report::Report;
use self::servers::Servers;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Seed of the plan; equal seeds produce equal plans [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of tasks to enqueue
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    tasks: usize,
    /// Number of worker kills
    #[arg(long, value_name = "N", default_value_t = 500)]
    kills: usize,
    /// Number of server crashes, alternating `stop -m immediate` and SIGKILL, each followed by a
    /// restart
    #[arg(long, value_name = "N", default_value_t = 40)]
    crashes: usize,
    /// Lose the primary in the last third of the plan, and promote its synchronous standby
    #[arg(long)]
    promote: bool,
    /// Time limit, after which the rest of the plan is skipped and the checks run; the run then fails
    #[arg(long, value_name = "SECONDS", default_value_t = 1500)]
    seconds_limit: u64,
    /// Accept a run that the time limit has cut short, if the checks pass
    #[arg(long)]
    accept_partial: bool,
    /// Number of concurrent workers, with 8 readers each
    #[arg(long, value_name = "N", default_value_t = 6,
          value_parser = clap::value_parser!(u8).range(1..=30))]
    workers: u8,
    /// Print the plan without running it
    #[arg(long)]
    plan: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Leave the server running if a guarantee was violated, and print how to connect
    #[arg(long)]
    keep: bool,
    /// Folder with initdb, pg_ctl and postgres, or a parent folder with bin/ or native/bin/
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  chaos random --promote
  chaos random --tasks 3000 --kills 20 --crashes 2 --promote --seed 7

Equal seeds produce equal plans; the task or session that a fault hits depends on timing.

A run with violations is repeated, up to twice, if the clock of this machine was set back meanwhile.

Exit codes: 0 every promise held; 1 a promise was broken, the time limit expired, or an error; 2
usage; 128 + n ended by signal n";

/// Maximum number of runs. A run is void if its violations prove nothing.
const MAX_RUNS: usize = 3;

pub(crate) fn run(args: &Args) -> Result<u8> {
    let seed = args.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    if args.plan {
        print!("{}", plan(args, seed));
        return Ok(exit::OK);
    }
    let binaries = Binaries::find_or_install(args.directory.as_deref())?;
    let runtime = cli::many_threads()?;
    runtime.block_on(async {
        // Install the handlers before the server starts: from then on, no signal ends this process
        // without clean-up.
        let mut signals = Signals::new()?;
        let mut runs = 0;
        loop {
            let ended = run_once(args, seed, binaries.clone(), &mut signals).await?;
            runs += 1;
            match &ended {
                Ended::Report(report) if report.is_void() && runs < MAX_RUNS => eprintln!(
                    "{report}chaos: the checks compare points in time, and the clock of this machine was set \
                     back. The run is repeated"
                ),
                _ => return print_end(args, &ended),
            }
        }
    })
}

fn plan(args: &Args, seed: u64) -> Plan {
    let Args { tasks, kills, crashes, promote, .. } = *args;
    Plan::draw(seed, Size { tasks, kills, crashes, promote })
}

/// How a run has ended.
enum Ended {
    Report(Box<Report>),
    /// By a signal; the exit code.
    Signal(u8),
}

async fn run_once(
    args: &Args,
    seed: u64,
    binaries: Binaries,
    signals: &mut Signals,
) -> Result<Ended> {
    let progress = Progress::new();
    progress.phase(&format!("seed {seed}, starting a private cluster"));
    let mut servers = block_in_place(|| Servers::open(binaries, args.promote))?;
    let ended = tokio::select! {
        biased;
        signal = signals.next() => {
            progress.clear();
            eprintln!("chaos: interrupted, cleaning up");
            return Ok(Ended::Signal(signal_exit_code(signal.as_raw())));
        }
        ended = run_plan(args, plan(args, seed), &mut servers, &progress) => ended,
    };
    progress.clear();
    if !ended.as_ref().is_ok_and(|report| report.passed(args.accept_partial)) {
        eprintln!("chaos: repeat with: {}", repeat_command(args, seed));
        if args.keep {
            eprintln!("chaos: the server is left running: {}", servers.keep()?);
        }
    }
    Ok(Ended::Report(Box::new(ended?)))
}

async fn run_plan(
    args: &Args,
    plan: Plan,
    servers: &mut Servers,
    progress: &Progress,
) -> Result<Report> {
    servers.prepare().await?;
    let limit = Duration::from_secs(args.seconds_limit);
    let director = Director::new(servers, progress, usize::from(args.workers), limit)?;
    director.run_plan(plan).await
}

/// Returns the command that produces the same plan.
fn repeat_command(args: &Args, seed: u64) -> String {
    let Args { tasks, kills, crashes, workers, .. } = args;
    let promote = if args.promote { " --promote" } else { "" };
    format!(
        "chaos random --seed {seed} --tasks {tasks} --kills {kills} --crashes {crashes} \
         --workers {workers}{promote}"
    )
}

fn print_end(args: &Args, ended: &Ended) -> Result<u8> {
    let report = match ended {
        Ended::Report(report) => report,
        Ended::Signal(code) => return Ok(*code),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{report}");
    }
    Ok(if report.passed(args.accept_partial) { exit::OK } else { exit::FAILURE })
}
