//! One private cluster, from initdb to its removal.
//!
//! The superuser needs a random password on loopback, where any local user may connect, and no
//! password on the socket, whose directory only the server's account and root may enter.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::process::{Pid, Signal};

use crate::account::Account;
use crate::binaries::Binaries;
use crate::directory::{self, Directory};
use crate::port::Port;
use crate::process;

/// Number of attempts if another process takes the free port before the server does.
const PORT_TRIES: usize = 10;

pub(crate) const SUPERUSER: &str = "postgres";
/// The characters that a part of a URI has to encode.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Parameters of a cluster.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server's programs.
    pub binaries: Binaries,
    /// Whether commits survive the loss of the machine. Without fsync the server is faster, and a
    /// commit still survives the death of all processes, because the operating system keeps written
    /// data.
    pub fsync: bool,
    /// Server settings, name and value, in addition to this crate's own.
    pub settings: Vec<(String, String)>,
    /// Environment variables of the server, name and value.
    pub variables: Vec<(String, String)>,
}

impl Options {
    /// Returns options for a durable cluster without additional settings.
    pub fn new(binaries: Binaries) -> Self {
        Self { binaries, fsync: true, settings: Vec::new(), variables: Vec::new() }
    }
}

/// Shutdown mode of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Rolls back and disconnects the clients, then writes a checkpoint.
    Fast,
    /// Ends at once; the next start recovers from the WAL.
    Immediate,
}

/// A private cluster. Dropping the value stops the server and removes the directory. If the owning
/// process is killed instead, the next [`Cluster::start`] by the same user does this.
pub struct Cluster {
    pub(crate) binaries: Binaries,
    pub(crate) account: Account,
    pub(crate) directory: Directory,
    pub(crate) password: String,
    /// None until the server has been started for the first time.
    pub(crate) port: Option<Port>,
    /// Environment variables of the server.
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) kept: bool,
}

impl Cluster {
    /// Removes the clusters of killed owners, then creates and starts a cluster; returns when it
    /// accepts connections.
    ///
    /// # Errors
    ///
    /// Returns an error with the tail of the server's log if initdb or the server fails.
    pub fn start(options: Options) -> Result<Self> {
        Self::create(options, |cluster| cluster.initialize(&[]))
    }

    /// As [`Cluster::start`], with a copy of the files of this cluster, whose server has been stopped.
    /// The superuser's password is the same.
    ///
    /// # Errors
    ///
    /// As [`Cluster::start`].
    pub fn start_copy(&self, options: Options) -> Result<Self> {
        Self::create(options, |copy| {
            copy.password.clone_from(&self.password);
            let files = [Path::new("-a"), &self.data(), Path::new("data")];
            copy.account.run(Path::new("cp"), files, copy.directory(), &[])
        })
    }

    fn create(options: Options, write: impl FnOnce(&mut Self) -> Result<()>) -> Result<Self> {
        let Options { binaries, fsync, settings, variables } = options;
        let account = Account::of_server()?;
        remove_abandoned(&binaries, &account);
        let directory = Directory::create(&account)?;
        let password = directory::random_letters(32);
        let mut cluster =
            Self { binaries, account, directory, password, port: None, variables, kept: false };
        write(&mut cluster)?;
        cluster.configure(fsync, &settings)?;
        cluster.start_on_free_port()?;
        Ok(cluster)
    }

    /// Removes the clusters of owners that have died, for example without dropping them.
    pub fn remove_abandoned(&self) {
        remove_abandoned(&self.binaries, &self.account);
    }

    /// Returns a TCP connection string for the superuser, including the password.
    pub fn url(&self, database: &str) -> String {
        let Self { password, .. } = self;
        let port = self.port();
        let database = percent_encode(database);
        format!("postgresql://{SUPERUSER}:{password}@127.0.0.1:{port}/{database}")
    }

    /// Returns a TCP connection string for this server and its standby. It leads to the one that
    /// accepts writes.
    pub fn url_with_standby(&self, standby: &Self, database: &str) -> String {
        let [one, other] = [self, standby].map(|server| format!("127.0.0.1:{}", server.port()));
        let url = self.url(database).replace(&one, &format!("{one},{other}"));
        format!("{url}?target_session_attrs=read-write")
    }

    /// Returns a socket connection string for the superuser, without a password; for processes of
    /// the server's account and root.
    pub fn socket_url(&self, database: &str) -> String {
        let directory = percent_encode(&self.directory().to_string_lossy());
        let database = percent_encode(database);
        format!("postgresql://{SUPERUSER}@{directory}:{}/{database}", self.port())
    }

    /// Returns the TCP port on 127.0.0.1; it does not change when the server restarts.
    pub fn port(&self) -> u16 {
        self.port.as_ref().map_or(0, Port::number)
    }

