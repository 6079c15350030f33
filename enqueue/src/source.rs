//! Reads SQL from arguments, files and standard input. Refuses invalid statements before they are
//! sent to the database.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use queue::scan::{self, Forbidden};

use crate::args::Input;
use crate::failure::Failure;

const ENCODING_HINT: &str = "Statements are sent in UTF-8. Convert the file, for example with \
                             iconv -f LATIN1 -t UTF-8.";

/// A source of SQL.
#[derive(Debug)]
pub(crate) enum Source {
    Argument(String),
    StandardInput,
    File(PathBuf),
}

impl Source {
    /// Returns the sources that the command line names, in order. Checks that files exist, but does
    /// not read them.
    ///
    /// # Errors
    /// Returns an error for a missing file or an argument that is not a valid statement.
    pub(crate) fn locate(input: &Input) -> Result<Vec<Self>, Failure> {
        match &input.statement {
            Some(statement) if statement != "-" => {
                let statement = scan::without_byte_order_mark(statement);
                check(statement, &place_of(None))?;
                return Ok(vec![Self::Argument(statement.to_owned())]);
            }
            Some(_) => return Ok(vec![Self::StandardInput]),
            None if input.file.is_empty() => return Ok(vec![Self::StandardInput]),
            None => {}
        }
        input.file.iter().map(|path| Self::file(path)).collect()
    }

    fn file(path: &Path) -> Result<Self, Failure> {
        if path == "-" {
            return Ok(Self::StandardInput);
        }
        let found = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        if found.is_dir() {
            return Err(Failure::usage(format!("{} is a directory", path.display())));
        }
        Ok(Self::File(path.to_owned()))
    }

    /// Returns the name of the source, for messages.
    fn name(&self) -> String {
        match self {
            Self::Argument(_) => "the argument".to_owned(),
            Self::StandardInput => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Returns the size of the source in bytes, if it is known.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::Argument(text) => u64::try_from(text.len()).ok(),
            Self::StandardInput => None,
            Self::File(path) => {
                fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|found| found.len())
            }
        }
    }

    /// Reads the whole source as one statement. If the size of a file exceeds `limit` bytes, the
    /// file is not read.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read or is not a valid statement.
    pub(crate) fn statement(self, limit: u64) -> Result<String, Failure> {
        let name = self.name();
        if let Some(bytes) = self.size_bytes().filter(|bytes| *bytes > limit) {
            return Err(too_long(&name, Some(bytes), limit));
        }
        if let Self::Argument(text) = self {
            return Ok(text);
        }
        let mut bytes = Vec::new();
        let read = self.open()?.take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|error| Failure::usage(format!("could not read {name}: {error}")))?;
        if bytes.len() as u64 > limit {
            return Err(too_long(&name, None, limit));
        }
        let text = utf8(bytes, &name, 0)?;
        check(&text, &place_of(Some(&name)))?;
        Ok(text)
    }

    /// Returns a reader of the statements, one per line.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub(crate) fn lines(self, limit: u64) -> Result<Lines<Box<dyn BufRead>>, Failure> {
        let name = self.name();
        Ok(Lines { reader: self.open()?, name, limit, number: 0, bytes_read: 0 })
    }

    fn open(self) -> Result<Box<dyn BufRead>, Failure> {
        match self {
            Self::Argument(text) => Ok(Box::new(io::Cursor::new(text))),
            Self::StandardInput => Ok(Box::new(BufReader::new(io::stdin()))),
            Self::File(path) => match File::open(&path) {
                Ok(file) => Ok(Box::new(BufReader::with_capacity(64 * 1024, file))),
                Err(error) => Err(unreadable(&path, &error)),
            },
        }
    }
}

/// Reads statements line by line, and keeps one line at a time in memory.
pub(crate) struct Lines<R> {
    reader: R,
    name: String,
    limit: u64,
    number: u64,
    bytes_read: u64,
}

