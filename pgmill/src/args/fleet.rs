//! Arguments of `pgmill top`, `health`, `queue` and `worker`.

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use terminal::queue_name;

use super::{QueueSetArgs, duration};
use crate::health::{HealthUrl, parse_url};

/// Minimum interval between two refreshes of `top`.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Interval between two refreshes
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub(crate) interval: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    /// Address of the worker's --http, and the path: /readyz if none is given
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:9187/readyz", value_parser = parse_url)]
    pub(crate) page: HealthUrl,
    /// Maximum wait for the response
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueVerb {
    /// List queues that have live tasks or settings
    #[command(after_help = "Examples:\n  pgmill queue list")]
    List,
    /// Stop claiming from a queue; running tasks continue
    #[command(after_help = "Examples:\n  pgmill queue pause etl --dry-run")]
    Pause(QueueArgs),
    /// Resume claiming from a paused queue
    #[command(after_help = "Examples:\n  pgmill queue resume etl")]
    Resume(QueueArgs),
    /// Change the shared commit and the limits of a queue
    #[command(after_help = "\
Examples:
  pgmill queue set etl --shared-commit 20ms
  pgmill queue set etl --shared-commit off
  pgmill queue set mail --max-running 10 --rate 100/1m

With a shared commit a reader runs short tasks one after another in one transaction, each in its
own savepoint, until the budget (1ms to 100ms) is used up. A task that fails is rolled back and run
again alone. Workers apply a change within two seconds. Consequences for tasks: docs/tasks.md.
Limits apply to the whole fleet: docs/capacity.md.")]
    Set(QueueSetArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct QueueArgs {
    /// Queue name
    #[arg(value_parser = queue_name)]
    pub(crate) name: String,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerVerb {
    /// List registered workers
    #[command(after_help = "Examples:\n  pgmill worker list")]
    List,
    /// Make workers stop claiming; their running tasks continue
    #[command(after_help = "\
Examples:
  pgmill worker drain 3f2a
  pgmill worker drain --host db-worker-2 --dry-run
  pgmill worker drain --host db-worker-2 --undo")]
    Drain(DrainArgs),
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).args(["id", "host"]))]
pub(crate) struct DrainArgs {
    /// Worker id or unique prefix
    pub(crate) id: Option<String>,
    /// Every worker on this host
    #[arg(long)]
    pub(crate) host: Option<String>,
    /// End the drain: make the workers claim again
    #[arg(long)]
    pub(crate) undo: bool,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Parses the interval of `top`. The lower bound keeps the cost of refreshing small compared with
/// the work of the fleet.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < SHORTEST_INTERVAL {
        return Err(format!("must be at least {}ms", SHORTEST_INTERVAL.as_millis()));
    }
    Ok(interval)
}
