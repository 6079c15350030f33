//! Runs the same SQL work with other job queues ("peers") and with pgmill's own workers,
//! alternating, with a fresh database for each round in one cluster.
//!
//! `catalog` lists the peers and their settings, `install` installs them into a scratch folder,
//! `adapter` runs the adapter program of each peer, `turns` alternates the candidates. `backlog`,
//! `latency` and `enqueue` are the measurements.

mod adapter;
mod backlog;
mod catalog;
mod enqueue;
mod install;
mod latency;
mod turns;

use std::path::PathBuf;

use anyhow::Result;
use clap::builder::PossibleValuesParser;

use crate::args::Run;
use crate::context::RunContext;
use crate::database::Database;
use crate::result::{Case, Scenario};

use adapter::{Adapter, SetupDone, StepContext, TIMEOUT};
use catalog::{PEERS, Variant};

const AFTER_HELP: &str = "\
Examples:
  loadtest peers                                          all peers: 15 minutes
  loadtest peers --quick                                  check that everything works
  loadtest peers --peer graphile-worker --peer pg-boss    only these peers and pgmill
  loadtest peers --json > peers.json                      input for `loadtest report`

Peers are installed from npm (with Node.js), PyPI and crates.io, using npm, python3 and cargo, into
a scratch folder that is kept for the next run and may be deleted at any time. A peer that cannot be
installed is reported. loadtest/peers/README.md describes the setup of each peer.";

/// Tables for the peers in addition to those of the other scenarios. Start times come from the
/// server's clock; each task of pgmill and of a peer writes one row.
const TABLES: &str = "/* loadtest.peer_tables */
ALTER TABLE loadtest.effects ADD at timestamptz NOT NULL DEFAULT clock_timestamp();
CREATE TABLE loadtest.starts (
    task bigint NOT NULL, handler_at timestamptz, statement_at timestamptz NOT NULL)";

/// Prepares the server for a round: vacuumed, statistics current, checkpoint done.
const SETTLE: [&str; 2] =
    ["/* loadtest.peer_vacuum */ VACUUM (ANALYZE)", "/* loadtest.peer_checkpoint */ CHECKPOINT"];

/// Peers to compare with, and sizes.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Peers {
    /// Peer to run; repeatable [default: all]
    #[arg(long, value_name = "NAME",
        value_parser = PossibleValuesParser::new(PEERS.iter().map(|peer| peer.name)))]
    peer: Vec<String>,
    /// Tasks per backlog round; the slowest peers get a fraction
    #[arg(long, visible_alias = "jobs", value_name = "N", default_value_t = 30_000,
        value_parser = clap::value_parser!(u32).range(100..))]
    tasks: u32,
    /// Rounds per case; cases alternate [default: 3; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Concurrent tasks of pgmill's worker [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    readers: Option<u32>,
    /// Folder to install peers into [default: .cache/pgmill-loadtest-peers in the home folder]
    #[arg(long, value_name = "DIR", env = "PGMILL_PEERS")]
    scratch: Option<PathBuf>,
    /// Print the results as one JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Compare with an earlier run, a file written with --json
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Use small sizes: checks that everything works and gives rough figures
    #[arg(long)]
    quick: bool,
    /// Folder with initdb, pg_ctl and postgres, or a parent folder with bin/ or native/bin/
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
    /// Folder with the programs `worker` and `enqueue` [default: the folder of this program]
    #[arg(long, value_name = "DIR", env = "PGMILL_PROGRAMS")]
    programs: Option<PathBuf>,
}

impl Peers {
    /// Returns the options for the context.
    pub(crate) fn run(&self) -> Run {
        Run {
            readers: self.readers,
            rounds: self.rounds,
            json: self.json,
            compare: self.compare.clone(),
            quick: self.quick,
            directory: self.directory.clone(),
            programs: self.programs.clone(),
            ..Run::default()
        }
    }

    /// Returns the tasks per backlog round.
    pub(crate) fn tasks(&self) -> i64 {
        i64::from(if self.quick { (self.tasks / 10).max(100) } else { self.tasks })
    }

    /// Installs the selected peers.
    ///
    /// # Errors
    /// Returns an error if the scratch folder has no valid path. A peer's own failure is part of
    /// the results.
    pub(crate) async fn gather(&self, context: &RunContext) -> Result<Participants> {
        let scratch = self.scratch.clone().unwrap_or_else(install::default_scratch);
        let scratch = std::path::absolute(scratch)?;
        let mut participants = Participants { adapters: Vec::new(), missing: Vec::new() };
        for peer in PEERS {
            if !self.peer.is_empty() && !self.peer.iter().any(|name| name == peer.name) {
                continue;
            }
            let name = format!("{} {}", peer.name, peer.version);
            context.progress.stage(&format!("installing {name} into {}", scratch.display()));
            match install::install(&scratch, peer).await {
                Ok(adapter) => participants.adapters.push(adapter),
                Err(error) => {
                    let reason = format!("{error:#}");
                    context.progress.line(&format!("{name} is not installed: {reason}"));
                    participants.missing.push((name, reason));
                }
            }
        }
        Ok(participants)
    }
}

/// The installed peers, and the reasons for those that could not be installed.
pub(crate) struct Participants {
    adapters: Vec<Adapter>,
    /// Name with version, reason.
    missing: Vec<(String, String)>,
}

/// The measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerScenario {
    Backlog,
    Latency,
    Enqueue,
}

impl PeerScenario {
    pub(crate) const ALL: [Self; 3] = [Self::Backlog, Self::Latency, Self::Enqueue];

    /// Name in the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Backlog => "peers",
            Self::Latency => "peers-latency",
            Self::Enqueue => "peers-enqueue",
        }
    }

    /// One-line description.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Backlog => "a backlog, each task one INSERT, through other job queues",
            Self::Latency => {
                "pick-up latency of an idle worker: from enqueue commit to statement start"
            }
            Self::Enqueue => "enqueueing: single tasks on 1 and 10 connections, and in bulk",
        }
    }

    /// Runs the measurement.
    ///
    /// # Errors
    /// Returns an error if the database or pgmill's own worker fails. A peer's failure is part of
    /// the results.
    pub(crate) async fn run(
        self,
        context: &RunContext,
        participants: &Participants,
        tasks: i64,
    ) -> Result<Scenario> {
        let mut scenario = match self {
            Self::Backlog => backlog::run(context, participants, tasks).await,
            Self::Latency => latency::run(context, participants).await,
            Self::Enqueue => enqueue::run(context, participants, tasks).await,
        }?;
        for (name, reason) in &participants.missing {
            scenario.cases.push(Case { name: format!("{name}: not installed"), ..Case::default() });
            scenario.notes.push(format!("{name} is not installed: {reason}"));
        }
        Ok(scenario)
    }
}

/// Creates a database for one round.
async fn fresh_database(context: &RunContext, label: &str) -> Result<Database> {
    let database = context.database(&format!("peers_{label}")).await?;
    database.session.batch_execute(TABLES).await?;
    Ok(database)
}

/// Creates the peer's own schema in the database.
async fn set_up(database: &Database, adapter: &Adapter, variant: &Variant) -> Result<()> {
    let step_context = StepContext { url: database.url(), settings: variant.settings };
    let SetupDone {} = adapter.step(step_context, "setup", TIMEOUT).await?;
    Ok(())
}

async fn vacuum_and_checkpoint(database: &Database) -> Result<()> {
    for sql in SETTLE {
        database.session.batch_execute(sql).await?;
    }
    Ok(())
}
