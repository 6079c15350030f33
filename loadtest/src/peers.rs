//! The same SQL work through other job queues, in turns with pgmill's own workers: a fresh database
//! for each round of each, in one cluster.
//!
//! `catalog` names the peers and their settings, `install` puts them into a scratch folder,
//! `adapter` talks to the small program that each of them has, `turns` lets them take turns.
//! `backlog`, `pickup` and `submit` are what is measured.

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

use adapter::{Adapter, Done, Place, TIMEOUT};
use catalog::{PEERS, Variant};

const AFTER_HELP: &str = "\
Examples:
  loadtest peers                                          all of them: quarter of an hour
  loadtest peers --quick                                  does everything work?
  loadtest peers --peer graphile-worker --peer pg-boss    only these, beside pgmill
  loadtest peers --json > peers.json                      for `loadtest report`

They come from npm (Node.js with them), PyPI and crates.io, with npm, python3 and cargo, into a
scratch folder that stays for the next run and may be deleted at any time. One that cannot be
installed is reported as such. How they are set up: README.md in the source's folder loadtest/peers.";

/// Beside the tables of the other scenarios. LatencyHistogram are the server's, and every row gets one, of
/// pgmill's tasks as of the peers'.
const TABLES: &str = "/* loadtest.peer_tables */
ALTER TABLE loadtest.effects ADD at timestamptz NOT NULL DEFAULT clock_timestamp();
CREATE TABLE loadtest.starts (
    task bigint NOT NULL, handler_at timestamptz, statement_at timestamptz NOT NULL)";

/// What every round begins with: nothing dead, statistics fresh, pages on disk.
const SETTLE: [&str; 2] =
    ["/* loadtest.peer_vacuum */ VACUUM (ANALYZE)", "/* loadtest.peer_checkpoint */ CHECKPOINT"];

/// Whom to compare with, and how.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Peers {
    /// Only this one; may be given more than once [default: all]
    #[arg(long, value_name = "NAME",
        value_parser = PossibleValuesParser::new(PEERS.iter().map(|peer| peer.name)))]
    peer: Vec<String>,
    /// Tasks in a round of a backlog; the slowest peers get a part of them
    #[arg(long, visible_alias = "jobs", value_name = "N", default_value_t = 30_000,
        value_parser = clap::value_parser!(u32).range(100..))]
    tasks: u32,
    /// Rounds of each case; the cases take turns [default: 3; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Tasks that pgmill's worker runs at once [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    readers: Option<u32>,
    /// Folder to install peers into [default: .cache/pgmill-loadtest-peers in the home folder]
    #[arg(long, value_name = "DIR", env = "PGMILL_PEERS")]
    scratch: Option<PathBuf>,
    /// Print the results as one JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Tell what changed since an earlier run, which printed this file with --json
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Small sizes: whether everything works, and roughly how fast
    #[arg(long)]
    quick: bool,
    /// Folder with initdb, pg_ctl and postgres, or with bin/ or native/bin/ that holds them
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
    /// Folder with the programs `worker` and `enqueue` [default: where this program is]
    #[arg(long, value_name = "DIR", env = "PGMILL_PROGRAMS")]
    programs: Option<PathBuf>,
}

impl Peers {
    /// What the context has to know of it.
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

    /// In a round of a backlog.
    pub(crate) fn tasks(&self) -> i64 {
        i64::from(if self.quick { (self.tasks / 10).max(100) } else { self.tasks })
    }

    /// Installs the peers that are wanted.
    ///
    /// # Errors
    /// The scratch folder has no path. What befalls a peer is part of the result.
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

/// The peers that could be installed, and why the others could not.
pub(crate) struct Participants {
    adapters: Vec<Adapter>,
    /// Name with version, reason.
    missing: Vec<(String, String)>,
}

/// What they are compared in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerScenario {
    Backlog,
    Latency,
    Enqueue,
}

impl PeerScenario {
    pub(crate) const ALL: [Self; 3] = [Self::Backlog, Self::Latency, Self::Enqueue];

    /// For the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Backlog => "peers",
            Self::Latency => "peers-latency",
            Self::Enqueue => "peers-enqueue",
        }
    }

    /// One line for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Backlog => "a backlog, each task one INSERT, through other job queues",
            Self::Latency => "from the enqueue's commit to the statement's start, idle worker",
            Self::Enqueue => "submitting tasks: singly from 1 and 10 connections, and in bulk",
        }
    }

    /// Measures it.
    ///
    /// # Errors
    /// Database trouble, or trouble with pgmill's own worker. That of a peer is part of the result.
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

/// A database of its own, for one round.
async fn fresh_database(context: &RunContext, label: &str) -> Result<Database> {
    let database = context.database(&format!("peers_{label}")).await?;
    database.session.batch_execute(TABLES).await?;
    Ok(database)
}

/// The same with the peer's own schema in it.
async fn set_up(database: &Database, adapter: &Adapter, variant: &Variant) -> Result<()> {
    let place = Place { url: database.url(), settings: variant.settings };
    let Done {} = adapter.step(place, "setup", TIMEOUT).await?;
    Ok(())
}

async fn vacuum_and_checkpoint(database: &Database) -> Result<()> {
    for sql in SETTLE {
        database.session.batch_execute(sql).await?;
    }
    Ok(())
}
