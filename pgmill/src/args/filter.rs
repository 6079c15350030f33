//! Arguments of `pgmill filter`.

use clap::{Subcommand, ValueEnum};
use terminal::label;

#[derive(Debug, Subcommand)]
pub(crate) enum FilterVerb {
    /// List the saved filters of tasks and of runs
    #[command(after_help = "Examples:\n  pgmill filter list\n  \
                            pgmill filter list --json | jq -r '.[].name'")]
    List,
    /// Save a filter of tasks or of runs, or replace the filter of this name
    #[command(after_help = "\
Examples:
  pgmill filter save 'failed loads' 'state:failed queue:etl name:load_* since:24h'
  pgmill task list --filter 'failed loads'
  pgmill filter save 'failed nights' --screen runs 'state:failed job:nightly'
  pgmill run list --filter 'failed nights'

The screens of the console show their filters to all users. A filter of tasks has the language of
the Tasks screen: queue:etl state:failed since:1h sqlstate:40* nightly. A filter of runs has the keys
state, job, schedule, from, to and zone: schedule:nightly from:2026-12-01T06:00 zone:Europe/Berlin.
Put values with spaces in double quotes.")]
    Save(FilterSave),
    /// Remove a saved filter
    #[command(after_help = "Examples:\n  pgmill filter remove 'failed loads'\n  \
                            pgmill filter remove nightly --screen runs")]
    Remove(FilterRemove),
}

impl FilterVerb {
    /// The role that the command needs.
    pub(super) fn role(&self) -> &'static str {
        match self {
            Self::List => "mill_viewer",
            Self::Save(_) | Self::Remove(_) => "mill_operator",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct FilterSave {
    /// Name of the filter, at most 60 characters
    #[arg(value_parser = filter_name)]
    pub(crate) name: String,
    /// Filter, in the language of the console
    #[arg(value_name = "FILTER")]
    pub(crate) text: String,
    /// Screen of the console that the filter belongs to
    #[arg(long, value_enum, default_value_t = FilterScreen::Tasks)]
    pub(crate) screen: FilterScreen,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FilterRemove {
    /// Name of the filter
    #[arg(value_parser = label)]
    pub(crate) name: String,
    /// Screen of the console that the filter belongs to
    #[arg(long, value_enum, default_value_t = FilterScreen::Tasks)]
    pub(crate) screen: FilterScreen,
    /// Show what would change, without changing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// A screen that has saved filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FilterScreen {
    /// Tasks
    Tasks,
    /// Runs
    Runs,
}

impl FilterScreen {
    /// Returns the name in the database.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Tasks => "tasks",
            Self::Runs => "runs",
        }
    }
}

fn filter_name(text: &str) -> Result<String, String> {
    let name = label(text)?;
    match name.chars().count() {
        1..=console::MAX_FILTER_NAME_CHARS => Ok(name),
        _ => Err(format!("expected at most {} characters", console::MAX_FILTER_NAME_CHARS)),
    }
}
