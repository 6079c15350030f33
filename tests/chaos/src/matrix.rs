//! `chaos matrix`: injects each fault at each moment of a task's life. A pair of both is a cell.
//!
//! Each cell runs several trials in a row on a private cluster with two workers. Independent cells
//! run concurrently, each on its own cluster, because a trial spends nearly all its time waiting.

mod catalog;
mod cell;
mod environment;
mod failover;
mod fault;
mod injection;
mod recovery_times;
mod resources;
mod table;
mod test_bed;
mod test_task;
mod trial;
mod worker_slot;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cli::exit;
use cluster::{Binaries, Signals, signal_exit_code};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use cell::Cell;
use environment::Environment;
use fault::{Fault, Setup};
use resources::scratch::Scratch;
use table::CellResult;
use test_bed::TestBed;

/// Number of trials per cell: the default, the number with `--short`, and the maximum for a slow
/// cell.
const TRIES: u32 = 5;
const SHORT_TRIES: u32 = 1;
const SLOW_TRIES: u32 = 2;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run one trial per cell and omit the slowest cells
    #[arg(long)]
    short: bool,
    /// Run only cells whose line in --list contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Number of trials per cell [default: 5, with --short 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tries: Option<u32>,
    /// Print the cells without running them
    #[arg(long)]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the rows into the table of this page, between its two markers, unless a cell was
    /// skipped
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Number of cells that run at once, each on its own cluster; fewer by default on one processor
    #[arg(long, value_name = "N", default_value_t = default_parallel())]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=32))]
    parallel: u32,
    /// Folder with the server's programs
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
}

/// Cells with their index, grouped by required setup.
type Queues = HashMap<Setup, VecDeque<(usize, Cell)>>;

/// State shared by all runners.
struct MatrixRun {
    queues: Mutex<Queues>,
    binaries: Binaries,
    scratch: Arc<Scratch>,
    short: bool,
    tries: u32,
}

/// Runs the matrix; the exit code reports whether every promise held.
pub(crate) fn run(args: &Args) -> Result<u8> {
    let text = args.only.as_deref().unwrap_or("");
    let mut cells = catalog::cells();
    cells.retain(|cell| cell.to_string().contains(text) && !(args.short && cell.fault.slow()));
    ensure!(!cells.is_empty(), "no cell matches \"{text}\"");
    if args.list {
        cells.iter().for_each(|cell| println!("{cell}"));
        return Ok(exit::OK);
    }
    let runtime = cli::many_threads()?;
    runtime.block_on(async {
        // Install the handlers before any setup: from then on, no signal ends this process at once.
        let mut signals = Signals::new()?;
        let mut runners = JoinSet::new();
        let reported = tokio::select! {
            cell_results = all(args, &cells, &mut runners) => Ok(cell_results?),
            signal = signals.next() => Err(signal),
        };
        // Dropping the runners removes everything that they set up.
        runners.shutdown().await;
        match reported {
            Ok(cell_results) => report(args, &cell_results),
            Err(signal) => Ok(signal_exit_code(signal.as_raw())),
        }
    })
}

fn report(args: &Args, cell_results: &[CellResult]) -> Result<u8> {
    if args.json {
        println!("{}", serde_json::to_string_pretty(cell_results)?);
    } else {
        println!("{}", table::text(cell_results));
    }
    match &args.write {
        // Keep the results in the page: they are more complete, because they come from a machine
        // that could run every cell.
        Some(page) if cell_results.iter().any(|cell_results| cell_results.skipped.is_some()) => {
            eprintln!(
                "chaos: {} is left unchanged because some cells were skipped",
                page.display()
            );
        }
        Some(page) => {
            table::write(page, cell_results, &catalog::cells())?;
            recovery_times::write(page, cell_results, &catalog::cells())?;
        }
        None => {}
    }
    let holds = cell_results
        .iter()
        .all(|cell_results| cell_results.skipped.is_some() || cell_results.passed());
    Ok(if holds { exit::OK } else { exit::FAILURE })
}

/// Runs the cells and returns their results in the same order.
async fn all(args: &Args, cells: &[Cell], runners: &mut JoinSet<()>) -> Result<Vec<CellResult>> {
    let begun = Instant::now();
    let binaries = Binaries::find_or_install(args.directory.as_deref())?;
    let scratch = Arc::new(Scratch::new()?);
    let mut cell_results: Vec<Option<CellResult>> = vec![None; cells.len()];
    let mut queues = Queues::new();
    let mut missing = HashMap::new();
    for (n, cell) in cells.iter().enumerate() {
        let kind = cell.setup();
        let lacks =
            missing.entry(kind).or_insert_with(|| test_bed::missing(kind, &binaries, &scratch));
        match lacks.clone().or_else(|| missing_for_fault(*cell, &scratch)) {
            Some(why) => cell_results[n] = Some(CellResult::new(*cell).skipped(why)),
            None => queues.entry(kind).or_default().push_back((n, *cell)),
        }
    }
    let tries = args.tries.unwrap_or(if args.short { SHORT_TRIES } else { TRIES });
    let short = args.short;
    let plan = Arc::new(MatrixRun { queues: Mutex::new(queues), binaries, scratch, short, tries });
    let (sender, mut results) = mpsc::unbounded_channel();
    for n in 0..args.parallel {
        runners.spawn(run_cells(n, Arc::clone(&plan), sender.clone()));
    }
    drop(sender);
    while let Some((n, one)) = results.recv().await {
        let done = cell_results.iter().flatten().count() + 1;
        progress(begun, (done, cells.len()), cells[n], &one);
        cell_results[n] = Some(one);
    }
    while let Some(ended) = runners.join_next().await {
        ended.context("a runner failed")?;
    }
    cell_results.into_iter().collect::<Option<_>>().context("a cell was not run")
}

