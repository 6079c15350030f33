//! Arguments of `pgmill apply`, `job`, `dependency` and `lineage`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use queue::run::Expected;
use terminal::label;

use super::value::enum_value;

pub(super) const APPLY_HELP: &str = "\
Examples:
  pgmill apply jobs --dry-run
  pgmill apply jobs
  pgmill apply jobs --prune
  pgmill apply jobs/daily.toml jobs/dependencies.sql

All files are applied in one transaction: if one file has an error, nothing changes. In a folder
pgmill reads every *.toml and *.sql file in the order of their names, but no subfolders, and no file
that a task uses as its statement_file. A task that its job no longer declares is disabled, not
deleted. A dependency that is no longer declared stays. A .sql file is executed unchanged; with
--dry-run its effects are rolled back.";

pub(super) const LINEAGE_HELP: &str = "\
Examples:
  pgmill lineage vault_orders
  pgmill lineage mart_orders --upstream
  pgmill lineage raw_orders --downstream --format mermaid
  pgmill lineage raw_orders --format dot | dot -Tsvg > lineage.svg

Reads the dependencies of every enabled job, and the dependencies that apply to every job.";

#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    /// Files that end in .toml or .sql, or folders of such files
    #[arg(value_name = "FILE|DIR", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Disable jobs that these files do not declare, and remove schedules that only earlier files
    /// declared
    #[arg(long)]
    pub(crate) prune: bool,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobVerb {
    /// List jobs with their latest runs
    #[command(after_help = "Examples:\n  pgmill job list\n  \
                            pgmill job list --json | jq '.[] | select(.enabled) | .name'")]
    List,
    /// Show the tasks that a run of these jobs would have, in a possible order of execution
    #[command(after_help = "\
Examples:
  pgmill job show daily
  pgmill job show daily,sunday --json

If several jobs declare a task, it is included once, from the job that gives it the highest priority.")]
    Show {
        /// Job names, case-insensitive
        #[arg(value_name = "NAME[,NAME…]", required = true, value_delimiter = ',')]
        names: Vec<String>,
    },
    /// List the versions of a job, newest first
    #[command(after_help = "Examples:\n  pgmill job versions daily\n\n\
                            The database keeps the last 50 versions of each job.")]
    Versions {
        /// Job name, case-insensitive
        #[arg(value_parser = label)]
        name: String,
    },
    /// Show what differs between two versions of a job, per task and field
    #[command(after_help = "\
Examples:
  pgmill job diff daily                 # the last change
  pgmill job diff daily 3               # all changes since version 3
  pgmill job diff daily 3 5 --json")]
    Diff(JobDiff),
    /// Enable a job, so that it can start runs again, or one of its tasks
    #[command(
        after_help = "Examples:\n  pgmill job enable daily\n  pgmill job enable daily mart_orders"
    )]
    Enable(JobName),
    /// Disable a job, so that it cannot start runs, or one of its tasks, which new runs then omit
    #[command(after_help = "\
Examples:
  pgmill job disable daily --dry-run
  pgmill job disable daily mart_orders

Runs in progress do not change. Tasks after a disabled task wait neither for it nor for the tasks
before it.")]
    Disable(JobName),
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobDiff {
    /// Job name, case-insensitive
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Old version [default: the version before the newest]
    #[arg(value_name = "V1")]
    pub(crate) from: Option<i32>,
    /// New version [default: the newest]
    #[arg(value_name = "V2")]
    pub(crate) to: Option<i32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobName {
    /// Job name, case-insensitive
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Task of the job; without it, the job itself
    #[arg(value_parser = label)]
    pub(crate) task: Option<String>,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DependencyVerb {
    /// List the dependencies that apply in every run, whatever its jobs
    #[command(after_help = "Examples:\n  pgmill dependency list")]
    List,
    /// Add a dependency: in every run that has both tasks, CHILD waits for PARENT
    #[command(after_help = "\
Examples:
  pgmill dependency add mart_orders vault_orders
  pgmill dependency add alert_orders vault_orders --expected failed --dry-run

Runs that have already started do not change.")]
    Add(DependencyArgs),
    /// Remove a dependency that `dependency add` added; dependencies in a job's definition are kept
    #[command(after_help = "Examples:\n  pgmill dependency remove mart_orders vault_orders")]
    Remove(DependencyPair),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DependencyPair {
    /// Task that waits
    #[arg(value_parser = label)]
    pub(crate) child: String,
    /// Task that CHILD waits for
    #[arg(value_parser = label)]
    pub(crate) parent: String,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DependencyArgs {
    #[command(flatten)]
    pub(crate) pair: DependencyPair,
    /// Outcome that PARENT must have for CHILD to start
    #[arg(long, value_name = "OUTCOME", default_value = "succeeded")]
    #[arg(value_parser = enum_value::<Expected>(Expected::ALL.iter().map(|it| it.as_str())))]
    pub(crate) expected: Expected,
}

/// Output format of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    #[default]
    /// Lines of text
    Text,
    /// Mermaid flowchart
    Mermaid,
    /// Graphviz digraph
    Dot,
}

/// Returns the name of the default format, for the help text of `lineage`. Its `--format` has no
/// default in clap, so that the command can refuse `--json` together with a given `--format`.
fn default_format() -> String {
    let value = GraphFormat::default().to_possible_value();
    value.map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[derive(Debug, clap::Args)]
pub(crate) struct LineageArgs {
    /// Task name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Show only upstream tasks
    #[arg(long)]
    pub(crate) upstream: bool,
    /// Show only downstream tasks
    #[arg(long)]
    pub(crate) downstream: bool,
    #[arg(long, value_enum, help = format!("Output format [default: {}]", default_format()))]
    pub(crate) format: Option<GraphFormat>,
}
