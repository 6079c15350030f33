//! The account the server runs as: PostgreSQL refuses to run as root, so root's clusters run as the
//! user `postgres`, or as `nobody` if `postgres` does not exist.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The account that the server and its companions run as.
#[derive(Clone)]
pub struct Account {
    uid: u32,
    /// Set if this process is root and must switch to another user.
    drop_to: Option<User>,
}

#[derive(Clone)]
struct User {
    name: &'static str,
    uid: u32,
    gid: u32,
}

impl Account {
    /// Returns the account for a server started by this process.
    ///
    /// # Errors
    ///
    /// Returns an error if this process is root and there is no user to switch to.
    pub fn of_server() -> Result<Self> {
        let uid = rustix::process::geteuid();
        if !uid.is_root() {
            return Ok(Self { uid: uid.as_raw(), drop_to: None });
        }
        let user = ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| Some(User { name, uid: id("-u", name)?, gid: id("-g", name)? }))
            .context("PostgreSQL refuses to run as root; create a user named postgres or nobody")?;
        Ok(Self { uid: user.uid, drop_to: Some(user) })
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Changes the owner of a file or directory to the server's account.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses.
    pub fn chown(&self, path: &Path) -> io::Result<()> {
        match &self.drop_to {
            Some(user) => chown(path, Some(user.uid), Some(user.gid)),
            None => Ok(()),
        }
    }

    /// Returns a command that runs a program as this account, without input, in a directory that
    /// the account may enter.
    pub fn command(&self, program: &Path, directory: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(directory).stdin(Stdio::null());
        // Messages are searched for their English text, and the caller's PG* variables refer to
        // other servers.
        command.env("LC_ALL", "C");
        for variable in ["PGDATA", "PGPORT", "PGUSER", "PGDATABASE", "PGCLIENTENCODING"] {
            command.env_remove(variable);
        }
        if let Some(user) = &self.drop_to {
            // The standard library drops supplementary groups with the uid.
            command.gid(user.gid).uid(user.uid);
        }
        command
    }

    /// Runs a program with additional environment variables to completion.
    ///
    /// # Errors
    ///
    /// Returns an error with the program's output if the program fails.
    pub(crate) fn run<S: AsRef<OsStr>>(
        &self,
        program: &Path,
        args: impl IntoIterator<Item = S>,
        directory: &Path,
        variables: &[(String, String)],
    ) -> Result<()> {
        let mut command = self.command(program, directory);
        command.args(args).envs(variables.iter().map(|(name, value)| (name, value)));
        let output = match command.output() {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                bail!("{} cannot run {}: {error}", self.name(), program.display())
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot run {}", program.display()));
            }
        };
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            let name = program.file_name().unwrap_or_default().display();
            bail!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&text).trim());
        }
        Ok(())
    }

    fn name(&self) -> String {
        match &self.drop_to {
            Some(user) => format!("user {}", user.name),
            None => format!("user id {}", self.uid),
        }
    }
}

/// Runs `id` instead of reading /etc/passwd, because users may come from a directory service.
fn id(flag: &str, name: &str) -> Option<u32> {
    let output = Command::new("id").args([flag, name]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
