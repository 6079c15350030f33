//! Options of every subcommand, most of which name the database, and the arguments of
//! `pgmill context`.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, Subcommand};
use conninfo::{ConnectionSource, Layer, SourceNames};

use super::Args;

/// Options of every subcommand.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Database of the fleet: URL or key=value pairs, as for psql
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "CONNINFO")]
    #[arg(global = true)]
    database_url: Option<String>,
    /// File that contains the connection string, instead of --database-url
    #[arg(long, env = "PGMILL_DATABASE_URL_FILE", value_name = "FILE", global = true)]
    database_url_file: Option<PathBuf>,
    /// Database of the contexts file, instead of --database-url
    #[arg(long, env = "PGMILL_CONTEXT", value_name = "NAME", global = true)]
    context: Option<String>,
    /// Run a command that only reads on all databases of the contexts file
    #[arg(long, global = true)]
    pub(crate) all_contexts: bool,
    /// Contexts file, which names databases [default: ~/.config/pgmill/contexts.toml]
    #[arg(long = "contexts", env = "PGMILL_CONTEXTS", value_name = "FILE", global = true)]
    pub(crate) contexts_file: Option<PathBuf>,
    /// The database that the command line or the environment names.
    #[arg(skip)]
    pub(crate) given: Option<GivenDatabase>,
    /// Print one JSON document; timestamps are RFC 3339 in UTC
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Disable colours; the same as setting the variable NO_COLOR
    #[arg(long, env = "NO_COLOR", hide_env = true, global = true, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "1", value_name = "1")]
    pub(crate) no_color: Option<String>,
}

/// How a database is named.
#[derive(Clone, Debug)]
pub(crate) enum GivenDatabase {
    /// By a connection string or its file, on the command line, which every user of the machine can
    /// read, or in the environment.
    Source(ConnectionSource, Layer),
    /// By the name of a context.
    Context(String),
}

impl Global {
    /// Sets `given` from the flags and their variables. A flag takes precedence over a variable.
    pub(super) fn choose(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let layer = |name| match matches.value_source(name) {
            Some(ValueSource::EnvVariable) => Layer::Environment,
            _ => Layer::Arguments,
        };
        let conflict = |error: String| Args::command().error(ErrorKind::ArgumentConflict, error);
        let text = self.database_url.take().map(|text| (text, layer("database_url")));
        let file = self.database_url_file.take();
        let file = file.map(|file| (file, layer("database_url_file")));
        let source = ConnectionSource::choose(SourceNames::DATABASE, text, file)
            .map_err(|error| conflict(error.to_string()))?;
        // An empty variable counts as not set.
        let context = self.context.take().map(|name| (name, layer("context")));
        let context = context.filter(|(name, at)| *at == Layer::Arguments || !name.is_empty());
        let named = [source.as_ref().map(|it| it.1), context.as_ref().map(|it| it.1)];
        if self.all_contexts && named.contains(&Some(Layer::Arguments)) {
            let wrong = "--all-contexts cannot be combined with --context or --database-url";
            return Err(conflict(wrong.to_owned()));
        }
        self.given = match (source, context) {
            (Some((_, one)), Some((_, other))) if one == other => {
                let names = match one {
                    Layer::Arguments => "--context and --database-url",
                    _ => "PGMILL_CONTEXT and DATABASE_URL",
                };
                return Err(conflict(format!("{names} cannot be combined")));
            }
            (Some((source, layer)), other) if other.as_ref().is_none_or(|it| layer < it.1) => {
                Some(GivenDatabase::Source(source, layer))
            }
            (_, Some((name, _))) => Some(GivenDatabase::Context(name)),
            (_, None) => None,
        };
        Ok(())
    }

    /// Returns the name of the context, if a context names the database.
    pub(crate) fn context(&self) -> Option<&str> {
        match &self.given {
            Some(GivenDatabase::Context(name)) if !self.all_contexts => Some(name),
            _ => None,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ContextVerb {
    /// List the databases of the contexts file, without connecting to them
    List,
}
