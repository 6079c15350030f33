//! One node: a server and the Patroni that manages it. Other processes reach the node, and the node
//! reaches etcd, through gates, which a trial closes.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::{Account, Port, alive, kill_with_children, signal_with_children};
use proxy::Gate;
use rustix::process::{Pid, Signal};
use tokio::time::timeout;

use crate::programs::Programs;
use crate::session;

/// Time limit for the answer of a server.
const ANSWER: Duration = Duration::from_secs(2);

/// A connection of the node with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// From clients to the server.
    Clients,
    /// From the other nodes to the server and to Patroni.
    Peers,
    /// From Patroni to etcd.
    Etcd,
}

/// What the nodes have in common.
pub(crate) struct Shared {
    pub(crate) account: Account,
    pub(crate) directory: PathBuf,
    /// Folder of the server's programs.
    pub(crate) binaries: PathBuf,
    pub(crate) password: String,
    /// Value of `bootstrap.dcs`.
    pub(crate) dynamic: String,
    pub(crate) etcd: u16,
}

/// A node. Dropping the value ends its processes.
pub(crate) struct Node {
    pub(crate) name: String,
    /// The file for `patroni` and `patronictl`.
    pub(crate) configuration: PathBuf,
    account: Account,
    directory: PathBuf,
    password: String,
    server: Port,
    gates: Vec<(Link, Gate)>,
    patroni: Option<Child>,
    /// Whether SIGSTOP was sent.
    frozen: bool,
    /// Reserves the port of Patroni's REST interface.
    _rest: Port,
}

/// Current role of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Role {
    pub(crate) writable: bool,
    /// Number of nodes that stream from this node, and how many of them commits wait for.
    pub(crate) streaming: i64,
    pub(crate) synchronous: i64,
}

impl Node {
    /// Writes the configuration of node `number`.
    pub(crate) async fn new(number: usize, shared: &Shared) -> Result<Self> {
        let (server, rest) = (Port::reserve()?, Port::reserve()?);
        let clients = Gate::start(server.number()).await?;
        let peers = Gate::start(server.number()).await?;
        let patroni = Gate::start(rest.number()).await?;
        let etcd = Gate::start(shared.etcd).await?;
        let name = format!("node{number}");
        let directory = shared.directory.join(&name);
        fs::create_dir(&directory)?;
        shared.account.chown(&directory)?;
        let configuration = directory.join("patroni.yml");
        let text = configuration_file(shared, &name, &directory)
            .replace("REST_GATE", &patroni.port().to_string())
            .replace("REST", &rest.number().to_string())
            .replace("SERVER_GATE", &peers.port().to_string())
            .replace("SERVER", &server.number().to_string())
            .replace("ETCD", &etcd.port().to_string());
        fs::write(&configuration, text)?;
        shared.account.chown(&configuration)?;
        let gates = vec![
            (Link::Clients, clients),
            (Link::Peers, peers),
            (Link::Peers, patroni),
            (Link::Etcd, etcd),
        ];
        let (account, password) = (shared.account.clone(), shared.password.clone());
        let (patroni, frozen) = (None, false);
        Ok(Self {
            name,
            configuration,
            account,
            directory,
            password,
            server,
            gates,
            patroni,
            frozen,
            _rest: rest,
        })
    }

