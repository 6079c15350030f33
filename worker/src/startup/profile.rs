//! Profiles: other logins that tasks can run as, `[run_as.NAME]` in the configuration file, and
//! `[targets.NAME]` for logins to other databases.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use conninfo::{ConnectionSource, ConnectionTarget, Environment, shown};
use serde::Deserialize;

/// Table of the configuration file with the profiles in the queue's database.
pub(crate) const RUN_AS: &str = "run_as";
/// Table of the configuration file with the targets.
pub(crate) const TARGETS: &str = "targets";

const DEFAULT_PROFILE_READERS: u32 = 4;

/// A profile or a target.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// The connection string. Exactly one of `url`, `url_file` and `url_env` is set.
    url: Option<String>,
    url_file: Option<PathBuf>,
    url_env: Option<String>,
    #[serde(default = "default_readers")]
    pub(crate) readers: u32,
}

fn default_readers() -> u32 {
    DEFAULT_PROFILE_READERS
}

impl Profile {
    /// Validates the profile `name` of this table without a connection.
    ///
    /// # Errors
    /// The name is invalid; not exactly one connection string is given; the number of readers is
    /// out of range.
    pub(crate) fn check(&self, table: &str, name: &str) -> anyhow::Result<()> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
            bail!("invalid profile name \"{name}\"; use up to 63 letters, digits and _ . : -");
        }
        let sources = [self.url.is_some(), self.url_file.is_some(), self.url_env.is_some()];
        ensure!(
            sources.into_iter().filter(|given| *given).count() == 1,
            "{table}.{name} needs exactly one of url, url_file and url_env"
        );
        ensure!(
            (1..=1000).contains(&self.readers),
            "{table}.{name}.readers is {}; it must be between 1 and 1000",
            self.readers
        );
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "the variable's name is a setting")]
    pub(super) fn target(&self, environment: &Environment) -> anyhow::Result<ConnectionTarget> {
        let source = if let Some(path) = &self.url_file {
            Some(ConnectionSource::File(path.clone()))
        } else if let Some(name) = &self.url_env {
            let url = std::env::var(name)
                .with_context(|| format!("environment variable {}", shown(name)))?;
            Some(ConnectionSource::Text(url))
        } else {
            self.url.clone().map(ConnectionSource::Text)
        };
        Ok(ConnectionTarget::from_source(source, environment)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_exactly_one_connection_string() {
        let url = Some("postgres://a@b/c".to_owned());
        let profile = Profile { url: url.clone(), readers: 1, ..Profile::default() };
        assert!(profile.check(RUN_AS, "etl").is_ok());
        assert!(profile.check(RUN_AS, "").is_err());
        assert!(profile.check(RUN_AS, "a b").is_err());
        let twice = Profile { url, url_env: Some("X".to_owned()), readers: 1, url_file: None };
        assert!(twice.check(RUN_AS, "etl").is_err());
        assert!(Profile { readers: 1, ..Profile::default() }.check(RUN_AS, "etl").is_err());
    }
}
