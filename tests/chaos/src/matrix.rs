//! One fault at one moment at a time: `chaos matrix`.
//!
//! A cell is tried on a private cluster with two workers, several times in a row; cells that have
//! nothing to do with each other are tried at the same time, each on a cluster of its own, because
//! nearly all that a try does is wait.

mod attempt;
mod catalog;
mod cell;
mod disk;
mod ground;
mod injury;
mod memory;
mod network;
mod scratch;
mod seat;
mod session;
mod site;
mod subject;
mod table;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cluster::{Binaries, Signals, by_signal};
use queue::exit;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use cell::{Cell, Fault, Kind};
use ground::Ground;
use scratch::Scratch;
use site::Site;
use table::Shown;

/// Tries of a cell, unless the user says otherwise; in the short form; and of a slow cell at most.
const TRIES: u32 = 5;
const SHORT_TRIES: u32 = 1;
const SLOW_TRIES: u32 = 2;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One try of each cell, and none of the slowest cells
    #[arg(long)]
    short: bool,
    /// Only cells whose line in --list has this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Tries of each cell [default: 5, with --short 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tries: Option<u32>,
    /// Print the cells, and try none
    #[arg(long)]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Put the table into this page, between its two marks, unless a cell was skipped
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Cells at the same time, each on a cluster of its own
    #[arg(long, value_name = "N", default_value = "12", value_parser = clap::value_parser!(u32).range(1..=32))]
    lanes: u32,
    /// Folder with the server's programs
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
}

/// Cells with their number, by what they need.
type Queues = HashMap<Kind, VecDeque<(usize, Cell)>>;

/// What all lanes share.
struct Plan {
    queues: Mutex<Queues>,
    binaries: Binaries,
    scratch: Arc<Scratch>,
    short: bool,
    tries: u32,
}

/// Runs the matrix; the exit code says whether what is promised was found.
pub(crate) fn run(args: &Args) -> Result<u8> {
    let text = args.only.as_deref().unwrap_or("");
    let mut cells = catalog::cells();
    cells.retain(|cell| cell.to_string().contains(text) && !(args.short && cell.fault.slow()));
    ensure!(!cells.is_empty(), "no cell has \"{text}\" in its line");
    if args.list {
        cells.iter().for_each(|cell| println!("{cell}"));
        return Ok(exit::OK);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before anything is set up: from here on, a signal no longer ends this process at once.
        let mut signals = Signals::new()?;
        let mut lanes = JoinSet::new();
        let told = tokio::select! {
            shown = all(args, &cells, &mut lanes) => Ok(shown?),
            signal = signals.next() => Err(signal),
        };
        // Whatever they have set up goes with them.
        lanes.shutdown().await;
        match told {
            Ok(shown) => report(args, &shown),
            Err(signal) => Ok(by_signal(signal.as_raw())),
        }
    })
}

fn report(args: &Args, shown: &[Shown]) -> Result<u8> {
    if args.json {
        println!("{}", serde_json::to_string_pretty(shown)?);
    } else {
        println!("{}\n{}", table::table(shown), table::sum(shown));
    }
    match &args.write {
        // What was tried where everything could be is worth more than this.
        Some(page) if shown.iter().any(|shown| shown.skipped.is_some()) => {
            eprintln!("chaos: {} stays as it is, for some cells were skipped", page.display());
        }
        Some(page) => table::write(page, shown)?,
        None => {}
    }
    let holds = shown.iter().all(|shown| shown.skipped.is_some() || shown.holds());
    Ok(if holds { exit::OK } else { exit::FAILURE })
}

/// Tries the cells, and returns what they have shown, in their order.
async fn all(args: &Args, cells: &[Cell], lanes: &mut JoinSet<()>) -> Result<Vec<Shown>> {
    let begun = Instant::now();
    let binaries = Binaries::find_or_install(args.directory.as_deref())?;
    let scratch = Arc::new(Scratch::new()?);
    let mut shown: Vec<Option<Shown>> = vec![None; cells.len()];
    let mut queues = Queues::new();
    let mut missing = HashMap::new();
    for (n, cell) in cells.iter().enumerate() {
        let kind = cell.fault.kind();
        let lacks =
            missing.entry(kind).or_insert_with(|| ground::missing(kind, &binaries, &scratch));
        match lacks.clone().or_else(|| lacking(*cell)) {
            Some(why) => shown[n] = Some(Shown::new(*cell).skipped(why)),
            None => queues.entry(kind).or_default().push_back((n, *cell)),
        }
    }
    let tries = args.tries.unwrap_or(if args.short { SHORT_TRIES } else { TRIES });
    let short = args.short;
    let plan = Arc::new(Plan { queues: Mutex::new(queues), binaries, scratch, short, tries });
    let (sender, mut results) = mpsc::unbounded_channel();
    for n in 0..args.lanes {
        lanes.spawn(lane(n, Arc::clone(&plan), sender.clone()));
    }
    drop(sender);
    while let Some((n, one)) = results.recv().await {
        let done = shown.iter().flatten().count() + 1;
        progress(begun, (done, cells.len()), cells[n], &one);
        shown[n] = Some(one);
    }
    while let Some(ended) = lanes.join_next().await {
        ended.context("a lane broke")?;
    }
    shown.into_iter().collect::<Option<_>>().context("a cell was not tried")
}

