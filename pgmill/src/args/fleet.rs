//! `pgmill top`, `health`, `queue` and `worker`.

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use terminal::queue_name;

use super::{QueueSetArgs, duration};
use crate::health::{HealthUrl, parse_url};

/// Between two looks of `top`.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Time between two looks
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub(crate) interval: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    /// Where the worker was told to serve: its --http; and which page, /readyz if none is named
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:9187/readyz", value_parser = parse_url)]
    pub(crate) page: HealthUrl,
    /// The longest wait for an answer
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueVerb {
    /// List queues: those with live tasks, and those that were paused before
    #[command(after_help = "Examples:\n  pgmill queue list")]
    List,
    /// Stop claims from a queue; running tasks go on
    #[command(after_help = "Examples:\n  pgmill queue pause etl --dry-run")]
    Pause(QueueArgs),
    /// Let claims from a paused queue go on
    #[command(after_help = "Examples:\n  pgmill queue resume etl")]
    Resume(QueueArgs),
    /// Change how a queue is served
    #[command(after_help = "\
Examples:
  pgmill queue set etl --shared-commit 20ms
  pgmill queue set etl --shared-commit off
  pgmill queue set mail --max-running 10 --rate 100/1m

With shared commits a reader takes short tasks one after another into one transaction, each behind a
savepoint of its own, until the budget (1ms to 100ms) is used up. A task that fails is undone and run
again alone. Workers see a change within two seconds. What that means for the tasks:
docs/tasks.md. Limits hold for the whole fleet: docs/capacity.md.")]
    Set(QueueSetArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct QueueArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    pub(crate) name: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerVerb {
    /// List workers that have neither left nor been reclaimed
    #[command(after_help = "Examples:\n  pgmill worker list")]
    List,
    /// Make workers stop claiming; what they run goes on
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
    /// The worker's id, or so many of its first digits that no other has them
    pub(crate) id: Option<String>,
    /// Every worker of this host
    #[arg(long)]
    pub(crate) host: Option<String>,
    /// Let them claim again
    #[arg(long)]
    pub(crate) undo: bool,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What a look costs has to stay little beside what the fleet does.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < SHORTEST_INTERVAL {
        return Err("it is shorter than 200ms".to_owned());
    }
    Ok(interval)
}
