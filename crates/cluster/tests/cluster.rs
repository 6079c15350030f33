//! Guarantees of a private cluster, tested on a real server.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cluster::{Binaries, Cluster, Mode, Options};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Returns the server chosen by `cluster run`, if the tests run under it; otherwise any server
/// found.
#[expect(clippy::disallowed_methods, reason = "`cluster run` passes the server in the environment")]
fn binaries() -> Binaries {
    let given = std::env::var_os("PGMILL_PG_BIN").map(PathBuf::from);
    Binaries::find(given.as_deref()).expect("a PostgreSQL server")
}

fn start() -> Cluster {
    Cluster::start(Options { fsync: false, ..Options::new(binaries()) }).expect("a cluster")
}

fn accepts_connections(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Returns the number of processes that work in the directory; a postmaster and its children work
/// in data/.
fn processes_of(directory: &Path) -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    processes
        .flatten()
        .filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok())
        .filter(|cwd| cwd.starts_with(directory))
        .count()
}

#[test]
fn dropping_a_cluster_leaves_no_process_and_no_directory() {
    let cluster = start();
    let directory = cluster.directory().to_path_buf();
    let port = cluster.port();
    assert!(cluster.pid().is_some());
    assert!(accepts_connections(port));
    assert!(cluster.log().is_file());
    assert_eq!(directory.metadata().unwrap().mode() & 0o777, 0o700);
    assert!(cluster.url("postgres").ends_with(&format!("@127.0.0.1:{port}/postgres")));
    assert!(cluster.socket_url("postgres").contains("%2Fpgmill-cluster-"));
    drop(cluster);
    assert!(!accepts_connections(port));
    assert!(!directory.exists());
    assert_eq!(processes_of(&directory), 0);
}

#[test]
fn a_crashed_cluster_starts_again_on_its_port() {
    let mut cluster = start();
    let (first, port) = (cluster.pid(), cluster.port());
    cluster.crash().unwrap();
    assert_eq!(cluster.pid(), None);
    assert_eq!(processes_of(cluster.directory()), 0);
    assert!(!accepts_connections(port));
    cluster.crash().expect_err("the server is already down");
    cluster.stop(Mode::Fast).expect("stopping a stopped server succeeds");
    cluster.start_again().unwrap();
    assert_eq!(cluster.port(), port);
    assert_ne!(cluster.pid(), first);
    assert!(accepts_connections(port));
    cluster.start_again().expect_err("the server is already running");
    let log = std::fs::read_to_string(cluster.log()).unwrap();
    assert!(log.contains("automatic recovery in progress"), "{log}");
    cluster.restart(Mode::Fast).unwrap();
    assert!(accepts_connections(port));
}

#[test]
fn a_server_that_does_not_start_shows_its_log_and_leaves_nothing() {
    let settings = vec![("shared_buffers".to_owned(), "much".to_owned())];
    let options = Options { settings, ..Options::new(binaries()) };
    let error = format!("{:#}", Cluster::start(options).err().expect("an invalid setting"));
    assert!(error.contains("invalid value for parameter \"shared_buffers\""), "{error}");
}

#[test]
fn the_next_start_removes_the_cluster_of_a_killed_owner() {
    let mut owner = Owner::start();
    let orphans = children(owner.process.id());
    owner.process.kill().unwrap();
    owner.process.wait().unwrap();
    // A concurrent test may already have removed the cluster of the killed owner. After this start
    // it is gone in any case.
    drop(start());
    assert!(!accepts_connections(owner.port));
    for orphan in orphans {
        kill_process(orphan, Signal::TERM).unwrap();
    }
}