impl<R: BufRead> Lines<R> {
    /// Returns the next line that contains SQL. Skips blank lines, and lines that contain only
    /// comments.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read or the line is not a valid statement.
    pub(crate) fn next_statement(&mut self) -> Result<Option<String>, Failure> {
        loop {
            let start = self.bytes_read;
            let mut line = Vec::new();
            // The line terminator adds up to two bytes.
            let read = self.reader.by_ref().take(self.limit + 2).read_until(b'\n', &mut line);
            read.map_err(|error| Failure::usage(format!("could not read {}: {error}", self.name)))?;
            if line.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            self.bytes_read += line.len() as u64;
            while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
                line.pop();
            }
            let place = format!("{}:{}", self.name, self.number);
            if line.len() as u64 > self.limit {
                return Err(too_long(&place, None, self.limit));
            }
            let text = utf8(line, &self.name, start)?;
            if scan::statements(&text).is_empty() && !text.contains('\0') {
                continue;
            }
            check(&text, &format!("{place}: "))?;
            return Ok(Some(text));
        }
    }

    /// Returns the number of bytes read so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }
}

fn place_of(name: Option<&str>) -> String {
    name.map(|name| format!("{name}: ")).unwrap_or_default()
}

/// Decodes UTF-8, without a byte order mark at the start. `start` is the offset of these bytes in the source.
fn utf8(bytes: Vec<u8>, name: &str, start: u64) -> Result<String, Failure> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let offset = start + error.utf8_error().valid_up_to() as u64;
        let message = format!("{name}: the byte at offset {offset} is not valid UTF-8");
        Failure::refused(message, ENCODING_HINT)
    })?;
    Ok(match scan::without_byte_order_mark(&text) {
        all if all.len() == text.len() => text,
        rest => rest.to_owned(),
    })
}

/// Refuses a text that is not a valid statement. The message begins with `place`.
fn check(statement: &str, place: &str) -> Result<(), Failure> {
    if let Some(offset) = statement.find('\0') {
        return Err(Failure::refused(
            format!("{place}the statement has a NUL byte at offset {offset}"),
            "Text in PostgreSQL cannot contain NUL.",
        ));
    }
    if scan::statements(statement).is_empty() {
        let holds = if statement.trim().is_empty() { "is empty" } else { "has only comments" };
        return Err(Failure::refused(
            format!("{place}the statement {holds}"),
            "A task needs at least one SQL statement.",
        ));
    }
    let Some(forbidden) = scan::forbidden(statement) else { return Ok(()) };
    let hint = match forbidden {
        Forbidden::TransactionControl { .. } => {
            "Each task runs in one transaction. For a procedure that commits, or a command that \
             cannot run in a transaction, use --mode autocommit."
        }
        Forbidden::ByteOrderMark { .. } => forbidden.hint(),
        Forbidden::CopyFromStdin { .. } => {
            "Load the data into a table first, or use COPY FROM with a file or program of the \
             server."
        }
        Forbidden::CopyToStdout { .. } => {
            "Write to a table, or use COPY TO with a file or program on the server."
        }
    };
    let line = statement[..forbidden.offset()].matches('\n').count() + 1;
    let line = if line > 1 { format!("line {line}: ") } else { String::new() };
    Err(Failure::refused(format!("{place}{line}{forbidden}"), hint))
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("could not read {}: {error}", path.display()))
}

/// Returns the failure for a statement that is too long. `bytes` is its length, if known.
fn too_long(place: &str, bytes: Option<u64>, limit: u64) -> Failure {
    let message = match bytes {
        Some(bytes) => {
            format!("{place}: the statement is {bytes} bytes long; the maximum is {limit} bytes")
        }
        None => format!("{place}: the statement is longer than the maximum of {limit} bytes"),
    };
    Failure::refused(
        message,
        "Load bulk data from a table or a file on the server, or raise statement_limit_bytes in \
         mill.settings.",
    )
}

#[cfg(test)]
mod tests;
