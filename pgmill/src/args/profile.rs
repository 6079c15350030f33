//! Arguments of `pgmill profile`.

use clap::Subcommand;
use terminal::label;

use super::value::{DryRun, ObjectName};

#[derive(Debug, Subcommand)]
pub(crate) enum ProfileVerb {
    /// List profiles
    List,
    /// Create a profile, or change the given settings of an existing one
    Set(ProfileArgs),
    /// Remove a profile that neither a live task nor a job uses
    #[command(mut_arg("name", |it| it.help("Profile name")))]
    Remove(ObjectName),
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
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

/// Names of roles or routines; may be empty.
#[derive(Clone, Debug)]
pub(crate) struct Roles(pub(crate) Vec<String>);

#[expect(clippy::unnecessary_wraps, reason = "signature of a clap value parser")]
pub(super) fn roles(text: &str) -> Result<Roles, String> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    Ok(Roles(names.map(str::to_owned).collect()))
}
