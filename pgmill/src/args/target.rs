//! Arguments of `pgmill target`.

use std::path::PathBuf;

use clap::Subcommand;
use cli::duration::HumanDuration;
use terminal::label;

use super::capacity::ConditionFlags;
use super::profile::{Roles, roles};
use super::value::{DryRun, ObjectName};

#[derive(Debug, Subcommand)]
pub(crate) enum TargetVerb {
    /// List targets
    List,
    /// Create a target, or change the given settings of an existing one
    Set(TargetArgs),
    /// Remove a target that neither a live task nor a job uses
    #[command(mut_arg("name", |it| it.help("Target name")))]
    Remove(ObjectName),
    /// Install the schema for receipts in the target's database
    Init(TargetInit),
    /// Compare the successes in the history with the receipts in the target
    Check(TargetCheck),
    /// End the problem that the target was restored to an earlier time
    #[command(mut_arg("name", |it| it.help("Target name")))]
    Accept(ObjectName),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// Target name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Roles whose members may run tasks in this target, separated by commas
    #[arg(long, value_name = "ROLES", value_parser = roles)]
    pub(crate) allow: Option<Roles>,
    /// Time for which the target keeps receipts; at least 1h [default: 7d]
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep: Option<HumanDuration>,
    /// Free-text description
    #[arg(long)]
    pub(crate) description: Option<String>,
    #[command(flatten)]
    pub(crate) conditions: ConditionFlags,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TargetInit {
    /// Logins of workers that may write receipts, separated by commas
    #[arg(long = "login", value_name = "LOGINS", value_parser = roles)]
    pub(crate) logins: Option<Roles>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TargetCheck {
    /// Target name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// File that contains the connection string of the target, under the login of its tasks
    #[arg(long, env = "PGMILL_TARGET_URL_FILE", value_name = "FILE")]
    pub(crate) target_url_file: PathBuf,
    /// Period of the history to compare
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    pub(crate) since: HumanDuration,
}
