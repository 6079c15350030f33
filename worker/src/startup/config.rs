//! The settings of this process. The value of each setting comes from its flag, environment
//! variable or key in the configuration file, in this order of precedence, or else is its default.

mod file;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::ensure;
use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use conninfo::{ConnectionSource, Layer, SourceNames, may_contain_password, shown};
use fleet_decisions::timing::MIN_MISSED_HEARTBEATS;
use notification::DestinationSettings;

use self::file::{ConfigFile, Tables};
use crate::startup::profile::{Profile, RUN_AS, TARGETS};
use crate::startup::settings::{Settings, settings};

/// The resolved settings.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// The queue's database; `None` if the `PG*` variables apply.
    pub(crate) database: Option<ConnectionSource>,
    /// The login of tasks without a profile; `None` if it is the login of `database`.
    pub(crate) task: Option<ConnectionSource>,
    pub(crate) tables: Tables,
    origins: Vec<Origin>,
    /// The configuration file.
    path: PathBuf,
}

/// A setting with its value and source.
#[derive(Debug)]
struct Origin {
    name: String,
    /// The value; empty if not set, and "(set)" in place of a secret.
    value: String,
    /// Where the value comes from; `None` for the default.
    layer: Option<Layer>,
}

impl Config {
    /// Resolves every setting from these arguments, the environment and the configuration file. Does
    /// not read files with connection strings.
    ///
    /// # Errors
    /// The command line is invalid or asks for help: [`clap::Error`]. The configuration file cannot
    /// be read, has an unknown key or has an invalid value. Settings contradict each other.
    pub(crate) fn resolve(
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> anyhow::Result<Self> {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let command = Settings::command();
        let given = command.clone().try_get_matches_from(&args)?;
        let file = match given.get_one::<PathBuf>("config") {
            Some(path) => ConfigFile::read(path, &command)?,
            None => ConfigFile::default(),
        };
        let mut command = command.mut_args(|arg| with_default_of_file(arg, &given, &file));
        let matches = command.try_get_matches_from_mut(args)?;
        let mut settings = Settings::from_arg_matches(&matches)?;
        let mut origins = origins(&command, &matches, &file);
        let (url, url_file) = (settings.database_url.take(), settings.database_url_file.take());
        let database = connection(SourceNames::DATABASE, url, url_file, &mut origins)?;
        let (url, url_file) = (settings.task_url.take(), settings.task_url_file.take());
        let task = connection(SourceNames::TASK, url, url_file, &mut origins)?;
        let config =
            Self { settings, database, task, tables: file.tables, origins, path: file.path };
        config.check()?;
        Ok(config)
    }

    /// Returns the settings of a program that embeds the worker: none is on its command line.
    pub(crate) fn in_program(mut self) -> Self {
        self.origins.clear();
        self
    }

    /// Returns whether the setting was given on the command line.
    pub(crate) fn on_command_line(&self, name: &str) -> bool {
        let given = |origin: &Origin| origin.name == name && origin.layer == Some(Layer::Arguments);
        self.origins.iter().any(given)
    }

    /// Prints every setting with its value and source.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub(crate) fn print(&self) -> io::Result<()> {
        cli::print(|out| self.origins.iter().try_for_each(|origin| self.print_origin(origin, out)))
    }

    fn print_origin(&self, origin: &Origin, out: &mut dyn Write) -> io::Result<()> {
        let source = match origin.layer {
            Some(Layer::Arguments) => "flag",
            Some(Layer::Environment) => "environment",
            Some(Layer::File) => &format!("file {}", shown(&self.path.to_string_lossy())),
            None => "default",
        };
        writeln!(out, "{:<24} {:<36} {source}", origin.name, origin.value)
    }

