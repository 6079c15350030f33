//! Arguments of `loadtest peers`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use super::run::Run;
use crate::peers::catalog::PEERS;

const AFTER_HELP: &str = "\
Examples:
  loadtest peers                                          all peers: 15 minutes
  loadtest peers --quick                                  check that everything works
  loadtest peers --peer graphile-worker --peer pg-boss    only these peers and pgmill
  loadtest peers --json > peers.json                      input for `loadtest report`

Peers are installed from npm (with Node.js), PyPI and crates.io, using npm, python3 and cargo, into
a scratch folder that is kept for the next run and may be deleted at any time. A peer that cannot be
installed is reported. loadtest/peers/README.md describes the setup of each peer.";

/// Peers to compare with, and sizes.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Peers {
    /// Peer to run; repeatable [default: all]
    #[arg(long, value_name = "NAME",
        value_parser = PossibleValuesParser::new(PEERS.iter().map(|peer| peer.name)))]
    pub(crate) peer: Vec<String>,
    /// Number of tasks in a round; the slowest of the compared queues get fewer
    #[arg(long, visible_alias = "jobs", value_name = "N", default_value_t = 30_000,
        value_parser = clap::value_parser!(u32).range(100..))]
    tasks: u32,
    /// Number of rounds; in a round, every queue is measured once in each of its configurations
    /// [default: 3; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Maximum number of tasks that pgmill's worker runs at once [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    readers: Option<u32>,
    /// Folder into which the peers are installed [default: .cache/pgmill-loadtest-peers in the home
    /// folder]
    #[arg(long, value_name = "DIR", env = "PGMILL_PEERS")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print the results as one JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Compare with an earlier run, read from a file written with --json
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Run a short test with few tasks and small tables, to check that everything works; the
    /// results are approximate
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

    /// Returns the number of tasks in a round of the scenario `backlog`.
    pub(crate) fn tasks(&self) -> i64 {
        i64::from(if self.quick { (self.tasks / 10).max(100) } else { self.tasks })
    }
}
