//! A seeded plan of load, faults and what an operator does, on a private cluster with a fleet of real
//! workers; the checker says at the end which promises held.
//!
//! The way through the files: `plan` draws what is going to happen, of `item`s that `load` asks for,
//! faults, and what `act` does; `servers` has the servers, `fleet` the workers; `direct` carries the plan
//! out through `session`s that survive it; `progress` and `report` tell.

mod director;
mod fleet;
mod load_generator;
mod operator;
mod plan;
mod progress;
mod report;
mod servers;
mod session;
mod work_item;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use cluster::{Binaries, Signals, signal_exit_code};
use queue::exit;
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
    /// Of the plan; equal seeds make equal plans [default: a random one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many tasks are asked for
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    tasks: usize,
    /// How many times a worker is killed
    #[arg(long, value_name = "N", default_value_t = 500)]
    kills: usize,
    /// How many times the server is lost and starts repeat_command: by `stop -m immediate` and by SIGKILL in turns
    #[arg(long, value_name = "N", default_value_t = 40)]
    crashes: usize,
    /// Lose the primary in the last third, and promote its synchronous standby
    #[arg(long)]
    promote: bool,
    /// Go on to the check after this time, whatever is left of the plan
    #[arg(long, value_name = "SECONDS", default_value_t = 1500)]
    seconds_limit: u64,
    /// Workers at a time, of 8 readers each
    #[arg(long, value_name = "N", default_value_t = 6,
          value_parser = clap::value_parser!(u8).range(1..=30))]
    workers: u8,
    /// Print the plan and do nothing
    #[arg(long)]
    plan: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Leave the server running if a promise was broken, and print how to connect
    #[arg(long)]
    keep: bool,
    /// Folder with initdb, pg_ctl and postgres, or with bin/ or native/bin/ that holds them
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  chaos random --promote
  chaos random --tasks 3000 --kills 20 --crashes 2 --promote --seed 7

The plan is the same for the same seed; which task or session a fault hits depends on the moment.

Exit codes: 0 every promise held; 1 one was broken, or something failed; 2 usage; 128 + n ended by
signal n";

pub(crate) fn run(args: &Args) -> Result<u8> {
    let seed = args.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    let (tasks, kills, crashes) = (args.tasks, args.kills, args.crashes);
    let plan = Plan::draw(seed, Size { tasks, kills, crashes, promote: args.promote });
    if args.plan {
        print!("{plan}");
        return Ok(exit::OK);
    }
    let binaries = Binaries::find_or_install(args.directory.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let progress = Progress::new();
        // Before the start: from here on, a signal no longer ends this process without clean-up.
        let mut signals = Signals::new()?;
        progress.phase(&format!("seed {seed}, starting a private cluster"));
        let mut servers = block_in_place(|| Servers::open(binaries, args.promote))?;
        let ended = tokio::select! {
            biased;
            signal = signals.next() => {
                progress.clear();
                eprintln!("chaos: interrupted, cleaning up");
                return Ok(signal_exit_code(signal.as_raw()));
            }
            ended = run_plan(args, plan, &mut servers, &progress) => ended,
        };
        progress.clear();
        if !ended.as_ref().is_ok_and(|report| !report.broken()) {
            eprintln!("chaos: repeat it with: {}", repeat_command(args, seed));
            if args.keep {
                eprintln!("chaos: the server is left running: {}", servers.keep()?);
            }
        }
        print_report(args, &ended?)
    })
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

/// The command that makes the same plan.
fn repeat_command(args: &Args, seed: u64) -> String {
    let Args { tasks, kills, crashes, workers, .. } = args;
    let promote = if args.promote { " --promote" } else { "" };
    format!(
        "chaos random --seed {seed} --tasks {tasks} --kills {kills} --crashes {crashes} \
         --workers {workers}{promote}"
    )
}

fn print_report(args: &Args, report: &Report) -> Result<u8> {
    if args.json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{report}");
    }
    Ok(if report.broken() { exit::FAILURE } else { exit::OK })
}
