//! The contexts file, which names databases, and `pgmill context`.
//!
//! A context only refers to a connection: to a section of libpq's service file, to a file with a
//! connection string, or to a connection string without a password.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use cli::{Exit, Failure, location, problem_in_file};
use conninfo::{ConnectionSource, ConnectionTarget, Layer};
use console::{Environment, EnvironmentColor, context_name, environment_name};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::args::ContextVerb;
use crate::output::{Output, Row, Tone};

const FORMAT_HINT: &str = "docs/operate.md describes the format of the contexts file";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    contexts: BTreeMap<Spanned<String>, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    service: Option<String>,
    url_file: Option<PathBuf>,
    url: Option<String>,
    environment: Option<String>,
    environment_color: Option<String>,
}

/// A named database.
pub(crate) struct Context {
    pub(crate) name: String,
    source: ConnectionSource,
    pub(crate) environment: Option<Environment>,
}

impl Context {
    /// Resolves the connection, and prints warnings about it.
    ///
    /// # Errors
    /// Fails for a malformed connection string, an unknown service or an unreadable file.
    pub(crate) fn target(&self) -> Result<ConnectionTarget, Failure> {
        terminal::connection_target(Some(&(self.source.clone(), Layer::File)))
            .map_err(|error| Failure::from(error).at(&format!("context {}", self.name)))
    }
}

/// The contexts of a file, in its order.
pub(crate) struct ContextsFile {
    path: PathBuf,
    pub(crate) contexts: Vec<Context>,
}

impl ContextsFile {
    /// Reads the given file, or else the one in the user's configuration directory.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is malformed.
    pub(crate) fn read(given: Option<&Path>) -> Result<Self, Failure> {
        // An empty variable counts as not set.
        let given = given.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned);
        let path = given.or_else(default_path).ok_or_else(|| {
            Failure::usage("no contexts file").hint("Set HOME, or give --contexts FILE.")
        })?;
        let wrong = |message: String| Failure::usage(message).hint(FORMAT_HINT);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| wrong(format!("contexts file {}: {error}", path.display())))?;
        let contexts = parse(&path, &text).map_err(wrong)?;
        if contexts.is_empty() {
            return Err(wrong(format!("contexts file {} has no context", path.display())));
        }
        Ok(Self { path, contexts })
    }

    /// Returns the context of this name.
    ///
    /// # Errors
    /// Fails if there is none.
    pub(crate) fn find(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.iter().find(|context| context.name == name).ok_or_else(|| {
            let path = self.path.display();
            Failure::usage(format!("no context \"{name}\" in {path}"))
                .hint(format!("The file has: {}.", self.names().join(", ")))
        })
    }

    /// Returns the names of all contexts.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.contexts.iter().map(|context| context.name.as_str()).collect()
    }
}

/// Returns the path by the XDG base directory specification.
#[expect(clippy::disallowed_methods, reason = "protocol of the desktop, not a setting of pgmill")]
fn default_path() -> Option<PathBuf> {
    // The specification ignores relative paths.
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(folder.join("pgmill/contexts.toml"))
}

/// Parses the contexts, in the order of the file. Errors show no text of the file, which may contain
/// a password.
fn parse(path: &Path, text: &str) -> Result<Vec<Context>, String> {
    let at = |start: usize| location(path, text, start);
    let file: FileText = toml::from_str(text).map_err(|error| {
        problem_in_file(path, text, error.span().map(|span| span.start), error.message())
    })?;
    let mut entries: Vec<(Spanned<String>, Entry)> = file.contexts.into_iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let context = |(name, entry): (Spanned<String>, Entry)| {
        let start = name.span().start;
        Context::new(name.get_ref(), entry).map_err(|message| format!("{}: {message}", at(start)))
    };
    entries.into_iter().map(context).collect()
}

impl Context {
    fn new(name: &str, entry: Entry) -> Result<Self, String> {
        let name = context_name(name).map_err(|rule| format!("context name \"{name}\" {rule}"))?;
        let source = match (entry.service, entry.url_file, entry.url) {
            (Some(service), None, None) => {
                let quoted = service.replace('\\', "\\\\").replace('\'', "\\'");
                ConnectionSource::Text(format!("service='{quoted}'"))
            }
            (None, Some(file), None) => ConnectionSource::File(file),
            (None, None, Some(url)) => ConnectionSource::Text(url),
            _ => {
                return Err(format!(
                    "context {name} needs exactly one of service, url_file and url"
                ));
            }
        };
        let environment = environment(entry.environment, entry.environment_color)
            .map_err(|message| format!("context {name}: {message}"))?;
        Ok(Self { name, source, environment })
    }
}

