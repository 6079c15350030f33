//! A call of psql: its options, and the SQL that it runs.

use std::collections::BTreeMap;
use std::path::Path;

use queue::scan::{self, PieceKind};
use tokio_postgres::Config;

use super::super::conversion::{Differences, LeftOut};
use super::shell::{Word, split};

/// What to do with a command that is no SQL.
const NOT_SQL: &str = "Leave the line in the crontab, or call only psql in it.";

/// A call of psql with statements or script files.
pub(super) struct Call {
    pub(super) statement: String,
    pub(super) user: Option<String>,
    pub(super) database: Option<String>,
    /// The statements commit one by one.
    pub(super) commits_each: bool,
    pub(super) differences: Differences,
    /// The first script file, without its folder.
    script: Option<String>,
}

/// Options of psql, and what they were given.
#[derive(Default)]
struct Options {
    /// Statements of -c, and texts of files of -f, in their order.
    parts: Vec<Part>,
    single_transaction: bool,
    stops_at_error: bool,
    user: Option<String>,
    database: Option<String>,
    host: Option<String>,
    redirected: bool,
    arguments: usize,
}

enum Part {
    Command(String),
    File { name: String, text: String },
}

impl Call {
    /// Reads a command of a crontab. Script files are relative to `folder`.
    ///
    /// # Errors
    /// Returns why the command is not SQL that a task could run.
    pub(super) fn read(
        command: &str,
        variables: &BTreeMap<String, String>,
        folder: &Path,
    ) -> Result<Self, LeftOut> {
        let words = split(command)
            .map_err(|reason| LeftOut::new(format!("the line has {reason}"), NOT_SQL))?;
        let mut variables = variables.clone();
        let redirected = words.contains(&Word::Redirection);
        let mut plain = words.into_iter().filter_map(|word| match word {
            Word::Plain(text) => Some(text),
            Word::Redirection => None,
        });
        let mut program = plain.next().unwrap_or_default();
        while let Some((name, value)) = program.split_once('=') {
            variables.insert(name.to_owned(), value.to_owned());
            program = plain.next().unwrap_or_default();
        }
        if Path::new(&program).file_name().is_none_or(|name| name != "psql") {
            return Err(LeftOut::new("the command is not psql", NOT_SQL));
        }
        let mut options = Options {
            user: variables.get("PGUSER").cloned(),
            database: variables.get("PGDATABASE").cloned(),
            host: variables.get("PGHOST").cloned(),
            redirected,
            ..Options::default()
        };
        while let Some(word) = plain.next() {
            options.read(&word, &mut plain, folder)?;
        }
        options.into_call()
    }

    /// Name of the schedule: that of its script, or else one from the statement's first words.
    pub(super) fn name(&self) -> String {
        let words = || {
            let first = scan::statements(&self.statement).first().copied();
            let words = first.map(|it| it.leading_words().take(3).collect::<Vec<_>>().join("_"));
            words.unwrap_or_default().to_lowercase()
        };
        self.script.clone().unwrap_or_else(words)
    }
}

impl Options {
    /// Reads an option, and its value from the words after it.
    fn read(
        &mut self,
        word: &str,
        rest: &mut impl Iterator<Item = String>,
        folder: &Path,
    ) -> Result<(), LeftOut> {
        if !word.starts_with('-') || word == "-" {
            // The first argument is the database, the second the user.
            self.arguments += 1;
            match self.arguments {
                1 => self.connect(word),
                2 => self.user = Some(word.to_owned()),
                _ => return Err(unknown("more arguments than a database and a user")),
            }
            return Ok(());
        }
        let (option, value) = match (word.strip_prefix("--"), word.split_once('=')) {
            (Some(_), Some((option, value))) => (option.to_owned(), Some(value.to_owned())),
            (Some(_), None) => (word.to_owned(), None),
            // Options without a value can share a word; the last of them may have a value.
            (None, _) => return self.read_short(word, rest, folder),
        };
        let mut value = || value.clone().or_else(|| rest.next()).ok_or_else(|| missing(&option));
        let letter = match option.as_str() {
            "--command" => 'c',
            "--file" => 'f',
            "--dbname" => 'd',
            "--host" => 'h',
            "--port" => 'p',
            "--username" => 'U',
            "--set" | "--variable" => 'v',
            "--single-transaction" => '1',
            "--no-psqlrc" | "--quiet" | "--no-align" | "--tuples-only" | "--no-password"
            | "--csv" | "--html" | "--expanded" | "--echo-all" | "--echo-errors"
            | "--echo-queries" => return Ok(()),
            "--output" | "--log-file" | "--field-separator" | "--record-separator" | "--pset" => {
                return value().map(drop);
            }
            _ => return Err(unknown(&format!("the option {option}"))),
        };
        if letter == '1' {
            self.single_transaction = true;
            return Ok(());
        }
        let value = value()?;
        self.set(letter, value, folder)
    }

