//! The configuration file. Its keys and their types are derived from the table of settings.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::Arg;
use clap::error::ContextKind;
use clap::{ArgAction, Command};
use cli::Failure;
use conninfo::shown;
use notification::DestinationSettings;
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use crate::startup::profile::{Profile, RUN_AS, TARGETS};
use crate::startup::settings::settings;

/// The tables, which are not settings.
const TABLES: [&str; 3] = [RUN_AS, TARGETS, "destinations"];

/// The values in a configuration file, each valid for its setting.
#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    /// The values of each key, written as on the command line.
    pub(super) values: BTreeMap<String, Vec<String>>,
    pub(super) tables: Tables,
}

/// The tables of a configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Tables {
    /// Profiles, which are logins that tasks can run as.
    pub(crate) run_as: BTreeMap<String, Profile>,
    /// Targets, which are other databases that tasks can run in.
    pub(crate) targets: BTreeMap<String, Profile>,
    /// Receivers of notifications.
    pub(crate) destinations: BTreeMap<String, DestinationSettings>,
}

impl Tables {
    /// Returns profiles and targets, each with the name of its table.
    pub(crate) fn logins(&self) -> impl Iterator<Item = (&'static str, &String, &Profile)> {
        let profiles = self.run_as.iter().map(|(name, profile)| (RUN_AS, name, profile));
        profiles.chain(self.targets.iter().map(|(name, target)| (TARGETS, name, target)))
    }
}

impl ConfigFile {
    /// Reads a file whose keys are settings of this command.
    ///
    /// # Errors
    /// The file cannot be read or is not TOML. A key is unknown or its value invalid: [`Failure`].
    pub(super) fn read(path: &Path, command: &Command) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("could not read the configuration file {}", path.display()))?;
        // The error itself would show the line of the file, which may be that of a password.
        let wrong = |error: toml::de::Error| {
            let at = error.span().map(|span| span.start);
            Failure::usage(cli::problem_in_file(path, &text, at, error.message()))
        };
        let table = DeTable::parse(&text).map_err(wrong)?;
        let tables = toml::from_str(&text).map_err(wrong)?;
        let mut values = BTreeMap::new();
        for (key, value) in table.get_ref() {
            let at = |offset| cli::location(path, &text, offset);
            let (name, key_at, value_at) = (key.get_ref(), key.span().start, value.span().start);
            if TABLES.contains(&&**name) {
                continue;
            }
            let Some(setting) = settings(command).find(|arg| arg.get_id() == &**name) else {
                let unknown = Failure::usage(format!("{}: unknown key \"{name}\"", at(key_at)));
                return Err(unknown.hint(similar_key(command, name)).into());
            };
            let texts = texts(setting, value.get_ref())
                .map_err(|problem| Failure::usage(format!("{}: {name} {problem}", at(value_at))))?;
            values.insert(name.to_string(), texts);
        }
        Ok(Self { path: path.to_owned(), values, tables })
    }
}

fn similar_key(command: &Command, key: &str) -> String {
    let flag = format!("--{}", key.replace('_', "-"));
    let error = command.clone().try_get_matches_from(["worker", &flag]).err();
    match error.as_ref().and_then(|error| error.get(ContextKind::SuggestedArg)) {
        Some(flag) => {
            format!("Did you mean {}?", flag.to_string().replace("--", "").replace('-', "_"))
        }
        None => "Keys are the flags of worker --help without --, with _ instead of -.".to_owned(),
    }
}

/// Returns the value as on the command line. Each element of an array is a string of its own.
///
/// # Errors
/// Returns the rest of a sentence about the key if the value has the wrong type or is invalid.
fn texts(setting: &Arg, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let ratio = setting.get_value_parser().type_id() == TypeId::of::<f64>();
    let number = setting.get_value_parser().type_id() == TypeId::of::<u32>();
    let texts = if matches!(setting.get_action(), ArgAction::SetTrue) {
        vec![value.as_bool().ok_or("must be true or false")?.to_string()]
    } else if setting.get_value_delimiter().is_some() {
        let strings = value.as_array().map(|all| all.iter().map(|it| it.get_ref().as_str()));
        let strings = strings.and_then(|all| all.map(|it| it.map(str::to_owned)).collect());
        strings.ok_or("must be an array of strings")?
    } else if ratio {
        vec![number_text(value).ok_or("must be a number")?]
    } else if number {
        vec![value.as_integer().ok_or("must be an integer")?.to_string()]
    } else {
        vec![value.as_str().ok_or("must be a string")?.to_owned()]
    };
    if texts.is_empty() && setting.get_default_values().is_empty() {
        return Err("is empty; omit the key instead".to_owned());
    }
    texts.iter().try_for_each(|text| check(setting, text))?;
    Ok(texts)
}

fn number_text(value: &DeValue<'_>) -> Option<String> {
    let float = value.as_float().map(ToString::to_string);
    float.or_else(|| value.as_integer().map(ToString::to_string))
}

/// Checks the value with the parser of its flag, even if a flag overrides it. Ignores the setting's
/// environment variable, its delimiter and its relations to other flags.
fn check(setting: &Arg, text: &str) -> Result<(), String> {
    let alone = Arg::new("value").long("value").allow_hyphen_values(true);
    let alone = alone.value_parser(setting.get_value_parser().clone());
    let command = Command::new("check").no_binary_name(true).arg(alone);
    let Err(error) = command.try_get_matches_from([format!("--value={text}")]) else {
        return Ok(());
    };
    let reason = match (error.source(), error.get(ContextKind::ValidValue)) {
        (Some(reason), _) => reason.to_string(),
        (None, Some(valid)) => format!("use one of {valid}"),
        (None, None) => "a value is missing".to_owned(),
    };
    Err(format!("has the invalid value \"{}\": {reason}", shown(text)))
}
