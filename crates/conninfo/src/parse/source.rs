//! Sources of a connection string, which is given directly or in a file.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::ConnectError;
use crate::secret::shown;

/// Source of a setting. Earlier variants take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The command line.
    Arguments,
    /// Environment variables.
    Environment,
    /// The configuration file.
    File,
}

/// The names under which a connection string, or a file that contains one, is given.
#[derive(Clone, Copy, Debug)]
pub struct SourceNames {
    /// Key of the string in the configuration file. The key of the file ends in `_file`. The flags
    /// are the same with hyphens.
    pub key: &'static str,
    /// Environment variable that contains the string.
    pub variable: &'static str,
    /// Environment variable that contains the path of the file.
    pub file_variable: &'static str,
}

impl SourceNames {
    /// Names for the connection string of the queue's database.
    pub const DATABASE: Self = Self {
        key: "database_url",
        variable: "DATABASE_URL",
        file_variable: "PGMILL_DATABASE_URL_FILE",
    };

    /// Names for the connection string of the task login.
    pub const TASK: Self = Self {
        key: "task_url",
        variable: "PGMILL_TASK_URL",
        file_variable: "PGMILL_TASK_URL_FILE",
    };

    fn pair(&self, layer: Layer) -> (String, String) {
        match layer {
            Layer::Arguments => {
                let flag = self.key.replace('_', "-");
                (format!("--{flag}"), format!("--{flag}-file"))
            }
            Layer::Environment => (self.variable.to_owned(), self.file_variable.to_owned()),
            Layer::File => (self.key.to_owned(), format!("{}_file", self.key)),
        }
    }
}

/// A connection string, or the file that contains it.
#[derive(Clone, PartialEq, Eq)]
pub enum ConnectionSource {
    /// The string itself.
    Text(String),
    /// A file that contains only the string.
    File(PathBuf),
}

/// Does not show the string, because it may contain a password.
impl fmt::Debug for ConnectionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl ConnectionSource {
    /// Returns the string or file that is given in the source with the highest precedence. `texts`
    /// and `files` are in order of precedence. An empty variable counts as not set.
    ///
    /// # Errors
    /// Fails if that source gives both a string and a file.
    pub fn choose(
        names: SourceNames,
        texts: impl IntoIterator<Item = (String, Layer)>,
        files: impl IntoIterator<Item = (PathBuf, Layer)>,
    ) -> Result<Option<(Self, Layer)>, ConnectError> {
        let full = |empty: bool, layer| layer != Layer::Environment || !empty;
        let text = texts.into_iter().find(|(text, layer)| full(text.is_empty(), *layer));
        let file =
            files.into_iter().find(|(file, layer)| full(file.as_os_str().is_empty(), *layer));
        Ok(match (text, file) {
            (Some((_, layer)), Some((_, other))) if layer == other => {
                let (text, file) = names.pair(layer);
                return Err(ConnectError::usage_with_hint(
                    format!("{text} and {file} cannot be combined"),
                    format!("omit {text} to read the connection string from the file"),
                ));
            }
            (Some((text, layer)), file)
                if file.as_ref().is_none_or(|(_, other)| layer < *other) =>
            {
                Some((Self::Text(text), layer))
            }
            (_, Some((file, layer))) => Some((Self::File(file), layer)),
            (_, None) => None,
        })
    }

    /// Returns the string. If it is read from a file, removes the surrounding white space.
    ///
    /// Does not check who else may read the file, although libpq does for `~/.pgpass`. Secrets that
    /// Kubernetes mounts are links to files with mode 0644, in a directory that only the pod sees.
    /// The credentials of a service manager are in a directory that only the service sees. A check
    /// would refuse exactly these files.
    ///
    /// # Errors
    /// The file is unreadable or does not contain a connection string.
    pub(crate) fn read(&self) -> Result<Cow<'_, str>, ConnectError> {
        match self {
            Self::Text(text) => Ok(Cow::Borrowed(text)),
            Self::File(path) => from_file(path).map(Cow::Owned),
        }
    }
}

