//! The command line of profiles.

use clap::Subcommand;
use terminal::label;

#[derive(Debug, Subcommand)]
pub(crate) enum ProfileVerb {
    /// List profiles
    #[command(after_help = "Examples:\n  pgmill profile list")]
    List,
    /// Make a profile, or change what is given of one
    #[command(after_help = "\
Examples:
  pgmill profile set etl --allow loaders,nightly
  pgmill profile set etl --allow ''                  nobody may enqueue tasks for it

Members of these roles may then say `enqueue --run-as etl`. The connection stands in the configuration
of workers, as [run_as.etl]. Only the owner of the queue (mill_owner, superusers) may do this.")]
    Set(ProfileArgs),
    /// Remove a profile that no live task and no job uses
    #[command(after_help = "Examples:\n  pgmill profile remove etl")]
    Remove(ProfileName),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileName {
    /// The profile
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// The profile
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Roles whose members may have tasks run as it, separated by commas
    #[arg(long, value_name = "ROLES", value_parser = roles)]
    pub(crate) allow: Option<Roles>,
    /// For people
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Names of roles, maybe none.
#[derive(Clone, Debug)]
pub(crate) struct Roles(pub(crate) Vec<String>);

#[expect(clippy::unnecessary_wraps, reason = "what clap takes")]
fn roles(text: &str) -> Result<Roles, String> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    Ok(Roles(names.map(str::to_owned).collect()))
}
