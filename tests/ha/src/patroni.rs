//! Three nodes and the etcd that they share.

use std::fs::{self, File};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::{Account, Binaries, Directory, Port, random_letters};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::catalog::Mode;
use crate::fleet::tail;
use crate::node::{self, Node, Role, Shared};
use crate::programs::Programs;
use crate::session;
use crate::settings::Settings;

/// Name of the cluster in etcd.
const SCOPE: &str = "ha";
const NODES: usize = 3;

/// Time limit until all nodes have the roles that they should have.
const LIMIT: Duration = Duration::from_secs(180);
/// Time between two looks at the roles.
const POLL: Duration = Duration::from_millis(200);

/// The nodes and etcd. Dropping the value ends all processes and removes the directory.
pub(crate) struct Patroni {
    programs: Programs,
    pub(crate) nodes: Vec<Node>,
    shared: Shared,
    etcd: Option<Child>,
    etcd_ports: [Port; 2],
    directory: Directory,
    keep: bool,
}

impl Patroni {
    /// Creates the directory.
    pub(crate) fn new(
        programs: Programs,
        binaries: &Binaries,
        settings: &Settings,
        keep: bool,
    ) -> Result<Self> {
        let account = Account::of_server()?;
        let directory = Directory::create(&account)?;
        if keep {
            directory.keep()?;
        }
        let programs = programs.copied_to(directory.path())?;
        let etcd_ports = [Port::reserve()?, Port::reserve()?];
        let shared = Shared {
            account,
            directory: directory.path().to_owned(),
            binaries: binaries.directory().to_owned(),
            password: random_letters(32),
            dynamic: settings.indented(),
            etcd: etcd_ports[0].number(),
        };
        Ok(Self { programs, nodes: Vec::new(), shared, etcd: None, etcd_ports, directory, keep })
    }

    /// Starts etcd and the nodes; returns when the two standbys stream from the leader.
    pub(crate) async fn start(&mut self) -> Result<()> {
        self.start_etcd()?;
        let begun = Instant::now();
        while !self.etcd_ready().await {
            ensure!(begun.elapsed() < LIMIT, "etcd does not answer");
            sleep(POLL).await;
        }
        for number in 1..=NODES {
            self.nodes.push(Node::new(number, &self.shared).await?);
        }
        // The other nodes are copies of the first one.
        self.start_node(0)?;
        self.until("the first node does not become the leader", |roles| roles[0].writable).await?;
        self.start_node(1)?;
        self.start_node(2)?;
        self.healthy(Mode::Synchronous).await.map(drop)
    }

    fn start_etcd(&mut self) -> Result<()> {
        let [client, peer] =
            [0, 1].map(|n: usize| format!("http://127.0.0.1:{}", self.etcd_ports[n].number()));
        let data = self.directory().join("etcd");
        let (data, cluster) = (data.to_string_lossy(), format!("etcd={peer}"));
        let program = self.programs.etcd().to_string_lossy();
        let args = [
            &*program,
            "--name=etcd",
            "--data-dir",
            &data,
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &cluster,
        ];
        let log = File::create(self.directory().join("etcd.log"))?;
        self.etcd = Some(node::start(&self.shared.account, self.directory(), &args, log, None)?);
        Ok(())
    }

