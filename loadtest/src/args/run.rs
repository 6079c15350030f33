//! Arguments of `loadtest run`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use cli::duration::{self, HumanDuration};

use crate::scenarios::{SCENARIOS, ScenarioSpec};

/// Budgets that a queue can have.
const SHARED_COMMIT: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_millis(100);

/// Scenarios, server and sizes of a run.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Run {
    /// Scenarios to measure; `all` selects everything that `loadtest list` prints
    #[arg(value_name = "SCENARIO", required = true, value_parser = scenario)]
    pub(crate) scenarios: Vec<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Number of worker processes [default: 1; `schedules`: 2; `idle`: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: Option<u32>,
    /// Number of tasks in a round [default: depends on the scenario; `drain`: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tasks: Option<u32>,
    /// Duration of a round, for scenarios that run for a fixed time [default: 20s; `schedules`:
    /// 30s; `soak`: 10m]
    #[arg(long, value_name = "DURATION", value_parser = duration::within(Duration::from_secs(1)..=duration::MAX))]
    pub(crate) duration: Option<HumanDuration>,
    /// Time budget within which short tasks share a commit, in all scenarios except those that
    /// compare shared commits themselves [default: each task commits alone, like the queue's
    /// default]
    #[arg(long, value_name = "DURATION", value_parser = duration::within(SHARED_COMMIT))]
    pub(crate) shared_commit: Option<HumanDuration>,
    /// Server to measure instead of a private one: a superuser's URL or key=value pairs. Databases
    /// named loadtest_* are created there and dropped afterwards
    #[arg(long, value_name = "URL", env = "PGMILL_LOADTEST_URL", hide_env_values = true)]
    pub(crate) database_url: Option<String>,
}

/// Options of every measurement.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Common {
    /// Maximum number of tasks that each worker runs at once; in `fleet`, all workers together
    /// [default: 16; `idle`, `schedules`: 8; `fleet`: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) readers: Option<u32>,
    /// Number of rounds; in a round, every case is measured once [default: 3; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: Option<u16>,
    /// Print the results as one JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Compare with an earlier run, read from a file written with --json
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
    /// Run a short test with few tasks and small tables, to check that everything works; the
    /// results are approximate
    #[arg(long)]
    pub(crate) quick: bool,
    /// Folder with initdb, pg_ctl and postgres, or a parent folder with bin/ or native/bin/
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    pub(crate) directory: Option<PathBuf>,
    /// Folder with the programs `worker` and `enqueue` [default: the folder of this program]
    #[arg(long, value_name = "DIR", env = "PGMILL_PROGRAMS")]
    pub(crate) programs: Option<PathBuf>,
}

impl Run {
    /// Returns the scenarios in the order given, without duplicates.
    pub(crate) fn scenarios(&self) -> Vec<ScenarioSpec> {
        let mut chosen: Vec<ScenarioSpec> = Vec::new();
        for name in &self.scenarios {
            let named = SCENARIOS.iter().filter(|spec| name == "all" || *name == spec.name);
            for spec in named {
                if chosen.iter().all(|known| known.name != spec.name) {
                    chosen.push(*spec);
                }
            }
        }
        chosen
    }
}

fn scenario(text: &str) -> Result<String, &'static str> {
    let known = text == "all" || SCENARIOS.iter().any(|spec| spec.name == text);
    known.then(|| text.to_owned()).ok_or("unknown scenario; see `loadtest list`")
}
