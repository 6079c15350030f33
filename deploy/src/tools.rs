//! Finds and runs external tools.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// Additional folders searched after PATH.
const EXTRA_PATHS: &[&str] = &["/usr/sbin", "/sbin"];

/// Locates programs.
pub struct Tools {
    folder: PathBuf,
    server: Option<PathBuf>,
}

/// Output of a tool.
#[derive(Debug)]
pub struct CommandOutput {
    /// Whether the exit code is 0.
    pub success: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl CommandOutput {
    /// Returns both outputs, trimmed.
    #[must_use]
    pub fn combined(&self) -> String {
        format!("{}\n{}", self.out.trim(), self.err.trim()).trim().to_owned()
    }
}

impl Tools {
    pub(crate) fn new(folder: &Path, server: Option<PathBuf>) -> Self {
        // Programs run in other folders than this process.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        Self { folder, server }
    }

    /// Returns the PostgreSQL server to test with.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub fn server(&self) -> Result<cluster::Binaries> {
        cluster::Binaries::find(self.server.as_deref())
    }

    /// Returns a command for this program, from the tools folder, PATH, or the system folders.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let own = self.folder.join("bin").join(name);
        let extra_paths = EXTRA_PATHS.iter().map(|folder| Path::new(folder).join(name));
        match std::iter::once(own).chain(extra_paths).find(|path| path.is_file()) {
            Some(path) => Command::new(path),
            None => Command::new(name),
        }
    }

    /// Runs a script of `deploy/check/`; `None` without Python or a module that the script needs.
    ///
    /// # Errors
    /// Returns the errors of [`Tools::run`].
    pub(crate) fn python(&self, script: &str, arguments: &[&str]) -> Result<Option<CommandOutput>> {
        let own = self.folder.join("bin/python");
        let mut command = Command::new(if own.is_file() { own } else { "python3".into() });
        command.arg("-B").arg(crate::root().join("deploy/check").join(script)).args(arguments);
        let output = self.run(&mut command, "")?;
        Ok(output.filter(|output| !output.err.contains("ModuleNotFoundError")))
    }

    /// Returns the program's name with its version, or the name alone if it is not installed.
    #[must_use]
    pub fn version(&self, name: &str) -> String {
        let output = self.run(self.command(name).arg("--version"), "").ok().flatten();
        let all = output.map(|output| output.combined()).unwrap_or_default();
        let word =
            |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
        let number = all.split([' ', '\n', 'v']).find(word);
        number.map_or_else(|| name.to_owned(), |number| format!("{name} {number}"))
    }

    /// Runs a command with this input; `None` if the program does not exist.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started for another reason, or its output cannot
    /// be read.
    pub fn run(&self, command: &mut Command, input: &str) -> Result<Option<CommandOutput>> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("{name} does not start")),
        };
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            scope.spawn(move || {
                // A program that does not read all input reports the problem by its exit code.
                stdin.map(|mut stdin| stdin.write_all(input.as_bytes()))
            });
            child.wait_with_output()
        });
        let output = output.with_context(|| format!("could not read the output of {name}"))?;
        Ok(Some(CommandOutput {
            success: output.status.success(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_answers_or_is_not_there() {
        let tools = Tools::new(Path::new("nowhere"), None);
        let output = tools.run(&mut tools.command("cat"), "a").unwrap().unwrap();
        assert!(output.success && output.out == "a" && output.combined() == "a");
        assert!(tools.run(&mut tools.command("no such program"), "").unwrap().is_none());
    }
}
