//! `chaos citus`: crashes a coordinator of Citus, its two nodes and the workers, while tasks write
//! one shard, two shards, or a table of the coordinator. At the end the checker reports which
//! promises held.
//!
//! Modules: `servers` starts the coordinator and the nodes. `load` enqueues the tasks and collects
//! their effects. `rates` compares rates with those of plain PostgreSQL.

mod load;
mod rates;
mod servers;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use checker::{Expect, Finding, check, record};
use cli::exit;
use cluster::{Binaries, until_signal};
use tokio::task::block_in_place;
use tokio::time::sleep;

use self::servers::{DRAIN, POLL, Servers};
use crate::fleet::Fleet;
use crate::session::Session;

/// Number of concurrent workers.
const WORKERS: usize = 3;

const ENDED: &str = "SELECT /* chaos.ended */ count(*) FROM mill.attempts a WHERE a.final";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Number of tasks
    #[arg(long, value_name = "N", default_value_t = 6000)]
    tasks: usize,
    /// Number of crashes of the coordinator; there are half as many of nodes, and as many kills of
    /// workers
    #[arg(long, value_name = "N", default_value_t = 12)]
    crashes: usize,
    /// Number of tasks of each measured rate; 0 measures nothing
    #[arg(long, value_name = "N", default_value_t = 4000)]
    rate_tasks: usize,
    /// Let tasks commit in one phase, to see what Citus does by default
    #[arg(long)]
    one_phase: bool,
    /// Folder with the programs of a server that has Citus, or a parent folder with bin/
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_CITUS_BIN")]
    directory: PathBuf,
}

const AFTER_HELP: &str = "\
Examples:
  chaos citus --pg /opt/citus
  chaos citus --pg /opt/citus --tasks 2000 --crashes 4 --rate-tasks 0

Exit codes: 0 every promise held; 1 a promise was broken, or an error; 2 usage; 128 + n ended by
signal n";

pub(crate) fn run(args: &Args) -> Result<u8> {
    let binaries = Binaries::find(Some(&args.directory))?;
    cli::many_threads()?.block_on(until_signal("chaos", run_all(args, binaries)))
}

async fn run_all(args: &Args, binaries: Binaries) -> Result<u8> {
    eprintln!("chaos: starting a coordinator and two nodes");
    let mut servers = block_in_place(|| Servers::open(binaries.clone()))?;
    servers.link().await?;
    if args.rate_tasks > 0 {
        print!("{}", rates::measure(&servers, binaries, args.rate_tasks).await?);
    }
    let mut session = Session::new(&servers.url(), "chaos");
    if args.one_phase {
        session.connected().await?.batch_execute(servers::ONE_PHASE).await?;
    }
    let findings = run_load(args, &mut servers, &mut session).await?;
    for Finding { invariant, count, examples } in &findings {
        match count {
            0 => println!("holds   {invariant}"),
            count => {
                println!("BROKEN  {invariant}: {count}\n        {}", examples.join("\n        "));
            }
        }
    }
    let broken = findings.iter().any(|finding| finding.count > 0);
    Ok(if broken { exit::FAILURE } else { exit::OK })
}

/// Runs the tasks while servers and workers crash.
async fn run_load(
    args: &Args,
    servers: &mut Servers,
    session: &mut Session,
) -> Result<Vec<Finding>> {
    let ops = load::enqueue(session, args.tasks).await?;
    let before = session.number(ENDED).await?;
    let mut fleet = Fleet::start(&servers.url(), servers.directory.clone(), None, WORKERS)?;
    // The faults are spread over the first nine tenths of the tasks.
    let faults = args.crashes + args.crashes / 2 + args.crashes;
    for n in 0..faults {
        let wanted = args.tasks * 9 / 10 * (n + 1) / (faults + 1);
        until(session, &mut fleet, before + i64::try_from(wanted)?).await?;
        match n % 5 {
            0 | 2 => block_in_place(|| servers.crash_coordinator())?,
            1 | 3 => fleet.kill(u32::try_from(n)?).await?,
            _ => block_in_place(|| servers.crash_node(n / 5))?,
        }
    }
    until(session, &mut fleet, before + i64::try_from(args.tasks)?).await?;
    fleet.end().await?;
    let prepared = servers.until_none_prepared(DRAIN).await?;
    let transient = "SELECT count(*) FROM mill.attempts a WHERE a.outcome <> 'succeeded'";
    println!(
        "{} tasks, {faults} faults, {} attempts failed or were lost, {prepared} transactions are \
         still prepared",
        args.tasks,
        session.number(transient).await?
    );
    ensure!(prepared == 0, "a node still has prepared transactions after {DRAIN:?}");
    load::collect_effects(session).await?;
    let client = session.connected().await?;
    record(client, &ops).await?;
    let mut findings = check(client, &Expect { fleet_gone: true, ..Expect::default() }).await?;
    findings.push(load::second_shard(session).await?);
    Ok(findings)
}

/// Returns once this number of tasks has ended.
async fn until(session: &mut Session, fleet: &mut Fleet, wanted: i64) -> Result<()> {
    let begun = Instant::now();
    loop {
        fleet.supervise()?;
        let ended = session.number(ENDED).await?;
        if ended >= wanted {
            return Ok(());
        }
        if begun.elapsed() > DRAIN {
            bail!("{ended} tasks have ended after {DRAIN:?}, of {wanted}");
        }
        sleep(POLL).await;
    }
}
