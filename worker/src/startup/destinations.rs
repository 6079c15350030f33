//! Destinations of notifications, `[destinations.NAME]` in the configuration file.

use cli::Failure;
use notification::{Destination, DestinationSettings};

use crate::duties::notifier::Destinations;
use crate::startup::config::Config;

/// Checks the destinations and reads their files.
///
/// # Errors
/// A name is invalid, a setting is missing or invalid, or a file cannot be read.
pub(crate) fn open(config: &Config) -> anyhow::Result<Destinations> {
    let open = |(name, settings): (&String, &DestinationSettings)| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
            let problem = format!(
                "invalid destination name \"{name}\"; use up to 63 letters, digits and _ . : -"
            );
            return Err(Failure::usage(problem).into());
        }
        let destination = Destination::open(settings.clone())
            .map_err(|error| Failure::usage(format!("destinations.{name}: {error}")))?;
        Ok((name.clone(), destination))
    };
    config.tables.destinations.iter().map(open).collect()
}