/// Returns how many cells run at once by default. Trials have time limits: with more clusters than the
/// processors can serve, a fleet that works looks like one that is stuck.
fn default_parallel() -> u32 {
    if available_parallelism().map_or(1, usize::from) > 1 { 12 } else { 6 }
}

fn progress(begun: Instant, (done, all): (usize, usize), cell: Cell, cell_results: &CellResult) {
    let CellResult { tries, lost, duplicates, stuck, unknown, .. } = cell_results;
    let seconds = begun.elapsed().as_secs();
    let recovery = cell_results.longest().unwrap_or_default();
    eprintln!(
        "[{done}/{all}, {seconds} s] {cell}: {tries} trials, {lost} lost, {duplicates} duplicates, {stuck} \
         stuck, {unknown} unknown, recovery {recovery} s{}",
        if cell_results.passed() { "" } else { "   <-- BROKEN" }
    );
    if let Some(error) = &cell_results.error {
        eprintln!("{error}");
    }
}

/// Returns why this cell cannot run here, if other cells with its setup can.
fn missing_for_fault(cell: Cell, scratch: &Scratch) -> Option<String> {
    match cell.fault {
        Fault::OutOfMemory => test_bed::missing_memory(),
        Fault::ClockAhead | Fault::ClockBehind => test_bed::missing_clock(scratch),
        fault if fault.needs_pooler() => test_bed::missing_pooler(),
        _ => None,
    }
}

/// Runs one cell after another.
async fn run_cells(
    number: u32,
    plan: Arc<MatrixRun>,
    cell_results: mpsc::UnboundedSender<(usize, CellResult)>,
) {
    // Some runners start with the rare setups. Runners without other cells help with the two most
    // frequent setups.
    let kinds: &[Setup] = match number {
        0 => &[
            Setup::Plain,
            Setup::Target,
            Setup::Standby,
            Setup::Network,
            Setup::DataDisk,
            Setup::TempDisk,
            Setup::WalDisk,
            Setup::FrozenDisk,
            Setup::ServerClock,
        ],
        1..=3 => &[Setup::Network, Setup::Plain],
        4 => &[Setup::DataDisk, Setup::TempDisk, Setup::WalDisk, Setup::Plain],
        5 | 11 => &[Setup::Standby, Setup::Plain],
        6..=8 => &[Setup::Target, Setup::Plain],
        9 | 10 => &[Setup::FrozenDisk, Setup::ServerClock, Setup::Plain],
        _ => &[Setup::Plain, Setup::Target],
    };
    let mut test_bed: Option<(Setup, TestBed)> = None;
    while let Some((n, cell)) = next(&plan, kinds) {
        let kind = cell.setup();
        let there = test_bed.take().filter(|(known, _)| *known == kind);
        let mut one = CellResult::new(cell);
        let tried = match there {
            Some((_, test_bed)) => Ok(test_bed),
            None => TestBed::new(kind, plan.binaries.clone(), Arc::clone(&plan.scratch)).await,
        };
        match tried {
            Ok(mut bed) => match run_trials(&plan, &mut bed, n, &mut one).await {
                Ok(()) => test_bed = Some((kind, bed)),
                // The state of the test bed is unknown: the next cell gets a new one.
                Err(error) => one.error = Some(format!("{error:#}")),
            },
            Err(error) => one.error = Some(format!("{error:#}")),
        }
        if cell_results.send((n, one)).is_err() {
            return;
        }
    }
}

fn next(plan: &MatrixRun, kinds: &[Setup]) -> Option<(usize, Cell)> {
    let mut queues = plan.queues.lock();
    kinds.iter().find_map(|kind| queues.get_mut(kind)?.pop_front())
}

/// Runs all trials of one cell.
async fn run_trials(
    plan: &MatrixRun,
    test_bed: &mut TestBed,
    n: usize,
    cell_results: &mut CellResult,
) -> Result<()> {
    let cell = cell_results.cell();
    let tries = if cell.fault.slow() { plan.tries.min(SLOW_TRIES) } else { plan.tries };
    let mut environment = Environment::new(test_bed, cell, n, plan.short).await?;
    for _ in 0..tries {
        let recovery = trial::run(&mut environment).await;
        cell_results
            .record_try(recovery.with_context(|| format!("{cell}{}", environment.tails()))?);
        if cell_results.stuck > 0 {
            // A stuck task would disturb the next trial and a clean shutdown.
            eprintln!("{cell}: stuck{}", environment.tails());
            break;
        }
    }
    if cell_results.stuck == 0 {
        // Wait for all components that the fault may have hit, not only for the worker that ran the
        // tasks.
        environment.ready().await.with_context(|| cell.to_string())?;
    }
    let counts = environment.close(cell_results.tries).await?;
    cell_results.lost += counts.lost;
    cell_results.duplicates += counts.duplicates;
    cell_results.unknown += counts.unknown;
    Ok(())
}
