//! Arguments of `pgmill profile`.

use clap::Subcommand;
use terminal::label;

#[derive(Debug, Subcommand)]
pub(crate) enum ProfileVerb {
    /// List profiles
    #[command(after_help = "Examples:\n  pgmill profile list")]
    List,
    /// Create a profile, or change the given settings of an existing one
    #[command(after_help = "\
Examples:
  pgmill profile set etl --allow loaders,nightly
  pgmill profile set etl --allow ''                  no role may use it
  pgmill profile set etl --routines app.load,app.purge
  pgmill profile set etl --routines off              any statement

Members of the allowed roles may use `enqueue --run-as etl`. The connection of a profile is in the
configuration of the workers, as [run_as.etl]. Requires membership in mill_owner, or a superuser.")]
    Set(ProfileArgs),
    /// Remove a profile that neither a live task nor a job uses
    #[command(after_help = "Examples:\n  pgmill profile remove etl")]
    Remove(ProfileName),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileName {
    /// Profile name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// Profile name
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Roles whose members may run tasks as this profile, separated by commas
    #[arg(long, value_name = "ROLES", value_parser = roles)]
    pub(crate) allow: Option<Roles>,
    /// Routines of which each task has to call one, separated by commas; off: any statement
    #[arg(long, value_name = "ROUTINES|off", value_parser = roles)]
    pub(crate) routines: Option<Roles>,
    /// Free-text description
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Names of roles or routines; may be empty.
#[derive(Clone, Debug)]
pub(crate) struct Roles(pub(crate) Vec<String>);

#[expect(clippy::unnecessary_wraps, reason = "signature of a clap value parser")]
pub(super) fn roles(text: &str) -> Result<Roles, String> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    Ok(Roles(names.map(str::to_owned).collect()))
}