    /// Returns the directory with the socket, the log and, in `data/`, the cluster.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the path of the server's log file.
    pub fn log(&self) -> PathBuf {
        self.directory().join("log")
    }

    /// Returns the server's programs.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Returns the postmaster's process id; `None` while the server is down.
    pub fn pid(&self) -> Option<u32> {
        self.postmaster().and_then(|pid| pid.as_raw_nonzero().get().try_into().ok())
    }

    /// Stops the server, frozen or not, and waits until it is down; does nothing if it is already down.
    ///
    /// # Errors
    ///
    /// Returns an error if the server is not down after a minute.
    pub fn stop(&mut self, mode: Mode) -> Result<()> {
        if self.postmaster().is_none() {
            return Ok(());
        }
        self.thaw()?;
        let mode = match mode {
            Mode::Fast => "fast",
            Mode::Immediate => "immediate",
        };
        self.pg_ctl(&["stop", "-m", mode]).map_err(|error| self.with_log(&error))
    }

    /// Starts a stopped or crashed server on its old port; returns when it accepts connections.
    ///
    /// # Errors
    ///
    /// Returns an error with the tail of the log if the server is already running, fails to start,
    /// or another process uses its port.
    pub fn start_again(&mut self) -> Result<()> {
        if let Some(pid) = self.pid() {
            bail!("the server is already running as process {pid}");
        }
        let port = format!("-p {}", self.port());
        let log = self.log();
        self.pg_ctl(&["start", "-l", &log.to_string_lossy(), "-o", &port])
            .map_err(|error| self.with_log(&error))
    }

    /// Stops the server and starts it again.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`stop`](Self::stop) and [`start_again`](Self::start_again).
    pub fn restart(&mut self, mode: Mode) -> Result<()> {
        self.stop(mode)?;
        self.start_again()
    }

    /// Kills the postmaster and all of its processes with SIGKILL and returns when they are gone;
    /// [`start_again`](Self::start_again) then recovers from the WAL.
    ///
    /// # Errors
    ///
    /// Returns an error if the server is not running, or its processes remain.
    pub fn crash(&mut self) -> Result<()> {
        let postmaster = self.postmaster().context("the server is not running")?;
        process::kill_with_children(postmaster)?;
        if Path::new("/proc/self").exists() {
            // All processes are gone, but if process 1 reaps late or never, the next postmaster
            // considers the old one alive.
            fs::remove_file(self.data().join("postmaster.pid"))?;
            let socket_lock = format!(".s.PGSQL.{}.lock", self.port());
            fs::remove_file(self.directory().join(socket_lock))?;
        }
        Ok(())
    }

    /// Freezes the postmaster and all of its processes with SIGSTOP: the server hangs and its
    /// connections stay open. [`thaw`](Self::thaw) resumes them.
    ///
    /// # Errors
    ///
    /// Returns an error if the server is not running.
    pub fn freeze(&self) -> Result<()> {
        let postmaster = self.postmaster().context("the server is not running")?;
        process::signal_with_children(postmaster, Signal::STOP)
    }

    /// Resumes a server that [`freeze`](Self::freeze) has frozen.
    ///
    /// # Errors
    ///
    /// Returns an error if the server is not running.
    pub fn thaw(&self) -> Result<()> {
        let postmaster = self.postmaster().context("the server is not running")?;
        process::signal_with_children(postmaster, Signal::CONT)
    }

    /// Lets the server and the directory outlive this value, exempt from removal by later starts.
    /// To end them, send `kill -INT` to [`pid`](Self::pid) and remove
    /// [`directory`](Self::directory).
    ///
    /// # Errors
    ///
    /// Returns an error if the directory cannot be marked.
    pub fn keep(&mut self) -> Result<()> {
        self.directory.keep()?;
        self.kept = true;
        Ok(())
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory().join("data")
    }

    fn postmaster(&self) -> Option<Pid> {
        postmaster(self.directory())
    }

