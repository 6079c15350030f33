//! Resolves a single setting from flag, environment, file or default, and records its origin.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::ArgMatches;
use clap::parser::ValueSource;
use conninfo::{ConnectionSource, Layer, SourceNames};
use console::{ConsoleFlags, WorkerConsoleFlags};

use super::file::ConfigFile;

/// Address and flags of the console.
#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) listen: SocketAddr,
    pub(crate) flags: WorkerConsoleFlags,
}

/// Source of one setting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) name: String,
    /// Empty if not set; "(set)" in place of a secret.
    pub(crate) value: String,
    pub(crate) origin: String,
}

/// Takes each setting from the first source that has it, and records the source.
pub(super) struct SettingResolver<'a> {
    pub(super) matches: &'a ArgMatches,
    pub(super) file: Option<&'a Path>,
    pub(super) origins: Vec<Origin>,
}

/// A connection string and the name of a file with one, as given by a single source.
pub(super) type UrlSources = (Option<String>, Option<PathBuf>);

impl SettingResolver<'_> {
    /// Returns the configuration file as an origin.
    pub(super) fn file_origin(&self) -> String {
        format!("file {}", self.file.unwrap_or(Path::new("")).display())
    }

    /// Returns the source of a value that clap has parsed.
    fn layer(&self, name: &str) -> Layer {
        match self.matches.value_source(name) {
            Some(ValueSource::EnvVariable) => Layer::Environment,
            _ => Layer::Arguments,
        }
    }

    /// Chooses a connection string or a file with one. Records the origin of the choice, but not
    /// the string itself.
    pub(super) fn url(
        &mut self,
        names: SourceNames,
        flag: UrlSources,
        file: UrlSources,
    ) -> anyhow::Result<Option<ConnectionSource>> {
        let (key, file_key) = (names.key, format!("{}_file", names.key));
        let (here, there) = (self.layer(key), self.layer(&file_key));
        let texts = [flag.0.map(|it| (it, here)), file.0.map(|it| (it, Layer::File))];
        let files = [flag.1.map(|it| (it, there)), file.1.map(|it| (it, Layer::File))];
        let chosen = ConnectionSource::choose(
            names,
            texts.into_iter().flatten(),
            files.into_iter().flatten(),
        )?;
        let origin = match chosen.as_ref().map(|(_, layer)| layer) {
            Some(Layer::Arguments) => "flag".to_owned(),
            Some(Layer::Environment) => "environment".to_owned(),
            Some(Layer::File) => self.file_origin(),
            None => "default".to_owned(),
        };
        let given = chosen.map(|(given, _)| given);
        let (name, value) = match &given {
            Some(ConnectionSource::File(path)) => (file_key, path.display().to_string()),
            Some(ConnectionSource::Text(_)) => (key.to_owned(), "(set)".to_owned()),
            None => (key.to_owned(), String::new()),
        };
        self.origins.push(Origin { name, value, origin });
        Ok(given)
    }

    pub(super) fn resolve<T>(
        &mut self,
        name: &'static str,
        flag: Option<T>,
        file: Option<T>,
        show: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let origin = match (&flag, &file, self.matches.value_source(name)) {
            (Some(_), _, Some(ValueSource::EnvVariable)) => "environment".to_owned(),
            (Some(_), ..) => "flag".to_owned(),
            (None, Some(_), _) => self.file_origin(),
            (None, None, _) => "default".to_owned(),
        };
        let value = flag.or(file);
        let shown = value.as_ref().map(show).unwrap_or_default();
        self.origins.push(Origin { name: name.to_owned(), value: shown, origin });
        value
    }

    /// Resolves the flags of the console. Values that equal clap's defaults count as not given.
    pub(super) fn console(
        &mut self,
        listen: Option<SocketAddr>,
        mut flags: ConsoleFlags,
        file: &mut ConfigFile,
    ) -> anyhow::Result<Option<Console>> {
        let listen = self.resolve("console", listen, file.console, SocketAddr::to_string);
        let read_only = flags.read_only.then_some(true);
        flags.read_only =
            self.resolve_or("console_read_only", read_only, file.console_read_only, false);
        for (name, flag, in_file) in [
            ("console_token_file", &mut flags.token_file, file.console_token_file.take()),
            ("console_tls_cert", &mut flags.tls_cert, file.console_tls_cert.take()),
            ("console_tls_key", &mut flags.tls_key, file.console_tls_key.take()),
        ] {
            *flag = self.resolve(name, flag.take(), in_file, |path| path.display().to_string());
        }
        let behind_proxy = flags.behind_proxy.then_some(true);
        flags.behind_proxy =
            self.resolve_or("console_behind_proxy", behind_proxy, file.console_behind_proxy, false);
        let base_path = Some(flags.base_path).filter(|path| !path.is_empty());
        let in_file = file.console_base_path.take().map(|path| console::base_path(&path));
        let in_file = in_file.transpose().map_err(|error| anyhow!("console_base_path: {error}"))?;
        flags.base_path = self.resolve_or("console_base_path", base_path, in_file, String::new());
        let names = Some(flags.allow_host).filter(|names| !names.is_empty());
        let in_file = file.console_allow_host.take();
        let shown = |names: &Vec<String>| names.join(",");
        flags.allow_host =
            self.resolve("console_allow_host", names, in_file, shown).unwrap_or_default();
        Ok(listen.map(|listen| Console { listen, flags: WorkerConsoleFlags(flags) }))
    }

    /// Returns the value of a flag with a default, from the first source that has one: the command
    /// line, the environment, the file, the default.
    pub(super) fn resolve_with_default<T>(
        &mut self,
        name: &'static str,
        flag: T,
        file: Option<T>,
        show: impl FnOnce(&T) -> String,
    ) -> T {
        let (value, origin) = match (self.matches.value_source(name), file) {
            (Some(ValueSource::EnvVariable), _) => (flag, "environment".to_owned()),
            (Some(ValueSource::CommandLine), _) => (flag, "flag".to_owned()),
            (_, Some(value)) => (value, self.file_origin()),
            (_, None) => (flag, "default".to_owned()),
        };
        self.origins.push(Origin { name: name.to_owned(), value: show(&value), origin });
        value
    }

    pub(super) fn resolve_or<T: Display>(
        &mut self,
        name: &'static str,
        flag: Option<T>,
        file: Option<T>,
        default: T,
    ) -> T {
        self.resolve(name, flag, file, T::to_string).unwrap_or_else(|| {
            if let Some(origin) = self.origins.last_mut() {
                origin.value = default.to_string();
            }
            default
        })
    }
}