    fn read_short(
        &mut self,
        word: &str,
        rest: &mut impl Iterator<Item = String>,
        folder: &Path,
    ) -> Result<(), LeftOut> {
        for (at, letter) in word.char_indices().skip(1) {
            match letter {
                'c' | 'f' | 'd' | 'h' | 'p' | 'U' | 'v' | 'o' | 'L' | 'F' | 'R' | 'P' => {
                    let attached = &word[at + letter.len_utf8()..];
                    let value = match attached {
                        "" => rest.next().ok_or_else(|| missing(&format!("-{letter}")))?,
                        attached => attached.to_owned(),
                    };
                    return self.set(letter, value, folder);
                }
                '1' => self.single_transaction = true,
                'X' | 'q' | 'A' | 't' | 'w' | 'x' | 'a' | 'b' | 'e' | 'H' => {}
                _ => return Err(unknown(&format!("the option -{letter}"))),
            }
        }
        Ok(())
    }

    /// Sets an option that has a value.
    fn set(&mut self, letter: char, value: String, folder: &Path) -> Result<(), LeftOut> {
        match letter {
            'c' => self.parts.push(Part::Command(value)),
            'f' => self.parts.push(file(value, folder)?),
            'd' => self.connect(&value),
            'U' => self.user = Some(value),
            'h' => self.host = Some(value),
            'v' if value.starts_with("ON_ERROR_STOP=") => self.stops_at_error = true,
            'v' => {
                let hint = "Write the value into the statement, or make it a parameter.";
                return Err(LeftOut::new("psql has a variable (-v)", hint));
            }
            'o' | 'L' => self.redirected = true,
            _ => {}
        }
        Ok(())
    }

    /// Reads the name of a database, or a connection string, of which no password is kept.
    fn connect(&mut self, text: &str) {
        let config = match text.contains(['=', '/']) {
            true => text.parse::<Config>().ok(),
            false => None,
        };
        match config {
            Some(config) => {
                self.database = config.get_dbname().map(str::to_owned).or(self.database.take());
                self.user = config.get_user().map(str::to_owned).or(self.user.take());
                self.host = self.host.take().or_else(|| Some("another".to_owned()));
            }
            None => self.database = Some(text.to_owned()),
        }
    }

    fn into_call(self) -> Result<Call, LeftOut> {
        let script = self.parts.iter().find_map(|part| match part {
            Part::File { name, .. } => Path::new(name).file_stem()?.to_str().map(str::to_owned),
            Part::Command(_) => None,
        });
        let texts: Vec<&str> = self
            .parts
            .iter()
            .map(|part| match part {
                Part::Command(text) | Part::File { text, .. } => {
                    text.trim_end().trim_end_matches(';')
                }
            })
            .collect();
        let statement = texts.join("\n;\n");
        if texts.is_empty() {
            let hint = "Give psql the statement with -c or -f.";
            return Err(LeftOut::new("psql has neither -c nor -f", hint));
        }
        if let Some(command) = meta_command(&statement) {
            let hint = "Replace it with SQL.";
            return Err(LeftOut::new(format!("{command} is a command of psql, not SQL"), hint));
        }
        let count = scan::statements(&statement).len();
        // Each -c is a transaction, and so is each statement of a file.
        let divided = script.is_some() || texts.len() > 1;
        let commits_each = !self.single_transaction && divided && count > 1;
        let mut differences = Differences::default();
        if commits_each && !self.stops_at_error {
            differences.add(
                "psql continues after an error of a statement; a task ends",
                "Make them separate tasks if the others have to run.",
            );
        }
        if self.redirected {
            differences.add(
                "the output is not written to a file; history keeps the first rows",
                "To write a file, use COPY … TO on the server.",
            );
        }
        if self.host.is_some() {
            differences.add(
                "psql connects to a host of its own; tasks run in the database of the fleet",
                "If that is another server, declare a target, and map it with --run-as.",
            );
        }
        let Self { user, database, .. } = self;
        Ok(Call { statement, user, database, commits_each, differences, script })
    }
}