    pub(crate) fn initialize(&self, more: &[&str]) -> Result<()> {
        let password_file = self.directory().join("password");
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&password_file)?;
        writeln!(file, "{}", self.password)?;
        self.account.chown(&password_file)?;
        let args = [
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            // Later commits must survive a power failure, but not the empty cluster.
            "--no-sync",
            "--no-instructions",
            "--username",
            SUPERUSER,
            "--pwfile",
            "password",
            "--pgdata",
            "data",
        ];
        let args = args.iter().chain(more);
        self.account.run(&self.binaries.program("initdb"), args, self.directory(), &[])?;
        fs::remove_file(password_file)?;
        Ok(())
    }

    fn configure(&self, fsync: bool, settings: &[(String, String)]) -> Result<()> {
        let directory = self.directory();
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        let directory = directory.to_string_lossy();
        let on_off = if fsync { "on" } else { "off" };
        let own = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", &directory),
            ("cluster_name", &name),
            ("max_connections", "500"),
            ("shared_buffers", "64MB"),
            ("log_line_prefix", "%m [%p] %q%a "),
            ("fsync", on_off),
            // Torn pages matter only if the cluster must survive power failures.
            ("full_page_writes", on_off),
        ];
        let given = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        self.set(own.into_iter().chain(given))
    }

    /// Appends to postgresql.conf; the last of two settings of the same name takes effect.
    pub(crate) fn set<'a>(&self, all: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
        let text = configuration(all)?;
        let mut file = OpenOptions::new().append(true).open(self.data().join("postgresql.conf"))?;
        file.write_all(text.as_bytes()).context("could not write postgresql.conf")
    }

    pub(crate) fn start_on_free_port(&mut self) -> Result<()> {
        for _ in 0..PORT_TRIES {
            self.port = Some(Port::reserve()?);
            match self.start_again() {
                Err(error) if port_taken(&format!("{error:#}")) => {
                    let _ = fs::remove_file(self.log());
                }
                outcome => return outcome,
            }
        }
        bail!("no free port found on 127.0.0.1 after {PORT_TRIES} attempts")
    }

    pub(crate) fn pg_ctl(&self, args: &[&str]) -> Result<()> {
        pg_ctl(&self.binaries, &self.account, self.directory(), &self.variables, args)
    }

    pub(crate) fn with_log(&self, error: &anyhow::Error) -> anyhow::Error {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        anyhow::anyhow!("{error:#}\nlast lines of the server's log:\n{}", tail(&log, 20))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let stopped = self.stop(Mode::Immediate);
        if let Err(error) = stopped.and_then(|()| self.directory.remove()) {
            eprintln!("cluster: {error:#}");
        }
    }
}

fn remove_abandoned(binaries: &Binaries, account: &Account) {
    directory::sweep(account, |path| {
        // Resume a server that its owner had frozen, because it would not stop.
        if let Some(postmaster) = postmaster(path) {
            process::signal_with_children(postmaster, Signal::CONT)?;
        }
        pg_ctl(binaries, account, path, &[], &["stop", "-m", "immediate"])
    });
}

/// Returns the pid of the running postmaster of the cluster in `directory`, if there is one.
fn postmaster(directory: &Path) -> Option<Pid> {
    let file = fs::read_to_string(directory.join("data/postmaster.pid")).ok()?;
    let pid = Pid::from_raw(file.lines().next()?.trim().parse().ok()?)?;
    process::alive(pid).then_some(pid)
}

/// Runs pg_ctl on the cluster in `directory` and waits up to a minute.
fn pg_ctl(
    binaries: &Binaries,
    account: &Account,
    directory: &Path,
    variables: &[(String, String)],
    args: &[&str],
) -> Result<()> {
    let args = args.iter().chain(&["-w", "-t", "60", "-s", "-D", "data"]);
    account.run(&binaries.program("pg_ctl"), args, directory, variables)
}

/// Formats lines for postgresql.conf; the last of two settings of the same name takes effect.
fn configuration<'a>(settings: impl Iterator<Item = (&'a str, &'a str)>) -> Result<String> {
    let mut text = String::from("\n# Private cluster\n");
    for (name, value) in settings {
        let named = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
        if !named || value.contains(['\n', '\0']) {
            bail!("invalid server setting: {name}={value}");
        }
        let value = value.replace('\\', "\\\\").replace('\'', "''");
        writeln!(text, "{name} = '{value}'")?;
    }
    Ok(text)
}

fn port_taken(message: &str) -> bool {
    message.contains("Address already in use")
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_quoted_for_the_configuration_file() {
        let settings = [("work_mem", "4MB"), ("a.b", r"it's \n"), ("search_path", "\"$user\", x")];
        let text = configuration(settings.into_iter()).unwrap();
        assert!(
            text.ends_with("work_mem = '4MB'\na.b = 'it''s \\\\n'\nsearch_path = '\"$user\", x'\n")
        );
        configuration([("a = b\nc", "1")].into_iter()).expect_err("a line break in a name");
        configuration([("a", "1\nb = 2")].into_iter()).expect_err("a line break in a value");
        configuration([("", "1")].into_iter()).expect_err("no name");
    }

    #[test]
    fn connection_strings_carry_any_name() {
        assert_eq!(percent_encode("/tmp/a-b"), "%2Ftmp%2Fa-b");
        assert_eq!(percent_encode("my db?é"), "my%20db%3F%C3%A9");
    }

    #[test]
    fn the_tail_is_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