    /// Returns whether etcd has chosen the version of its protocol. Patroni would end before that.
    async fn etcd_ready(&self) -> bool {
        let version = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.shared.etcd)).await?;
            stream.write_all(b"GET /version HTTP/1.0\r\n\r\n").await?;
            let mut reply = String::new();
            stream.read_to_string(&mut reply).await?;
            std::io::Result::Ok(reply)
        };
        version.await.is_ok_and(|it| it.contains("etcdcluster") && !it.contains("not_decided"))
    }

    /// Starts Patroni on one node.
    pub(crate) fn start_node(&mut self, n: usize) -> Result<()> {
        self.nodes[n].start(&self.programs)
    }

    /// Switches to a mode as docs/database.md describes; returns once the nodes replicate so.
    pub(crate) async fn replicate(&mut self, mode: Mode, settings: &Settings) -> Result<()> {
        let file = self.directory().join("dynamic.yml");
        fs::write(&file, settings.of_mode(mode))?;
        self.shared.account.chown(&file)?;
        self.patronictl(&["edit-config", SCOPE, "--force", "--apply", &file.to_string_lossy()])?;
        self.healthy(mode).await.map(drop)
    }

    /// Moves the leader to another node, which Patroni chooses.
    pub(crate) fn switchover(&self, leader: usize) -> Result<()> {
        let leader = &self.nodes[leader].name;
        let output = self.patronictl(&["switchover", SCOPE, "--force", "--leader", leader])?;
        // patronictl exits with 0 even if Patroni refuses.
        ensure!(output.contains("Successfully"), "no switchover: {output}");
        Ok(())
    }

    /// Returns the leader once it is the only writable node, the others stream from it, and commits
    /// wait for a standby as the mode demands.
    pub(crate) async fn healthy(&mut self, mode: Mode) -> Result<usize> {
        let roles = self
            .until("the nodes do not reach their roles", |roles| {
                let mut writable = roles.iter().filter(|role| role.writable);
                let leader = writable.next().copied().unwrap_or_default();
                let synchronous = mode == Mode::Synchronous;
                writable.next().is_none()
                    && leader.streaming == 2
                    && (leader.synchronous > 0) == synchronous
            })
            .await?;
        // Patroni promotes only a standby that it has recorded as synchronous in etcd.
        let begun = Instant::now();
        while self.patronictl(&["list", SCOPE])?.contains("Sync Standby")
            != (mode == Mode::Synchronous)
        {
            ensure!(begun.elapsed() < LIMIT, "Patroni does not record the synchronous standby");
            sleep(POLL).await;
        }
        roles.iter().position(|role| role.writable).context("there is no leader")
    }

    /// Returns once a node other than `old` is writable.
    pub(crate) async fn new_leader(&mut self, old: usize) -> Result<()> {
        let other = |roles: &[Role]| (0..NODES).any(|n| n != old && roles[n].writable);
        self.until("no other node becomes the leader", other).await.map(drop)
    }

    async fn until(
        &mut self,
        complaint: &'static str,
        reached: impl Fn(&[Role]) -> bool,
    ) -> Result<Vec<Role>> {
        let begun = Instant::now();
        loop {
            let mut roles = Vec::new();
            for node in &self.nodes {
                roles.push(node.role().await);
            }
            if reached(&roles) {
                return Ok(roles);
            }
            for node in &mut self.nodes {
                node.check()?;
            }
            ensure!(begun.elapsed() < LIMIT, "{complaint}: {roles:?}");
            sleep(POLL).await;
        }
    }

    /// Creates a database on the leader with pgmill's schema and the checker's; returns its
    /// connection string with all nodes, which selects the writable one.
    pub(crate) async fn create_database(&self, leader: usize, name: &str) -> Result<String> {
        let (client, _driver) = session::open(&self.nodes[leader].direct_url("postgres")).await?;
        client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        let (client, _driver) = session::open(&self.nodes[leader].direct_url(name)).await?;
        queue::schema::init(&client).await?;
        client.batch_execute(checker::INSTALL).await?;
        let addresses: Vec<String> = self.nodes.iter().map(Node::address).collect();
        let (password, addresses) = (&self.shared.password, addresses.join(","));
        Ok(format!(
            "postgresql://postgres:{password}@{addresses}/{name}?target_session_attrs=read-write"
        ))
    }

    /// Returns the directory of all files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the last lines of all logs.
    pub(crate) fn tails(&self) -> String {
        // The nodes last: where output is cut, its end stays.
        let etcd = self.directory().join("etcd.log");
        let logs = [etcd].into_iter().chain(self.nodes.iter().map(Node::log));
        logs.map(|log| tail(&log)).collect::<Vec<_>>().join("\n")
    }

    /// Returns the output.
    fn patronictl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.programs.patronictl(&self.shared.account, self.directory());
        let output = command.arg("-c").arg(&self.nodes[0].configuration).args(args).output()?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(output.status.success(), "patronictl {}: {text}", args.join(" "));
        Ok(text)
    }
}

impl Drop for Patroni {
    fn drop(&mut self) {
        // Nodes end before etcd, without which they would demote themselves.
        self.nodes.clear();
        if let Some(etcd) = &mut self.etcd {
            // An error means that etcd has ended.
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
        if self.keep {
            eprintln!("ha: the logs are in {}", self.directory().display());
        } else if let Err(error) = self.directory.remove() {
            eprintln!("ha: {error:#}");
        }
    }
}