fn missing(option: &str) -> LeftOut {
    LeftOut::new(format!("{option} of psql has no value"), "Correct the line.")
}

fn unknown(what: &str) -> LeftOut {
    LeftOut::new(format!("psql has {what}, which the import does not know"), NOT_SQL)
}

fn file(name: String, folder: &Path) -> Result<Part, LeftOut> {
    let hint = "Import the crontab on the machine that has the file, or copy the file next to it.";
    match std::fs::read_to_string(folder.join(&name)) {
        Ok(text) => Ok(Part::File { name, text: scan::without_byte_order_mark(&text).to_owned() }),
        Err(error) => Err(LeftOut::new(format!("cannot read {name}: {error}"), hint)),
    }
}

/// Returns the first backslash command of a script. No SQL has a backslash outside of quotes.
fn meta_command(sql: &str) -> Option<&str> {
    let mut start = 0;
    for piece in scan::pieces(sql) {
        let sql_text =
            !matches!(piece.kind, PieceKind::Constant | PieceKind::Identifier | PieceKind::Comment);
        if let Some(at) = piece.text.find('\\').filter(|_| sql_text) {
            return sql[start + at..].split_whitespace().next();
        }
        start += piece.text.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(command: &str) -> Result<Call, LeftOut> {
        Call::read(command, &BTreeMap::new(), Path::new(""))
    }

    #[test]
    fn options_of_psql_are_read() {
        let call = read(
            "PGUSER=etl /usr/bin/psql -XqAt -d app --host=db -c 'SELECT 1' --command \"SELECT 2;\" > /dev/null",
        )
        .unwrap();
        assert_eq!(call.statement, "SELECT 1\n;\nSELECT 2");
        assert_eq!((call.user.as_deref(), call.database.as_deref()), (Some("etl"), Some("app")));
        assert!(call.commits_each && call.differences.0.len() == 3);
        let call =
            read("psql -1 -v ON_ERROR_STOP=1 'postgresql://u:secret@h/d' -c 'A' -c B").unwrap();
        assert!(!call.commits_each);
        assert_eq!((call.user.as_deref(), call.database.as_deref()), (Some("u"), Some("d")));
        let call = read("psql app bob -c 'SELECT 1; SELECT 2'").unwrap();
        assert_eq!((call.user.as_deref(), call.database.as_deref()), (Some("bob"), Some("app")));
        assert!(!call.commits_each, "one -c is one transaction");
        assert_eq!(call.name(), "select");
    }

    #[test]
    fn other_commands_are_refused() {
        for (command, message) in [
            ("pg_dump app", "the command is not psql"),
            ("psql", "psql has neither -c nor -f"),
            ("psql -l", "psql has the option -l, which the import does not know"),
            ("psql --list", "psql has the option --list, which the import does not know"),
            ("psql -c", "-c of psql has no value"),
            ("psql -v day=1 -c 'SELECT :day'", "psql has a variable (-v)"),
            ("psql -c '\\copy t from x'", "\\copy is a command of psql, not SQL"),
            ("psql -c 'SELECT 1 \\gexec'", "\\gexec is a command of psql, not SQL"),
            (
                "psql a b c",
                "psql has more arguments than a database and a user, which the import does not know",
            ),
        ] {
            assert_eq!(
                read(command).err().map(|it| it.message).as_deref(),
                Some(message),
                "{command}"
            );
        }
        assert!(read("psql -c \"SELECT E'\\\\\\\\n', '\\\\d'\"").is_ok());
    }
}
