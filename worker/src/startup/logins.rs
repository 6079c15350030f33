//! Logins that task SQL runs as: the default login, and one login per profile.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use conninfo::{ConnectionTarget, Environment};

use crate::control::Control;
use crate::login::Login;
use crate::startup::config::Config;
use crate::startup::profile::TARGETS;

/// Returns all configured logins, the login of tasks without a profile first.
///
/// # Errors
/// A connection string is invalid, or its file or variable cannot be read.
pub(crate) fn logins(
    config: &Config,
    queue: &ConnectionTarget,
    control: &Arc<Control>,
    environment: &Environment,
) -> anyhow::Result<Vec<Login>> {
    let superuser_allowed = config.settings.allow_superuser;
    let target = match &config.task {
        Some(given) => ConnectionTarget::from_source(Some(given.clone()), environment)?,
        None => queue.clone(),
    };
    let mut logins = vec![Login {
        profile: Arc::from(""),
        setting: Arc::from("--task-url"),
        target,
        readers: config.settings.readers,
        superuser_allowed,
        host: Arc::clone(control),
    }];
    for (table, name, profile) in config.tables.logins() {
        let setting = format!("{table}.{name}");
        let target = profile.target(environment).with_context(|| setting.clone())?;
        let host = if table == TARGETS {
            Arc::new(control.in_target(&target)?)
        } else {
            Arc::clone(control)
        };
        logins.push(Login {
            profile: Arc::from(name.as_str()),
            setting: Arc::from(setting),
            target,
            readers: profile.readers,
            superuser_allowed,
            host,
        });
    }
    Ok(logins)
}

/// Returns the number of all readers.
pub(crate) fn readers(config: &Config) -> u32 {
    let others = config.tables.logins().map(|(_, _, profile)| profile.readers);
    config.settings.readers + others.sum::<u32>()
}

/// Returns the number of readers of each profile, by name.
pub(crate) fn readers_by_profile(logins: &[Login]) -> BTreeMap<String, u32> {
    logins.iter().map(|login| (login.profile.to_string(), login.readers)).collect()
}

/// Returns the login of each reader, and the number of the reader among those of the login, from 1.
pub(crate) fn numbered_readers(logins: &[Login]) -> impl Iterator<Item = (&Login, u32)> {
    logins.iter().flat_map(|login| (1..=login.readers).map(move |number| (login, number)))
}
