//! Arguments of `loadtest peers`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use super::run::{Common, Run};
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
        value_parser = PossibleValuesParser::new(PEERS.iter().map(|peer| peer.name.as_str())))]
    pub(crate) peer: Vec<String>,
    /// Number of tasks in a round; the slowest of the compared queues get fewer
    #[arg(long, visible_alias = "jobs", value_name = "N", default_value_t = 30_000,
        value_parser = clap::value_parser!(u32).range(100..))]
    tasks: u32,
    /// Folder into which the peers are installed [default: .cache/pgmill-loadtest-peers in the home
    /// folder]
    #[arg(long, value_name = "DIR", env = "PGMILL_PEERS")]
    pub(crate) scratch: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

impl Peers {
    /// Returns the options for the context.
    pub(crate) fn run(&self) -> Run {
        Run { common: self.common.clone(), ..Run::default() }
    }

    /// Returns the number of tasks in a round of the scenario `backlog`.
    pub(crate) fn tasks(&self) -> i64 {
        i64::from(if self.common.quick { (self.tasks / 10).max(100) } else { self.tasks })
    }
}