#[test]
fn a_kept_cluster_outlives_its_owner_and_later_starts() {
    let mut cluster = start();
    let directory = cluster.directory().to_path_buf();
    let (port, pid) = (cluster.port(), cluster.pid().unwrap());
    cluster.keep().unwrap();
    drop(cluster);
    drop(start());
    assert!(accepts_connections(port));
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::INT).unwrap();
    while processes_of(&directory) > 0 || accepts_connections(port) {
        std::thread::yield_now();
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_standby_takes_the_place_of_its_primary() {
    let mut primary = start();
    psql(&primary, "CREATE TABLE kept (n integer)");
    let standby = primary.standby().unwrap();
    assert_ne!(standby.port(), primary.port());
    assert_ne!(standby.directory(), primary.directory());
    standby_waits(&primary);
    // From now on an acknowledged commit is on both servers.
    psql(&primary, "INSERT INTO kept VALUES (1)");
    primary.crash().unwrap();
    primary.start_again().unwrap();
    psql(&primary, "INSERT INTO kept VALUES (2)");
    assert_eq!(psql(&standby, "SELECT count(*), pg_is_in_recovery() FROM kept"), "2|t");
    primary.crash().unwrap();
    standby.promote().unwrap();
    psql(&standby, "INSERT INTO kept VALUES (3)");
    assert_eq!(psql(&standby, "SELECT count(*), pg_is_in_recovery() FROM kept"), "3|f");
    standby.promote().expect_err("the server is already a primary");
    let (directory, port) = (standby.directory().to_path_buf(), standby.port());
    drop(primary);
    drop(standby);
    assert!(!accepts_connections(port) && !directory.exists());
}

/// Lets commits of the primary wait until the standby has applied them.
fn standby_waits(primary: &Cluster) {
    psql(primary, "ALTER SYSTEM SET synchronous_standby_names = 'standby'");
    psql(primary, "ALTER SYSTEM SET synchronous_commit = remote_apply");
    psql(primary, "SELECT pg_reload_conf()");
    while psql(primary, "SELECT sync_state FROM pg_stat_replication") != "sync"
        || psql(primary, "SHOW synchronous_commit") != "remote_apply"
    {
        std::thread::yield_now();
    }
}

/// Returns the server's output without headings.
fn psql(cluster: &Cluster, sql: &str) -> String {
    let program = cluster.binaries().directory().join("psql");
    let url = cluster.url("postgres");
    let args = ["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql, url.as_str()];
    let output = Command::new(program).args(args).output().expect("psql runs");
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

#[test]
fn run_passes_on_the_exit_code_and_exports_the_server() {
    let script = "test -x $PGMILL_PG_BIN/postgres && echo $PGMILL_TEST_URL; exit 7";
    let output = run(&["run", "--no-fsync", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7));
    let url = String::from_utf8(output.stdout).unwrap();
    assert!(url.starts_with("postgresql://postgres:"), "{url}");
}

/// A cargo in the command would otherwise compile crates again that have not changed.
#[test]
fn run_does_not_pass_on_what_cargo_has_set() {
    let script = "echo \"<$CARGO_MANIFEST_DIR$CARGO_PKG_NAME>\"";
    let mut cluster = program();
    cluster.args(["run", "--no-fsync", "--", "sh", "-c", script]);
    cluster.env("CARGO_MANIFEST_DIR", "/elsewhere").env("CARGO_PKG_NAME", "cluster");
    let output = cluster.output().expect("cluster runs");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "<>");
}

#[test]
fn a_terminated_run_ends_its_command_and_its_cluster() {
    let mut owner = Owner::start();
    let command = children(owner.process.id());
    assert_eq!(owner.terminate(), Some(128 + 15));
    assert!(!accepts_connections(owner.port));
    assert!(command.into_iter().all(|pid| test_kill_process(pid).is_err()));
}

#[test]
fn each_kind_of_failure_has_its_exit_code() {
    let cases: [(&[&str], i32); 6] = [
        (&["run"], 2),
        (&["run", "--setting", "nonsense", "--", "true"], 2),
        (&["find", "--pg", "/nonexistent"], 5),
        (&["run", "--pg", "/nonexistent", "--", "true"], 5),
        (&["run", "--no-fsync", "--", "/nonexistent/command"], 127),
        (&["--help"], 0),
    ];
    for (arguments, code) in cases {
        assert_eq!(run(arguments).status.code(), Some(code), "{arguments:?}");
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cluster"));
    command.env("PGMILL_PG_BIN", binaries().directory());
    command
}

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().expect("cluster runs")
}

/// A running `cluster run` whose command sleeps.
struct Owner {
    process: Child,
    port: u16,
}

impl Owner {
    fn start() -> Self {
        let mut process = program()
            .args(["run", "--no-fsync", "--", "sh", "-c", "echo $PGMILL_TEST_URL; exec sleep 600"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("cluster runs");
        let mut url = String::new();
        let output = process.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut url).expect("the command's connection string");
        let (_, rest) = url.trim().rsplit_once(':').expect("a connection string");
        let port = rest.trim_end_matches("/postgres").parse().expect("a port");
        Self { process, port }
    }

    /// Requests shutdown and returns the exit code.
    fn terminate(&mut self) -> Option<i32> {
        if let Some(pid) = Pid::from_raw(self.process.id().cast_signed()) {
            // The process is not reaped yet, so its pid is still valid.
            let _ = kill_process(pid, Signal::TERM);
        }
        self.process.wait().expect("it is our child").code()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.terminate();
        }
    }
}

fn children(pid: u32) -> Vec<Pid> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list = list.unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