    /// Starts Patroni, which starts the server.
    pub(crate) fn start(&mut self, programs: &Programs) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let configuration = self.configuration.to_string_lossy();
        let program = programs.patroni();
        let args: Vec<&str> = program.iter().map(String::as_str).chain([&*configuration]).collect();
        let packages = programs.packages();
        self.patroni = Some(start(&self.account, &self.directory, &args, log, packages)?);
        Ok(())
    }

    /// Kills Patroni and the server.
    pub(crate) fn kill(&mut self) -> Result<()> {
        for pid in self.processes() {
            kill_with_children(pid)?;
        }
        if let Some(mut patroni) = self.patroni.take() {
            patroni.wait()?;
        }
        // All processes are gone, but if process 1 reaps late or never, the next server considers
        // the old one alive.
        let socket_lock = format!(".s.PGSQL.{}.lock", self.server.number());
        for file in [self.pid_file(), self.directory.join(socket_lock)] {
            if file.exists() {
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }

    /// Returns an error if Patroni has ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(patroni) = &mut self.patroni
            && let Some(status) = patroni.try_wait()?
        {
            bail!("Patroni of {} ended unexpectedly ({status})", self.name);
        }
        Ok(())
    }

    /// Sends SIGSTOP to all processes.
    pub(crate) fn freeze(&mut self) -> Result<()> {
        self.frozen = true;
        self.processes().into_iter().try_for_each(|pid| signal_with_children(pid, Signal::STOP))
    }

    /// Sends SIGCONT to all processes, and to the server first: until Patroni runs, the server
    /// accepts writes.
    pub(crate) fn thaw(&mut self) -> Result<()> {
        self.frozen = false;
        let mut processes = self.processes().into_iter().rev();
        processes.try_for_each(|pid| signal_with_children(pid, Signal::CONT))
    }

    /// Opens or closes links.
    pub(crate) fn set_open(&self, links: &[Link], open: bool) {
        for (_, gate) in self.gates.iter().filter(|(link, _)| links.contains(link)) {
            gate.set_open(open);
        }
    }

    /// Returns host and port for clients.
    pub(crate) fn address(&self) -> String {
        let clients = self.gates.iter().find(|(link, _)| *link == Link::Clients);
        format!("127.0.0.1:{}", clients.map_or(0, |(_, gate)| gate.port()))
    }

    /// Returns a connection string that no closed gate affects.
    pub(crate) fn direct_url(&self, database: &str) -> String {
        let port = self.server.number();
        format!("postgresql://postgres:{}@127.0.0.1:{port}/{database}", self.password)
    }

    /// Returns the role; a server that does not answer has none.
    pub(crate) async fn role(&self) -> Role {
        const ROLE: &str = "SELECT /* ha.role */ NOT pg_is_in_recovery(),
                count(*) FILTER (WHERE r.state = 'streaming' AND r.application_name ~ '^node'),
                count(*) FILTER (WHERE r.state = 'streaming' AND r.sync_state <> 'async')
            FROM pg_stat_replication r";
        let asked = async {
            let (client, mut driver) = session::open(&self.direct_url("postgres")).await?;
            let row = client.query_one(ROLE, &[]).await?;
            // Ends the session as the server expects. The server would log an error.
            drop(client);
            driver.join_next().await;
            anyhow::Ok(Role {
                writable: row.try_get(0)?,
                streaming: row.try_get(1)?,
                synchronous: row.try_get(2)?,
            })
        };
        match timeout(ANSWER, asked).await {
            Ok(Ok(role)) if !self.frozen => role,
            _ => Role::default(),
        }
    }

    /// Returns the log of Patroni and the server.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.with_extension("log")
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join("data/postmaster.pid")
    }

    /// Returns Patroni and the postmaster, as far as they are running. Patroni comes first: it
    /// would start the postmaster again.
    fn processes(&self) -> Vec<Pid> {
        let patroni =
            self.patroni.as_ref().and_then(|child| Pid::from_raw(child.id().cast_signed()));
        let file = fs::read_to_string(self.pid_file()).unwrap_or_default();
        let postmaster = file.lines().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        [patroni, postmaster].into_iter().flatten().filter(|pid| alive(*pid)).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("ha: cannot end {}: {error:#}", self.name);
        }
    }
}

/// Starts a program in its own process group, so that Ctrl-C reaches only this program. If this
/// program itself is killed, the kernel sends SIGTERM to the started one, and Patroni then stops its
/// server.
pub(crate) fn start(
    account: &Account,
    directory: &Path,
    args: &[&str],
    log: File,
    python_packages: Option<&Path>,
) -> Result<Child> {
    let mut command = account.command(Path::new("setpriv"), directory);
    command.args(["--pdeathsig", "TERM", "--"]).args(args).process_group(0);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.envs(python_packages.map(|folder| ("PYTHONPATH", folder)));
    command.spawn().with_context(|| format!("cannot run setpriv and {}", args[0]))
}

/// Returns Patroni's configuration with words in place of ports.
fn configuration_file(shared: &Shared, name: &str, directory: &Path) -> String {
    let Shared { binaries, password, dynamic, .. } = shared;
    let (directory, binaries) = (directory.display(), binaries.display());
    format!(
        r#"scope: ha
name: {name}
restapi:
  listen: 127.0.0.1:REST
  connect_address: 127.0.0.1:REST_GATE
etcd3:
  hosts: 127.0.0.1:ETCD
  # Patroni would connect past the gate.
  use_proxies: true
bootstrap:
  dcs:
{dynamic}
  initdb:
    - encoding: UTF8
    - locale: C
postgresql:
  listen: 127.0.0.1:SERVER
  connect_address: 127.0.0.1:SERVER_GATE
  data_dir: {directory}/data
  bin_dir: {binaries}
  pgpass: {directory}/pgpass
  authentication:
    superuser: {{username: postgres, password: {password}}}
    replication: {{username: replicator, password: {password}}}
  parameters:
    unix_socket_directories: {directory}
  pg_hba:
    - local all all trust
    - host all all 127.0.0.1/32 scram-sha-256
    - host replication replicator 127.0.0.1/32 scram-sha-256
watchdog:
  # It would reset this machine.
  mode: "off"
"#
    )
}
