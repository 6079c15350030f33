//! The command line.

use std::process::ExitCode;

use clap::Parser;
use cli::exit;

use crate::bug::Bug;
use crate::run::{Summary, simulate};
use crate::world::{Faults, Options};

/// Simulates a fleet with faults, on a virtual clock, and checks its promises
#[derive(Parser)]
#[command(name = "simulation", version, max_term_width = 100, after_help = AFTER_HELP)]
struct Args {
    /// Seed of the first simulation [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of seeds, counting upwards
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    seeds: u64,
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 100)]
    workers: usize,
    /// Readers of each worker
    #[arg(long, value_name = "N", default_value_t = 2)]
    readers: usize,
    /// Virtual time until the last fault, in hours
    #[arg(long, value_name = "H", default_value_t = 1.0)]
    hours: f64,
    /// Tasks enqueued per second
    #[arg(long, value_name = "RATE", default_value_t = 4.0)]
    tasks: f64,
    /// Plant a bug, which the simulation has to find
    #[arg(long, value_name = "NAME")]
    bug: Option<Bug>,
    /// Print what fleets of 10, 100 and more workers send, up to --workers
    #[arg(long, conflicts_with_all = ["bug", "seeds"])]
    costs: bool,
    /// Print the results as JSON, one object per simulation
    #[arg(long)]
    json: bool,
    /// Write every event to standard error
    #[arg(long)]
    trace: bool,
}

const AFTER_HELP: &str = "\
Examples:
  simulation --seed 7
  simulation --workers 1000 --hours 24 --seed 7
  simulation --seeds 50 --hours 2
  simulation --bug outage-unreported
  simulation --costs --workers 1000

Exit codes: 0 every promise was kept; 1 a promise was broken, or an error; 2 usage";

/// Runs the program: parses the command line, simulates, prints the outcome.
#[must_use]
pub fn main() -> ExitCode {
    cli::main(|| run(&Args::try_parse()?))
}

fn run(args: &Args) -> Result<u8, cli::Failure> {
    if args.costs {
        return costs(args);
    }
    let first = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let mut broken = false;
    for seed in first..first.saturating_add(args.seeds) {
        let options = options(args, seed);
        let bar = indicatif::ProgressBar::new(options.seconds);
        bar.set_message(format!("seed {seed}"));
        let style =
            indicatif::ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} s, {eta} left");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        let summary = simulate(options, |second| bar.set_position(second));
        bar.finish_and_clear();
        print(args, seed, &summary)?;
        broken |= summary.violation.is_some();
    }
    Ok(if broken { exit::FAILURE } else { exit::OK })
}

fn options(args: &Args, seed: u64) -> Options {
    Options {
        seed,
        workers: args.workers.max(1),
        readers: args.readers.max(1),
        seconds: (args.hours * 3600.0) as u64,
        tasks_per_second: args.tasks,
        faults: Faults::All,
        bug: args.bug,
        trace: args.trace,
    }
}

fn print(args: &Args, seed: u64, summary: &Summary) -> Result<(), cli::Failure> {
    let statements: u64 = summary.statements.values().sum();
    let text = if args.json {
        let value = serde_json::json!({
            "seed": seed, "workers": args.workers, "violation": summary.violation,
            "trace_hash": format!("{:016x}", summary.trace_hash), "events": summary.events,
            "seconds": summary.seconds, "faults": summary.faults, "tasks": summary.tasks,
            "reclaims": summary.reclaims, "statements": summary.statements, "peak": summary.peak,
            "longest_wait_ms": summary.longest_wait_ms,
        });
        format!("{value}\n")
    } else {
        let Summary { seconds, faults, tasks, reclaims, peak, longest_wait_ms, .. } = summary;
        let head = format!(
            "seed {seed}: {} workers, {seconds:.0} s, {faults} faults, {tasks} tasks, {reclaims} \
             reclaimed, {statements} statements, at most {peak} in 0.1 s, longest wait without faults \
             {longest_wait_ms} ms, trace {:016x}\n",
            args.workers, summary.trace_hash
        );
        let broken = summary.violation.as_ref().map(|violation| {
            let bug = args.bug.map(|bug| format!(" --bug {}", name(bug))).unwrap_or_default();
            format!(
                "{violation}\nTo repeat: simulation --seed {seed} --workers {} --readers {} --hours \
                 {} --tasks {}{bug}\n",
                args.workers, args.readers, args.hours, args.tasks
            )
        });
        head + &broken.unwrap_or_default()
    };
    write_text(&text)
}

fn name(bug: Bug) -> String {
    clap::ValueEnum::to_possible_value(&bug)
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// Returns the virtual time for which the costs of a fleet are counted, in seconds. It is shorter in
/// a large fleet, in which a second takes longer to simulate.
fn cost_seconds(workers: usize) -> u32 {
    if workers < 10_000 { 300 } else { 100 }
}

const COST_HEAD: &str = "\
| workers | tasks/s | statements/s | polls/s | heartbeats/s | claims/s | wake-ups/s | rows of workers/s | \
kill to pending, median / longest |
|--:|--:|--:|--:|--:|--:|--:|--:|--:|
";

/// Prints what fleets of several sizes send, unless one of them violates an invariant.
fn costs(args: &Args) -> Result<u8, cli::Failure> {
    write_text(COST_HEAD)?;
    let mut workers = 10;
    while workers <= args.workers {
        for tasks in [0.0, 1.0, args.tasks] {
            let options = Options {
                workers,
                seconds: u64::from(cost_seconds(workers)),
                tasks_per_second: tasks,
                faults: if tasks > 0.0 { Faults::Kills } else { Faults::None },
                ..options(args, args.seed.unwrap_or(1))
            };
            let summary = simulate(options, |_| {});
            if let Some(violation) = &summary.violation {
                write_text(&format!("{workers} workers: {violation}\n"))?;
                return Ok(exit::FAILURE);
            }
            write_text(&cost_row(&options, &summary))?;
        }
        workers *= 10;
    }
    Ok(exit::OK)
}

fn cost_row(options: &Options, summary: &Summary) -> String {
    let rate =
        |count: u64| format!("{:.0}", count as f64 / f64::from(cost_seconds(options.workers)));
    let of =
        |kinds: &[&str]| rate(kinds.iter().filter_map(|kind| summary.statements.get(kind)).sum());
    let seconds = |ms: u64| ms as f64 / 1000.0;
    let recoveries = &summary.recoveries_ms;
    let recovery = match (recoveries.get(recoveries.len() / 2), recoveries.last()) {
        (Some(median), Some(longest)) => {
            format!("{:.1} s / {:.1} s", seconds(*median), seconds(*longest))
        }
        _ => String::new(),
    };
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {recovery} |\n",
        options.workers,
        options.tasks_per_second,
        rate(summary.statements.values().sum()),
        of(&["poll"]),
        of(&["heartbeat"]),
        of(&["claim", "lanes"]),
        rate(summary.notifications),
        rate(summary.peers_read),
    )
}

fn write_text(text: &str) -> Result<(), cli::Failure> {
    cli::print(|out| out.write_all(text.as_bytes())).map_err(cli::Failure::from)
}
