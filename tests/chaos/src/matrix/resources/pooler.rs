//! A pgbouncer in transaction mode between a client and the server.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::Port;
use tokio::time::sleep;

use super::scratch::{Scratch, name};

/// Time limit for the pooler to listen.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A pooler, killed on drop.
pub(crate) struct Pooler {
    child: Child,
    port: Port,
    configuration: PathBuf,
    /// Connection string of its console.
    console: String,
}

impl Pooler {
    /// Starts a pooler for the server of this URL.
    pub(crate) async fn start(scratch: &Scratch, url: &str) -> Result<Self> {
        let (user, password, address) = parts(url).context("no such URL")?;
        let (host, server_port) = address.split_once(':').context("no port")?;
        let port = Port::reserve()?;
        let path = scratch.path().join(name().0);
        let (users, configuration) = (path.with_extension("users"), path.with_extension("ini"));
        fs::write(&users, format!("\"{user}\" \"{password}\"\n"))?;
        let text = format!(
            "[databases]\n* = host={host} port={server_port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
             pool_mode = transaction\nadmin_users = {user}\ndefault_pool_size = 5\n",
            port.number(),
            users.display()
        );
        fs::write(&configuration, text)?;
        let console = format!("postgres://{user}@127.0.0.1:{}/pgbouncer", port.number());
        let child = launch(&configuration)?;
        let pooler = Self { child, port, configuration, console };
        scratch.note(pooler.child.id())?;
        pooler.until_listening().await?;
        Ok(pooler)
    }

    /// Returns the URL of the database through the pooler.
    pub(crate) fn url(&self, url: &str) -> String {
        match parts(url) {
            Some((_, _, address)) => {
                url.replace(address, &format!("127.0.0.1:{}", self.port.number()))
            }
            None => url.to_owned(),
        }
    }

    /// Returns the connection string of the console.
    pub(crate) fn console(&self) -> &str {
        &self.console
    }

    /// Sends SIGKILL and waits.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop).context("the pooler does not end")
    }

    /// Starts the pooler again after [`kill`](Self::kill).
    pub(crate) async fn start_again(&mut self, scratch: &Scratch) -> Result<()> {
        self.child = launch(&self.configuration)?;
        scratch.note(self.child.id())?;
        self.until_listening().await
    }

    /// Changes a setting in the configuration file, for RELOAD.
    pub(crate) fn configure(&self, line: &str) -> Result<()> {
        let text = fs::read_to_string(&self.configuration)?;
        fs::write(&self.configuration, format!("{text}{line}\n")).context("cannot configure")
    }

    async fn until_listening(&self) -> Result<()> {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port.number())).is_err() {
            ensure!(begun.elapsed() < TIMEOUT, "the pooler does not listen");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.kill();
    }
}

/// Returns the path of pgbouncer.
///
/// # Errors
/// Returns an error if it is not installed.
pub(crate) fn program() -> Result<&'static Path> {
    let places = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];
    let mut places = places.into_iter().map(Path::new);
    places.find(|place| place.exists()).context("needs pgbouncer (package pgbouncer)")
}

fn launch(configuration: &Path) -> Result<Child> {
    let mut command = Command::new(program()?);
    // pgbouncer refuses to run as root.
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "nobody"]);
    }
    let log = File::create(configuration.with_extension("log"))?;
    command.arg(configuration).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().context("cannot start pgbouncer")
}

/// Returns the user, the password and the address of a URL.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (login, rest) = url.split_once("://")?.1.rsplit_once('@')?;
    let (user, password) = login.split_once(':')?;
    Some((user, password, rest.split_once('/')?.0))
}
