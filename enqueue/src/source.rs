//! Where the SQL comes from, and what is refused before the database sees it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use queue::scan::{self, Forbidden};

use crate::args::Input;
use crate::failure::Failure;

const ENCODING_HINT: &str = "the statement goes to the server in UTF-8; convert the file, for \
                             example: iconv -f LATIN1 -t UTF-8";

/// One place that SQL is read from.
#[derive(Debug)]
pub(crate) enum Source {
    Argument(String),
    StandardInput,
    File(PathBuf),
}

impl Source {
    /// What the command line names, in order. Looks at files, and reads none.
    ///
    /// # Errors
    /// A file that is not there; an argument that is no task.
    pub(crate) fn locate(input: &Input) -> Result<Vec<Self>, Failure> {
        match &input.statement {
            Some(statement) if statement != "-" => {
                check(statement, &place_of(None))?;
                return Ok(vec![Self::Argument(statement.clone())]);
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

    /// How messages call it.
    fn name(&self) -> String {
        match self {
            Self::Argument(_) => "the argument".to_owned(),
            Self::StandardInput => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Bytes to read, where that is known.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::Argument(text) => u64::try_from(text.len()).ok(),
            Self::StandardInput => None,
            Self::File(path) => {
                fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|found| found.len())
            }
        }
    }

    /// The whole as one statement of at most `limit` bytes. A file that is too long is not read.
    ///
    /// # Errors
    /// What cannot be read; what is no task.
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
        read.map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
        if bytes.len() as u64 > limit {
            return Err(too_long(&name, None, limit));
        }
        let text = utf8(bytes, &name, 0)?;
        check(&text, &place_of(Some(&name)))?;
        Ok(text)
    }

    /// The statements that stand in it line by line.
    ///
    /// # Errors
    /// A file that cannot be opened.
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

/// Statements line by line, one line in memory at a time.
pub(crate) struct Lines<R> {
    reader: R,
    name: String,
    limit: u64,
    number: u64,
    bytes_read: u64,
}

impl<R: BufRead> Lines<R> {
    /// The next line that holds SQL; blank lines and lines of nothing but comments are skipped.
    ///
    /// # Errors
    /// What cannot be read; what is no task.
    pub(crate) fn next_statement(&mut self) -> Result<Option<String>, Failure> {
        loop {
            let start = self.bytes_read;
            let mut line = Vec::new();
            // The line's end may be two bytes more.
            let read = self.reader.by_ref().take(self.limit + 2).read_until(b'\n', &mut line);
            read.map_err(|error| Failure::usage(format!("cannot read {}: {error}", self.name)))?;
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

    /// How far it has come.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }
}

fn place_of(name: Option<&str>) -> String {
    name.map(|name| format!("{name}: ")).unwrap_or_default()
}

/// `start` is the offset of the bytes in what they were read from.
fn utf8(bytes: Vec<u8>, name: &str, start: u64) -> Result<String, Failure> {
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let offset = start + error.utf8_error().valid_up_to() as u64;
        let message = format!("{name}: the byte at offset {offset} is not valid UTF-8");
        Failure::refused(message, ENCODING_HINT)
    })?;
    // Windows editors begin a file with a byte order mark, which the server takes for a word.
    if start == 0 && text.starts_with('\u{feff}') {
        text.remove(0);
    }
    Ok(text)
}

/// Refuses what can be no task. `place` leads the message.
fn check(statement: &str, place: &str) -> Result<(), Failure> {
    if let Some(offset) = statement.find('\0') {
        return Err(Failure::refused(
            format!("{place}the statement has a NUL byte at offset {offset}"),
            "text in PostgreSQL cannot hold NUL",
        ));
    }
    if scan::statements(statement).is_empty() {
        let holds = if statement.trim().is_empty() { "is empty" } else { "holds only comments" };
        return Err(Failure::refused(
            format!("{place}the statement {holds}"),
            "give it SQL to run",
        ));
    }
    let Some(forbidden) = scan::forbidden(statement) else { return Ok(()) };
    let hint = match forbidden {
        Forbidden::TransactionControl { .. } => {
            "the whole task is one transaction already; for a procedure that commits or a command \
             that refuses a transaction use --mode autocommit"
        }
        Forbidden::CopyFromStdin { .. } => {
            "load the data into a table first, or use COPY FROM a file or program on the server"
        }
        Forbidden::CopyToStdout { .. } => {
            "write to a table, or use COPY TO a file or program on the server"
        }
    };
    let line = statement[..forbidden.offset()].matches('\n').count() + 1;
    let line = if line > 1 { format!("line {line}: ") } else { String::new() };
    Err(Failure::refused(format!("{place}{line}{forbidden}"), hint))
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("cannot read {}: {error}", path.display()))
}

/// `bytes` is `None` if nobody knows where it ends.
fn too_long(place: &str, bytes: Option<u64>, limit: u64) -> Failure {
    let found = match bytes {
        Some(bytes) => format!("has {bytes} bytes"),
        None => format!("has more than {limit} bytes"),
    };
    Failure::refused(
        format!("{place} {found}; a statement may have {limit}"),
        "load bulk data from a table or a server-side file, or raise statement_limit_bytes in \
         mill.settings",
    )
}

#[cfg(test)]
mod tests;
