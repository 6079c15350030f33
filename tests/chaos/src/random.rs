//! A seeded plan of load, faults and what an operator does, on a private cluster with a fleet of real
//! workers; the checker says at the end which promises held.
//!
//! The way through the files: `plan` draws what is going to happen, of `item`s that `load` asks for,
//! faults, and what `act` does; `stage` has the servers, `fleet` the workers; `direct` carries the plan
//! out through `session`s that survive it; `screen` and `report` tell.

mod act;
mod direct;
mod fleet;
mod item;
mod load;
mod plan;
mod report;
mod screen;
mod session;
mod stage;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use cluster::{Binaries, Signals, by_signal};
use queue::exit;
use rand::RngExt;
use tokio::task::block_in_place;

use self::direct::Director;
use self::plan::{Plan, Size};
use self::report::Report;
use self::screen::Screen;
use self::stage::Stage;

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
    /// How many times the server is lost and starts again: by `stop -m immediate` and by SIGKILL in turns
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
        let screen = Screen::new();
        // Before the start: from here on, a signal no longer ends this process without clean-up.
        let mut signals = Signals::new()?;
        screen.stage(&format!("seed {seed}, starting a private cluster"));
        let mut stage = block_in_place(|| Stage::open(binaries, args.promote))?;
        let ended = tokio::select! {
            biased;
            signal = signals.next() => {
                screen.clear();
                eprintln!("chaos: interrupted, cleaning up");
                return Ok(by_signal(signal.as_raw()));
            }
            ended = carry_out(args, plan, &mut stage, &screen) => ended,
        };
        screen.clear();
        if !ended.as_ref().is_ok_and(|report| !report.broken()) {
            eprintln!("chaos: repeat it with: {}", again(args, seed));
            if args.keep {
                eprintln!("chaos: the server is left running: {}", stage.keep()?);
            }
        }
        tell(args, &ended?)
    })
}

async fn carry_out(args: &Args, plan: Plan, stage: &mut Stage, screen: &Screen) -> Result<Report> {
    stage.prepare().await?;
    let limit = Duration::from_secs(args.seconds_limit);
    let director = Director::new(stage, screen, usize::from(args.workers), limit)?;
    director.carry_out(plan).await
}

/// The command that makes the same plan.
fn again(args: &Args, seed: u64) -> String {
    let Args { tasks, kills, crashes, workers, .. } = args;
    let promote = if args.promote { " --promote" } else { "" };
    format!(
        "chaos random --seed {seed} --tasks {tasks} --kills {kills} --crashes {crashes} \
         --workers {workers}{promote}"
    )
}

fn tell(args: &Args, report: &Report) -> Result<u8> {
    if args.json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{report}");
    }
    Ok(if report.broken() { exit::FAILURE } else { exit::OK })
}