    fn check(&self) -> anyhow::Result<()> {
        let Settings { heartbeat_interval, orphan_timeout, .. } = &self.settings;
        ensure!(
            orphan_timeout.0 >= MIN_MISSED_HEARTBEATS * heartbeat_interval.0,
            "orphan_timeout ({orphan_timeout}) must be at least three times heartbeat_interval \
             ({heartbeat_interval}), so that one lost heartbeat does not make a worker look dead",
        );
        let Tables { run_as, targets, .. } = &self.tables;
        for (name, target) in targets {
            target.check(TARGETS, name)?;
            ensure!(!run_as.contains_key(name), "both run_as.{name} and targets.{name} are set");
        }
        run_as.iter().try_for_each(|(name, profile)| profile.check(RUN_AS, name))
    }
}

/// Makes the value in the file the default of a setting, unless the flag or the environment sets
/// it.
fn with_default_of_file(arg: Arg, given: &ArgMatches, file: &ConfigFile) -> Arg {
    let key = arg.get_id().as_str();
    match file.values.get(key) {
        Some(values) if layer(key, given, file) == Some(Layer::File) => {
            // The delimiter is unset, because a value in the file's array may contain it.
            let arg = arg.env(Resettable::Reset).value_delimiter(Resettable::Reset);
            arg.default_values(values)
        }
        _ => arg,
    }
}

/// Returns the source of a setting, or `None` for the default. An empty environment variable counts
/// as not set.
fn layer(key: &str, matches: &ArgMatches, file: &ConfigFile) -> Option<Layer> {
    let empty = || matches.get_raw(key).is_none_or(|mut values| values.all(OsStr::is_empty));
    match matches.value_source(key) {
        Some(ValueSource::CommandLine) => Some(Layer::Arguments),
        Some(ValueSource::EnvVariable) if !empty() => Some(Layer::Environment),
        _ => file.values.contains_key(key).then_some(Layer::File),
    }
}

fn origins(command: &Command, matches: &ArgMatches, file: &ConfigFile) -> Vec<Origin> {
    let of = |arg: &Arg| {
        let name = arg.get_id().to_string();
        let values: Vec<_> = matches.get_raw(&name).into_iter().flatten().collect();
        let text = values.join(",".as_ref()).to_string_lossy().into_owned();
        let secret =
            may_contain_password(&text) || arg.is_hide_env_values_set() && !text.is_empty();
        let value = if secret { "(set)".to_owned() } else { text };
        let layer = layer(&name, matches, file);
        Origin { name, value, layer }
    };
    let profile = |(table, name, profile): (&str, &String, &Profile)| Origin {
        name: format!("{table}.{name}"),
        value: format!("{} readers", profile.readers),
        layer: Some(Layer::File),
    };
    let destination = |(name, settings): (&String, &DestinationSettings)| Origin {
        name: format!("destinations.{name}"),
        value: settings.kind().to_owned(),
        layer: Some(Layer::File),
    };
    let profiles = file.tables.logins().map(profile);
    let destinations = file.tables.destinations.iter().map(destination);
    settings(command).map(of).chain(profiles).chain(destinations).collect()
}

/// Returns the connection string, or the file that contains one, whichever is given. Removes the
/// other one from `origins`.
fn connection(
    names: SourceNames,
    url: Option<String>,
    file: Option<PathBuf>,
    origins: &mut Vec<Origin>,
) -> anyhow::Result<Option<ConnectionSource>> {
    let file_key = format!("{}_file", names.key);
    let layer = |key: &str| origins.iter().find(|origin| origin.name == key)?.layer;
    let (url, file) = (url.zip(layer(names.key)), file.zip(layer(&file_key)));
    let chosen = ConnectionSource::choose(names, url, file)?.map(|(chosen, _)| chosen);
    let other = match &chosen {
        Some(ConnectionSource::File(_)) => names.key,
        Some(ConnectionSource::Text(_)) | None => &file_key,
    };
    origins.retain(|origin| origin.name != other);
    Ok(chosen)
}

#[cfg(test)]
mod tests;
