//! Arguments of the commands on backfills, which are subcommands of `pgmill schedule`.

use cli::time::PeriodBound;
use serde_json::Value;
use terminal::label;

use crate::args::value::{DryRun, limit, param};

#[derive(Debug, clap::Args)]
pub(crate) struct BackfillStart {
    /// Schedule name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Start of the period: yesterday, 2026-11-21, "2026-11-21 03:00" (local), RFC 3339
    #[arg(long, value_name = "TIME")]
    pub(crate) from: PeriodBound,
    /// End of the period, which may not be in the future
    #[arg(long, value_name = "TIME")]
    pub(crate) to: PeriodBound,
    /// Maximum number of runs of the backfill in progress
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(i32).range(1..=1000))]
    pub(crate) max_running: i32,
    /// Parameter of the runs, in addition to those of the schedule; may be repeated. A VALUE that is
    /// not JSON is a string
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = param)]
    pub(crate) params: Vec<(String, Value)>,
    /// Run the instants that have a run already, too
    #[arg(long)]
    pub(crate) again: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BackfillList {
    /// Schedule name [default: all schedules]
    #[arg(value_parser = label)]
    pub(crate) name: Option<String>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = limit())]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BackfillId {
    /// Id of the backfill
    #[arg(value_name = "BACKFILL")]
    pub(crate) id: i64,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}
