//! Arguments of `pgmill run`.

use clap::Subcommand;
use queue::run::{RunId, RunState};
use terminal::label;

use super::enum_value;

#[derive(Debug, Subcommand)]
pub(crate) enum RunVerb {
    /// List runs, the newest first
    #[command(after_help = "\
Examples:
  pgmill run list
  pgmill run list --state failed
  pgmill run list --json | jq '.[] | select(.count.failed > 0) | .id'")]
    List(RunList),
    /// One run: its tasks, what became of each, and its critical path
    #[command(after_help = "\
Examples:
  pgmill run show 12
  pgmill run show 12 --watch
  pgmill run show 12 --json | jq '.tasks[] | select(.state == \"running\")'

The critical path is the chain of tasks with the greatest sum of durations: to make the run shorter,
make one of these shorter. Without --all the table has 50 tasks: first those that run or have
failed, last those that have succeeded.")]
    Show(RunShow),
    /// Cancel runs: nothing more of them starts; running tasks finish, or with --kill are stopped
    #[command(after_help = "\
Examples:
  pgmill run cancel 12
  pgmill run cancel 12 --kill
  pgmill run cancel --all --dry-run")]
    Cancel(RunCancel),
    /// Run a failed or cancelled task of a live run again; what it made upstream_failed waits again
    #[command(after_help = "Examples:\n  pgmill run retry 12 raw_orders")]
    Retry(RunRetry),
    /// Run tasks of a failed run again: those that failed, and those that never ran
    #[command(after_help = "\
Examples:
  pgmill run restart 12                  failed ones, and those that never ran
  pgmill run restart 12 --failed         failed ones only
  pgmill run restart 12 --never-run      only those that never ran
  pgmill run restart 12 --downstream     failed ones, and all that come after them
  pgmill run restart 12 --force          also if the run has not failed

The run keeps its id, each task its id and its attempts. Tasks that were cancelled while they ran
count as failed.")]
    Restart(RunRestart),
    /// The graph of a run with what became of each task
    #[command(after_help = "\
Examples:
  pgmill run graph 12
  pgmill run graph 12 --format mermaid
  pgmill run graph 12 --format dot > run.dot && dot -Tsvg run.dot > run.svg")]
    Graph(RunGraph),
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunList {
    /// Only runs in this state
    #[arg(long, value_parser = enum_value::<RunState>(RunState::ALL.iter().map(|it| it.as_str())))]
    pub(crate) state: Option<RunState>,
    /// At most N
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) limit: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunShow {
    /// The run's id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Follow it until it has ended; exit code 3 if it did not succeed
    #[arg(long)]
    pub(crate) watch: bool,
    /// Every task
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunCancel {
    /// The runs' ids
    #[arg(value_name = "RUN", value_parser = run_id, required_unless_present = "all")]
    pub(crate) runs: Vec<RunId>,
    /// Every run that goes on
    #[arg(long, conflicts_with = "runs")]
    pub(crate) all: bool,
    /// Stop running tasks, too
    #[arg(long)]
    pub(crate) kill: bool,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunRetry {
    /// The run's id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Name of the task
    #[arg(value_parser = label)]
    pub(crate) task: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").args(["failed", "never_run", "downstream"]))]
pub(crate) struct RunRestart {
    /// The run's id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// Only tasks that failed
    #[arg(long)]
    pub(crate) failed: bool,
    /// Only tasks that never ran
    #[arg(long)]
    pub(crate) never_run: bool,
    /// Tasks that failed, and all that come after them
    #[arg(long)]
    pub(crate) downstream: bool,
    /// Also if the run has not failed
    #[arg(long)]
    pub(crate) force: bool,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunGraph {
    /// The run's id
    #[arg(value_parser = run_id)]
    pub(crate) run: RunId,
    /// How to draw it
    #[arg(long, value_enum, default_value_t = super::GraphFormat::Text)]
    pub(crate) format: super::GraphFormat,
}

fn run_id(text: &str) -> Result<RunId, &'static str> {
    text.parse().map(RunId).map_err(|_| "a run's id is a whole number")
}
