//! Arguments of `pgmill apply`, `job`, `dependency` and `lineage`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use queue::run::Expected;
use terminal::label;

use super::value::{DryRun, one_of};

#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    /// Files that end in .toml or .sql, or folders of such files
    #[arg(value_name = "FILE|DIR", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Disable jobs that these files do not declare, and remove schedules that only earlier files
    /// declared
    #[arg(long)]
    pub(crate) prune: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobVerb {
    /// List jobs with their latest runs
    List,
    /// Show the tasks that a run of these jobs would have, in a possible order of execution
    Show {
        /// Job names, case-insensitive
        #[arg(value_name = "NAME[,NAME…]", required = true, value_delimiter = ',')]
        names: Vec<String>,
    },
    /// List the versions of a job, newest first
    Versions {
        /// Job name, case-insensitive
        #[arg(value_parser = label)]
        name: String,
    },
    /// Show what differs between two versions of a job, per task and field
    Diff(JobDiff),
    /// Enable a job, so that it can start runs again, or one of its tasks
    Enable(JobName),
    /// Disable a job, so that it cannot start runs, or one of its tasks, which new runs then omit
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
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DependencyVerb {
    /// List the dependencies that apply in every run, whatever its jobs
    List,
    /// Add a dependency: in every run that has both tasks, CHILD waits for PARENT
    Add(DependencyArgs),
    /// Remove a dependency that `dependency add` added; dependencies in a job's definition are kept
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
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DependencyArgs {
    #[command(flatten)]
    pub(crate) pair: DependencyPair,
    /// Outcome that PARENT must have for CHILD to start
    #[arg(long, value_name = "OUTCOME", default_value = "succeeded")]
    #[arg(value_parser = one_of(Expected::ALL))]
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
