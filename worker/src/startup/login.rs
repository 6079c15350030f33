//! Logins that task SQL runs as: the default login, and one login per profile.
//!
//! Each login has its own readers, and a reader's session never changes its login. A task that
//! changes its role starts from that login, and the session returns to it afterwards.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use queue::connect::{ConnectionSource, Environment, Target};
use serde::Deserialize;

use crate::startup::config::Config;

const DEFAULT_PROFILE_READERS: u32 = 4;

/// A profile, `[run_as.NAME]` in the configuration file.
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

/// A login and its number of readers.
#[derive(Clone)]
pub(crate) struct Login {
    /// Empty for tasks without a profile.
    pub(crate) profile: Arc<str>,
    pub(crate) target: Target,
    pub(crate) readers: u32,
    pub(crate) superuser_allowed: bool,
}

impl Login {
    /// Returns the login with another `application_name`.
    pub(crate) fn with_application_name(&self, name: &str) -> Self {
        Self { target: self.target.with_application_name(name), ..self.clone() }
    }
}

impl Profile {
    /// Validates the profile without connecting.
    ///
    /// # Errors
    /// The name is invalid; not exactly one connection string is given; the number of readers is
    /// out of range.
    pub(crate) fn check(&self, name: &str) -> anyhow::Result<()> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
            bail!("invalid profile name \"{name}\"; use up to 63 letters, digits and _ . : -");
        }
        let sources = [self.url.is_some(), self.url_file.is_some(), self.url_env.is_some()];
        ensure!(
            sources.into_iter().filter(|given| *given).count() == 1,
            "run_as.{name} needs exactly one of url, url_file and url_env"
        );
        ensure!(
            (1..=1000).contains(&self.readers),
            "run_as.{name}.readers is {}; it must be between 1 and 1000",
            self.readers
        );
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "the variable's name is a setting")]
    fn target(&self, environment: &Environment) -> anyhow::Result<Target> {
        let url = if let Some(path) = &self.url_file {
            Some(ConnectionSource::File(path.clone()).read()?)
        } else if let Some(name) = &self.url_env {
            Some(std::env::var(name).with_context(|| format!("environment variable {name}"))?)
        } else {
            self.url.clone()
        };
        Ok(Target::resolve(url.as_deref(), environment)?)
    }
}

/// Returns all configured logins, the login of tasks without a profile first.
///
/// # Errors
/// A connection string is invalid, or its file or variable cannot be read.
pub(crate) fn logins(
    config: &Config,
    control: &Target,
    environment: &Environment,
) -> anyhow::Result<Vec<Login>> {
    let superuser_allowed = config.allow_superuser;
    let target = match &config.task_url {
        Some(given) => Target::resolve(Some(&given.clone().read()?), environment)?,
        None => control.clone(),
    };
    let (profile, readers) = (Arc::from(""), config.readers);
    let mut logins = vec![Login { profile, target, readers, superuser_allowed }];
    for (name, profile) in &config.run_as {
        let target =
            profile.target(environment).with_context(|| format!("profile run_as.{name}"))?;
        let (profile, readers) = (Arc::from(name.as_str()), profile.readers);
        logins.push(Login { profile, target, readers, superuser_allowed });
    }
    Ok(logins)
}

/// Returns the number of readers of each profile, by name.
pub(crate) fn readers_by_profile(logins: &[Login]) -> BTreeMap<String, u32> {
    logins.iter().map(|login| (login.profile.to_string(), login.readers)).collect()
}

/// Returns the login of each reader. The profiles alternate, because the first readers are reserved
/// for reserved tasks, which may name any profile.
pub(crate) fn interleave(logins: &[Login]) -> Vec<&Login> {
    let most = logins.iter().map(|login| login.readers).max().unwrap_or(0);
    (0..most).flat_map(|n| logins.iter().filter(move |login| n < login.readers)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_alternate_in_the_numbering_of_readers() {
        let environment = Environment::from_variables::<&str, &str>([], Some("me"));
        let target = Target::resolve(Some("postgres://a@b/c"), &environment).unwrap();
        let login = |profile: &str, readers| Login {
            profile: Arc::from(profile),
            target: target.clone(),
            readers,
            superuser_allowed: false,
        };
        let logins = [login("", 3), login("etl", 1), login("web", 2)];
        let order: Vec<&str> = interleave(&logins).iter().map(|login| &*login.profile).collect();
        assert_eq!(order, ["", "etl", "web", "", "web", ""]);
    }

    #[test]
    fn a_profile_has_exactly_one_connection_string() {
        let url = Some("postgres://a@b/c".to_owned());
        let profile = Profile { url: url.clone(), readers: 1, ..Profile::default() };
        assert!(profile.check("etl").is_ok());
        assert!(profile.check("").is_err());
        assert!(profile.check("a b").is_err());
        let twice = Profile { url, url_env: Some("X".to_owned()), readers: 1, url_file: None };
        assert!(twice.check("etl").is_err());
        assert!(Profile { readers: 1, ..Profile::default() }.check("etl").is_err());
    }
}
