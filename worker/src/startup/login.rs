//! Logins that task SQL runs as: the default login, and one login per profile.
//!
//! Each login has its own readers, and the session of a reader keeps its login. If a task changes
//! its role, it starts from that login, and the reset after the task returns to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use conninfo::{ConnectionTarget, Environment};

use crate::startup::config::Config;

/// A login and its number of readers.
#[derive(Clone)]
pub(crate) struct Login {
    /// Name of the profile; empty for the login of tasks without a profile.
    pub(crate) profile: Arc<str>,
    pub(crate) target: ConnectionTarget,
    pub(crate) readers: u32,
    pub(crate) superuser_allowed: bool,
}

impl Login {
    /// Returns the login with another `application_name`.
    pub(crate) fn with_application_name(&self, name: &str) -> Self {
        Self { target: self.target.with_application_name(name), ..self.clone() }
    }
}

/// Returns all configured logins, the login of tasks without a profile first.
///
/// # Errors
/// A connection string is invalid, or its file or variable cannot be read.
pub(crate) fn logins(
    config: &Config,
    control: &ConnectionTarget,
    environment: &Environment,
) -> anyhow::Result<Vec<Login>> {
    let superuser_allowed = config.settings.allow_superuser;
    let target = match &config.task {
        Some(given) => ConnectionTarget::resolve(Some(&given.clone().read()?), environment)?,
        None => control.clone(),
    };
    let (profile, readers) = (Arc::from(""), config.settings.readers);
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

/// Returns the login of each reader. The profiles alternate, because the first readers are the ones
/// that are reserved for reserved tasks, and reserved tasks may name any profile.
pub(crate) fn interleave(logins: &[Login]) -> Vec<&Login> {
    let max_readers = logins.iter().map(|login| login.readers).max().unwrap_or(0);
    (0..max_readers).flat_map(|n| logins.iter().filter(move |login| n < login.readers)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_alternate_in_the_numbering_of_readers() {
        let environment = Environment::from_variables::<&str, &str>([], Some("me"));
        let target = ConnectionTarget::resolve(Some("postgres://a@b/c"), &environment).unwrap();
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
}
