//! Where a connection string was given: itself, or as the name of the file that holds it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::ConnectError;

/// A place for settings. The first in this order wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The command line.
    Arguments,
    /// Variables.
    Environment,
    /// The configuration file.
    File,
}

/// What a connection string and its file are called in the places where they may be given.
#[derive(Clone, Copy, Debug)]
pub struct SourceNames {
    /// The key in a configuration file; the flag is the same with hyphens. The file's has `_file` at its end.
    pub key: &'static str,
    /// The variable with the string.
    pub variable: &'static str,
    /// The variable with the file's name.
    pub file_variable: &'static str,
}

impl SourceNames {
    /// Of the queue's own database.
    pub const DATABASE: Self = Self {
        key: "database_url",
        variable: "DATABASE_URL",
        file_variable: "PGMILL_DATABASE_URL_FILE",
    };

    /// Of the login of tasks.
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

/// A connection string, or where it is.
#[derive(Clone, PartialEq, Eq)]
pub enum ConnectionSource {
    /// The string itself.
    Text(String),
    /// The file that holds it and nothing else.
    File(PathBuf),
}

/// Shows no string: there may be a password in it.
impl fmt::Debug for ConnectionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl ConnectionSource {
    /// What counts of the strings and files, each given in the order of the places: the one from the
    /// earliest place. An empty variable is none.
    ///
    /// # Errors
    /// A string and a file come from that place, and nobody could say which was meant.
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
                    format!("{text} and {file} exclude each other"),
                    format!("leave {text} out to read the connection string from the file"),
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

    /// The string itself; white space around the contents of a file does not count.
    ///
    /// Who else may read the file is not looked at, unlike with `~/.pgpass`: secrets that Kubernetes mounts
    /// are links to files with mode 0644 in a folder that only the pod sees, and a service manager's
    /// credentials lie in a folder that only the service sees. A refusal would hit these and no others.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else than a connection string.
    pub fn read(self) -> Result<String, ConnectError> {
        match self {
            Self::Text(text) => Ok(text),
            Self::File(path) => from_file(&path),
        }
    }
}

fn from_file(path: &Path) -> Result<String, ConnectError> {
    let wrong = |problem: &str, hint: &str| {
        ConnectError::usage_with_hint(
            format!("connection string file \"{}\": {problem}", path.display()),
            hint,
        )
    };
    const WHAT: &str = "it holds one connection string, a URI or key=value pairs, and nothing else";
    let bytes = fs::read(path).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "it is looked for where the program was started, unless its name begins with /"
            }
            std::io::ErrorKind::PermissionDenied => {
                "the user of this process has to be able to read it"
            }
            _ => WHAT,
        };
        wrong(&error.to_string(), hint)
    })?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not valid UTF-8", WHAT))?;
    let text = text.trim();
    if text.is_empty() {
        return Err(wrong("it is empty", WHAT));
    }
    // A bare word would be a database's name. In a file it is rather a password, and database names are
    // logged.
    if !text.contains('=') && !text.contains("://") {
        return Err(wrong(
            "it holds no connection string",
            "write a URI or key=value pairs; a password alone goes into a file that PGPASSFILE names",
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
    fn the_earlier_place_wins_and_one_place_says_it_once() {
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
            (Arguments, "--database-url and --database-url-file exclude each other"),
            (Environment, "DATABASE_URL and PGMILL_DATABASE_URL_FILE exclude each other"),
            (File, "database_url and database_url_file exclude each other"),
        ] {
            assert_eq!(choose(Some(layer), Some(layer)), Err(names.to_owned()));
        }
    }

    #[test]
    fn an_empty_variable_is_none() {
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
    fn a_file_holds_a_connection_string_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("pgmill-given-{}", std::process::id()));
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let read = ConnectionSource::File(path.clone()).read();
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
        let error = ConnectionSource::File(PathBuf::from("/no/such/file")).read().unwrap_err();
        assert!(error.is_usage() && error.hint().is_some(), "{error}");
    }
}