fn environment(name: Option<String>, color: Option<String>) -> Result<Option<Environment>, String> {
    let Some(name) = name else {
        return match color {
            Some(_) => Err("environment_color has no effect without environment".to_owned()),
            None => Ok(None),
        };
    };
    let name = environment_name(&name).map_err(|rule| format!("environment {rule}"))?;
    let color = match color {
        None => EnvironmentColor::default(),
        Some(color) => EnvironmentColor::from_str(&color, false)
            .map_err(|_| format!("unknown environment_color \"{color}\""))?,
    };
    Ok(Some(Environment { name, color }))
}

/// Runs a subcommand of `pgmill context`.
///
/// # Errors
/// Fails if the file cannot be read or is malformed. A context whose connection cannot be resolved is
/// listed with its error.
pub(crate) fn run(file: Option<&Path>, out: &Output, verb: &ContextVerb) -> Exit {
    let ContextVerb::List = verb;
    let file = ContextsFile::read(file)?;
    let described: Vec<ContextLine> = file.contexts.iter().map(ContextLine::of).collect();
    out.list(&described, "no contexts", |it| {
        let row = Row::of("context", it.context);
        let row = match &it.error {
            Some(error) => row.text("connection", error).tone(Tone::Error),
            None => row.maybe("connection", it.connection.as_ref()),
        };
        row.maybe("environment", it.environment)
    })
}

/// A context in the list.
#[derive(Serialize)]
struct ContextLine<'a> {
    context: &'a str,
    connection: Option<String>,
    environment: Option<&'a str>,
    error: Option<String>,
}

impl<'a> ContextLine<'a> {
    fn of(it: &'a Context) -> Self {
        let (connection, error) = match it.target() {
            Ok(connection) => (Some(connection.to_string()), None),
            Err(failure) => (None, Some(failure.summary())),
        };
        let environment = it.environment.as_ref().map(|it| it.name.as_str());
        Self { context: &it.name, connection, environment, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(Path::new("f"), text).err().unwrap_or_default()
    }

    #[test]
    fn contexts_keep_the_order_of_the_file() {
        let text = "[contexts.z]\nservice = \"it's\"\n[contexts.a-1]\nurl_file = '/x'\n\
            [contexts.\"m.2\"]\nurl = 'host=h'\nenvironment = 'prod'\nenvironment_color = 'red'\n";
        let contexts = parse(Path::new("f"), text).unwrap();
        let names: Vec<&str> = contexts.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["z", "a-1", "m.2"]);
        assert_eq!(contexts[0].source, ConnectionSource::Text("service='it\\'s'".to_owned()));
        assert_eq!(contexts[1].source, ConnectionSource::File("/x".into()));
        let prod = Environment { name: "prod".to_owned(), color: EnvironmentColor::Red };
        assert_eq!(contexts[2].environment, Some(prod));
    }

    #[test]
    fn errors_name_the_place_and_show_no_value() {
        for (text, expected) in [
            ("[contexts.a]\n", "f:1:11: context a needs exactly one of"),
            ("[contexts.a]\nurl = 'x'\nservice = 'y'", "context a needs exactly one of"),
            ("[contexts.A]\nurl = 'x'", "context name \"A\""),
            ("[contexts.\"../x\"]\nurl = 'x'", "context name \"../x\""),
            ("[contexts.\"<script>\"]\nurl = 'x'", "context name \"<script>\""),
            ("[contexts.\"\"]\nurl = 'x'", "context name \"\""),
            ("[contexts.a]\nurl = 'x'\n[contexts.a]\nurl = 'y'", "f:3:"),
            ("[contexts.a]\nurl = 'x'\nenvironment_color = 'red'", "without environment"),
            (
                "[contexts.a]\nurl = 'x'\nenvironment = 'p'\nenvironment_color = 'Red'",
                "unknown environment_color \"Red\"",
            ),
            ("[contexts.a]\npassword = 'hunter2'", "unknown field `password`"),
            ("[a]\nurl = 'x'", "unknown field `a`"),
            ("[contexts.a]\nurl = 'hunter2", "f:2:"),
            ("[contexts]\nprod = 'hunter2'", "f:2:8: invalid type, expected struct Entry"),
        ] {
            let error = error(text);
            assert!(error.contains(expected) && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