fn from_file(path: &Path) -> Result<String, ConnectError> {
    let wrong = |problem: &str, hint: &str| {
        ConnectError::usage_with_hint(
            format!("connection string file \"{}\": {problem}", shown(&path.to_string_lossy())),
            hint,
        )
    };
    const WHAT: &str =
        "the file must contain one connection string, a URI or key=value pairs, and nothing else";
    let bytes = fs::read(path).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "a relative path is resolved against the working directory"
            }
            std::io::ErrorKind::PermissionDenied => {
                "the user of this process must be able to read the file"
            }
            _ => WHAT,
        };
        wrong(&error.to_string(), hint)
    })?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("not valid UTF-8", WHAT))?;
    let text = text.trim();
    if text.is_empty() {
        return Err(wrong("empty file", WHAT));
    }
    // A word without `=` would be the name of a database. In a file it is more likely a password,
    // and the names of databases are logged.
    if !text.contains('=') && !text.contains("://") {
        return Err(wrong(
            "not a connection string",
            "write a URI or key=value pairs; put a bare password into the file that PGPASSFILE names",
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "postgres://a:Xyzzy@b/c";

    fn choose(
        text: Option<Layer>,
        file: Option<Layer>,
    ) -> Result<Option<(ConnectionSource, Layer)>, String> {
        let text = text.map(|layer| (TEXT.to_owned(), layer));
        let file = file.map(|layer| (PathBuf::from("f"), layer));
        ConnectionSource::choose(SourceNames::DATABASE, text, file)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_source_wins_and_a_source_gives_one_of_both() {
        use Layer::{Arguments, Environment, File};
        let (text, file) = (
            || ConnectionSource::Text(TEXT.to_owned()),
            || ConnectionSource::File(PathBuf::from("f")),
        );
        assert_eq!(choose(None, None), Ok(None));
        for layer in [Arguments, Environment, File] {
            assert_eq!(choose(Some(layer), None), Ok(Some((text(), layer))));
            assert_eq!(choose(None, Some(layer)), Ok(Some((file(), layer))));
        }
        for (first, second) in [(Arguments, Environment), (Environment, File), (Arguments, File)] {
            assert_eq!(choose(Some(first), Some(second)), Ok(Some((text(), first))));
            assert_eq!(choose(Some(second), Some(first)), Ok(Some((file(), first))));
        }
        for (layer, names) in [
            (Arguments, "--database-url and --database-url-file cannot be combined"),
            (Environment, "DATABASE_URL and PGMILL_DATABASE_URL_FILE cannot be combined"),
            (File, "database_url and database_url_file cannot be combined"),
        ] {
            assert_eq!(choose(Some(layer), Some(layer)), Err(names.to_owned()));
        }
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        let text = Some((String::new(), Layer::Environment));
        let file = Some((PathBuf::from("f"), Layer::Environment));
        let chosen = ConnectionSource::choose(SourceNames::TASK, text, file).unwrap();
        assert_eq!(chosen, Some((ConnectionSource::File(PathBuf::from("f")), Layer::Environment)));
        let nothing =
            (Some((String::new(), Layer::Environment)), Some((PathBuf::new(), Layer::Environment)));
        assert_eq!(
            ConnectionSource::choose(SourceNames::TASK, nothing.0, nothing.1).unwrap(),
            None
        );
    }

    #[test]
    fn no_string_is_shown() {
        assert!(!format!("{:?}", ConnectionSource::Text(TEXT.to_owned())).contains("Xyzzy"));
    }

    #[test]
    fn a_file_contains_only_a_connection_string() {
        let path = std::env::temp_dir().join(format!("pgmill-given-{}", std::process::id()));
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let file = ConnectionSource::File(path.clone());
            let read = file.read().map(Cow::into_owned);
            fs::remove_file(&path).unwrap();
            read.map_err(|error| format!("{error} hint: {}", error.hint().unwrap_or_default()))
        };
        for written in [format!("{TEXT}\n"), TEXT.to_owned(), format!(" {TEXT}\r\n\n")] {
            assert_eq!(read(written.as_bytes()).as_deref(), Ok(TEXT));
        }
        assert_eq!(read(b"host=b password=Xyzzy\n").as_deref(), Ok("host=b password=Xyzzy"));
        for (wrong, why) in [
            (&b""[..], "empty"),
            (b" \n", "empty"),
            (b"Xyzzy\n", "PGPASSFILE"),
            (b"\xffXyzzy", "UTF-8"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(why) && error.contains(path.to_str().unwrap()), "{error}");
            assert!(!error.contains("Xyzzy"), "{error}");
        }
        let error = from_file(Path::new("/no/such/file")).unwrap_err();
        assert!(error.is_usage() && error.hint().is_some(), "{error}");
    }
}
