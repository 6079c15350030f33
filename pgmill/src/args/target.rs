//! Arguments of `pgmill target`.

use std::path::PathBuf;

use clap::Subcommand;
use cli::duration::HumanDuration;
use terminal::label;

use super::capacity::ConditionFlags;
use super::profile::{Roles, roles};

#[derive(Debug, Subcommand)]
pub(crate) enum TargetVerb {
    /// List targets
    #[command(after_help = "Examples:\n  pgmill target list")]
    List,
    /// Create a target, or change the given settings of an existing one
    #[command(after_help = "\
Examples:
  pgmill target set dwh --allow loaders
  pgmill target set dwh --keep 30d

Members of the allowed roles may use `enqueue --target dwh`. The connection of a target is in the
configuration of the workers, as [targets.dwh]. Requires membership in mill_owner, or a superuser.")]
    Set(TargetArgs),
    /// Remove a target that neither a live task nor a job uses
    #[command(after_help = "Examples:\n  pgmill target remove dwh")]
    Remove(TargetName),
    /// Install the schema for receipts in the target's database
    #[command(after_help = "\
Examples:
  pgmill target init --database-url postgres://admin@dwh.example/sales --login etl

--database-url names the database of the target, not the queue's. A login is that of [targets.NAME]
in the configuration of the workers. Running the command again changes nothing.")]
    Init(TargetInit),
    /// Compare the successes in the history with the receipts in the target
    #[command(after_help = "\
Examples:
  pgmill target check dwh --target-url-file dwh.url --since 2d

Lists the tasks that have succeeded according to the queue, but whose effects are missing, because
the target was restored to an earlier time. Exit code 1 if there are any.")]
    Check(TargetCheck),
    /// End the problem that the target was restored to an earlier time
    #[command(after_help = "Examples:\n  pgmill target accept dwh")]
    Accept(TargetName),
}

impl TargetVerb {
    /// The role that the command needs.
    pub(super) fn role(&self) -> Option<&'static str> {
        match self {
            Self::List => Some("mill_viewer"),
            Self::Check(_) | Self::Accept(_) => Some("mill_operator"),
            Self::Set(_) | Self::Remove(_) => Some("mill_owner"),
            Self::Init(_) => None,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct TargetName {
    /// Target name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
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
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
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