fn progress(begun: Instant, (done, all): (usize, usize), cell: Cell, shown: &Shown) {
    let Shown { tries, lost, double, stuck, unknown, .. } = shown;
    let seconds = begun.elapsed().as_secs();
    let recovery = shown.recovery_seconds.unwrap_or_default();
    eprintln!(
        "[{done}/{all}, {seconds} s] {cell}: {tries} tries, {lost} lost, {double} double, {stuck} \
         stuck, {unknown} unknown, recovery {recovery} s{}",
        if shown.holds() { "" } else { "   <-- BROKEN" }
    );
    if let Some(error) = &shown.error {
        eprintln!("{error}");
    }
}

/// Why this cell cannot be tried here, though others of its kind can.
fn lacking(cell: Cell) -> Option<String> {
    match cell.fault {
        Fault::OutOfMemory => ground::missing_memory(),
        Fault::ClockAhead | Fault::ClockBehind => ground::missing_clock(),
        _ => None,
    }
}

/// Takes cell after cell.
async fn lane(number: u32, plan: Arc<Plan>, shown: mpsc::UnboundedSender<(usize, Shown)>) {
    // Some look after what is rare first; there is work for all in the end.
    let kinds: &[Kind] = match number {
        0 => &[Kind::Plain, Kind::Standby, Kind::Network, Kind::DataDisk, Kind::WalDisk],
        1..=3 => &[Kind::Network, Kind::Plain],
        4 => &[Kind::DataDisk, Kind::WalDisk, Kind::Plain],
        5 => &[Kind::Standby, Kind::Plain],
        _ => &[Kind::Plain],
    };
    let mut ground: Option<(Kind, Ground)> = None;
    while let Some((n, cell)) = next(&plan, kinds) {
        let kind = cell.fault.kind();
        let there = ground.take().filter(|(known, _)| *known == kind);
        let mut one = Shown::new(cell);
        let tried = match there {
            Some((_, ground)) => Ok(ground),
            None => Ground::new(kind, plan.binaries.clone(), Arc::clone(&plan.scratch)).await,
        };
        match tried {
            Ok(mut stands) => match attempts(&plan, &mut stands, n, &mut one).await {
                Ok(()) => ground = Some((kind, stands)),
                // Nobody knows what it is like by now: the next cell gets another one.
                Err(error) => one.error = Some(format!("{error:#}")),
            },
            Err(error) => one.error = Some(format!("{error:#}")),
        }
        if shown.send((n, one)).is_err() {
            return;
        }
    }
}

fn next(plan: &Plan, kinds: &[Kind]) -> Option<(usize, Cell)> {
    let mut queues = plan.queues.lock().unwrap_or_else(PoisonError::into_inner);
    kinds.iter().find_map(|kind| queues.get_mut(kind)?.pop_front())
}

/// All tries of one cell.
async fn attempts(plan: &Plan, ground: &mut Ground, n: usize, shown: &mut Shown) -> Result<()> {
    let cell = shown.cell();
    let tries = if cell.fault.slow() { plan.tries.min(SLOW_TRIES) } else { plan.tries };
    let mut site = Site::new(ground, cell, n, plan.short).await?;
    for _ in 0..tries {
        let recovery = attempt::one(&mut site).await;
        shown.tried(recovery.with_context(|| format!("{cell}{}", site.tails()))?);
        if shown.stuck > 0 {
            // What is stuck would be in the way of the next try, and of a clean end.
            eprintln!("{cell}: stuck{}", site.tails());
            break;
        }
    }
    if shown.stuck == 0 {
        // All who were hit are there again, and not only those that did the work.
        site.ready().await.with_context(|| cell.to_string())?;
    }
    let counts = site.close(shown.tries).await?;
    shown.lost += counts.lost;
    shown.double += counts.double;
    shown.unknown += counts.unknown;
    Ok(())
}
