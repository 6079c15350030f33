//! The command line of jobs, their files, dependencies and lineage.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use queue::run::Expected;
use terminal::label;

use super::enum_value;

pub(super) const APPLY_HELP: &str = "\
Examples:
  pgmill apply jobs --dry-run
  pgmill apply jobs
  pgmill apply jobs --prune
  pgmill apply jobs/daily.toml jobs/dependencies.sql

All files are one transaction: an error in one of them changes nothing. Of a folder every *.toml and
*.sql is taken, by name and not below it, but for files that a task names as its statement. Tasks that
a file leaves out are disabled, nothing is deleted; dependencies that it leaves out stay. A .sql file
is run as it is, with --dry-run too, and then undone.";

pub(super) const LINEAGE_HELP: &str = "\
Examples:
  pgmill lineage vault_orders
  pgmill lineage mart_orders --upstream
  pgmill lineage raw_orders --downstream --format mermaid
  pgmill lineage raw_orders --format dot | dot -Tsvg > lineage.svg

Edges of every enabled job, and dependencies that hold everywhere.";

#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    /// Files that end in .toml or .sql, or folders of such
    #[arg(value_name = "FILE|DIR", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Disable every job, and remove every schedule from files, that none of the files declares
    #[arg(long)]
    pub(crate) prune: bool,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobVerb {
    /// List jobs and their newest runs
    #[command(after_help = "Examples:\n  pgmill job list\n  \
                            pgmill job list --json | jq '.[] | select(.enabled) | .name'")]
    List,
    /// What a run of these jobs, merged, would do: its tasks in an order in which they could run
    #[command(after_help = "\
Examples:
  pgmill job show daily
  pgmill job show daily,sunday --json

A task that several jobs have is in once, as the one says that gives it the highest priority.")]
    Show {
        /// Names of jobs, in any case
        #[arg(value_name = "NAME[,NAME…]", required = true, value_delimiter = ',')]
        names: Vec<String>,
    },
    /// Let a job start runs again
    #[command(after_help = "Examples:\n  pgmill job enable daily")]
    Enable(JobName),
    /// Let a job start no runs; those that go on are not touched
    #[command(after_help = "Examples:\n  pgmill job disable daily --dry-run")]
    Disable(JobName),
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobName {
    /// The job, in any case
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DependencyVerb {
    /// List dependencies that hold in every job
    #[command(after_help = "Examples:\n  pgmill dependency list")]
    List,
    /// In every run that has both tasks, let one wait for the other
    #[command(after_help = "\
Examples:
  pgmill dependency add mart_orders vault_orders
  pgmill dependency add alert_orders vault_orders --expected failed --dry-run

Runs that have been started stay as they are.")]
    Add(DependencyArgs),
    /// Let it wait no longer; what a job says itself stays
    #[command(after_help = "Examples:\n  pgmill dependency remove mart_orders vault_orders")]
    Remove(DependencyPair),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DependencyPair {
    /// The task that waits
    #[arg(value_parser = label)]
    pub(crate) child: String,
    /// The task that it waits for
    #[arg(value_parser = label)]
    pub(crate) parent: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DependencyArgs {
    #[command(flatten)]
    pub(crate) pair: DependencyPair,
    /// How the parent is expected to end
    #[arg(long, value_name = "OUTCOME", default_value = "succeeded")]
    #[arg(value_parser = enum_value::<Expected>(Expected::ALL.iter().map(|it| it.as_str())))]
    pub(crate) expected: Expected,
}

/// How a graph is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// Indented lines
    Text,
    /// A flowchart for Mermaid
    Mermaid,
    /// A digraph for Graphviz
    Dot,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LineageArgs {
    /// The task's name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Only what leads to it
    #[arg(long)]
    pub(crate) upstream: bool,
    /// Only what follows from it
    #[arg(long)]
    pub(crate) downstream: bool,
    /// How to draw it [default: text]
    #[arg(long, value_enum)]
    pub(crate) format: Option<GraphFormat>,
}
