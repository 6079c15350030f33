//! A private cluster with certificates. Runs connection strings through `psql` and through this
//! program.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::Port;
use conninfo::{ConnectError, Connection, ConnectionTarget, Environment, open};
use tokio_postgres::{Client, SimpleQueryMessage};

const HBA: &str = "\
local all all trust
hostssl all cert all cert
hostssl all secure all trust
hostnossl all plain all trust
host all password all scram-sha-256
host all any all trust
";

/// Runs a program to completion. If the tests run as root, the program runs as the user `postgres`,
/// because a server refuses to run as root.
fn run(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> String {
    let id = Command::new("id").arg("-u").output().unwrap();
    let mut command = if id.stdout == b"0\n" {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    let output = command.args(args).current_dir("/").output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the directory of the server's binaries. If there are several versions, returns the
/// newest.
fn server_binaries() -> Option<PathBuf> {
    let shell = "pg_config --bindir 2>/dev/null; dirname \"$(command -v initdb)\" 2>/dev/null; \
                 ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -rV";
    let found = Command::new("sh").args(["-c", shell]).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let found = found.lines().map(PathBuf::from).find(|path| path.join("initdb").exists());
    if found.is_none() {
        println!("skipped: no PostgreSQL server binaries found");
    }
    found
}

/// A cluster that is stopped and removed when dropped.
pub(crate) struct Cluster {
    binaries: PathBuf,
    directory: PathBuf,
    pub(crate) port: Port,
}

impl Cluster {
    pub(crate) fn start(name: &str) -> Option<Self> {
        let binaries = server_binaries()?;
        let name = format!("tls-ladder-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        let port = Port::reserve().unwrap();
        let cluster = Self { binaries, directory, port };
        make_certificates(&cluster.directory);
        let data = cluster.path("data");
        run(cluster.binaries.join("initdb"), &["-D", &data, "-U", "any", "-A", "trust", "-N"]);
        run("sh", &["-c", &format!("cat > {data}/pg_hba.conf <<'X'\n{HBA}X\n")]);
        cluster.pg_ctl("start", "ssl=on");
        let (client, connection) = cluster.session("user=any sslmode=require").unwrap();
        cluster.drive(connection, async {
            client
                .batch_execute(
                    "CREATE ROLE cert LOGIN; CREATE ROLE secure LOGIN; CREATE ROLE plain LOGIN; \
                     CREATE ROLE password LOGIN PASSWORD 'open sesame'",
                )
                .await
                .unwrap();
        });
        Some(cluster)
    }

    fn pg_ctl(&self, verb: &str, setting: &str) {
        let options = format!(
            "-p {} -k {} -c listen_addresses=localhost -c fsync=off \
             -c ssl_ca_file={d}/ca.crt -c ssl_cert_file={d}/server.crt -c ssl_key_file={d}/server.key \
             -c {setting}",
            self.port.number(),
            self.directory.display(),
            d = self.directory.display(),
        );
        let (data, log) = (self.path("data"), self.path("log"));
        run(
            self.binaries.join("pg_ctl"),
            &["-D", &data, "-l", &log, "-w", "-m", "fast", "-o", &options, verb],
        );
    }

    /// Restarts the server with other certificate files.
    pub(crate) fn restart(&self, setting: &str) {
        self.pg_ctl("restart", setting);
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Fills in `{dir}` and the port.
    fn fill(&self, text: &str) -> String {
        let text = text.replace("{dir}", &self.directory.display().to_string());
        format!("port={} dbname=postgres {text}", self.port.number())
    }

    /// Returns a home directory, with or without a root certificate in libpq's default place.
    fn home(&self, home: &str) -> String {
        self.path(home)
    }

    pub(crate) fn target(&self, text: &str, home: &str) -> Result<ConnectionTarget, ConnectError> {
        let env = Environment::from_variables([("HOME", self.home(home))], Some("any"));
        ConnectionTarget::resolve(Some(&self.fill(text)), &env)
    }

    pub(crate) fn session(&self, text: &str) -> Result<(Client, Connection), ConnectError> {
        let target = self.target(&format!("host=localhost {text}"), "home")?;
        self.block_on(open(&target))
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        RUNTIME.with(|runtime| runtime.block_on(work))
    }

    /// Drives the connection while `work` runs.
    pub(crate) fn drive<T>(&self, connection: Connection, work: impl Future<Output = T>) -> T {
        self.block_on(async {
            tokio::select! {
                done = work => done,
                ended = connection => panic!("the connection ended first: {ended:?}"),
            }
        })
    }

    pub(crate) fn ours(&self, row: &str, home: &str) -> (Outcome, String) {
        let opened = self.target(row, home).and_then(|target| self.block_on(open(&target)));
        match opened {
            Err(error) => (Outcome::Outside, error.to_string()),
            Ok((client, connection)) => {
                let ssl = self.drive(connection, async { ask(&client, TLS_IN_USE).await });
                (Outcome::of(&ssl), String::new())
            }
        }
    }

    pub(crate) fn psql(&self, row: &str, home: &str) -> (Outcome, String) {
        let output = Command::new(self.binaries.join("psql"))
            .args(["-X", "-w", "-A", "-t", "-c", TLS_IN_USE, &self.fill(row)])
            .env_clear()
            .env("HOME", self.home(home))
            .output()
            .unwrap();
        let answer = String::from_utf8(output.stdout).unwrap();
        (Outcome::of(answer.trim()), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs the rows through `psql` and through this program. Returns the number of rows for each
    /// outcome.
    pub(crate) fn compare(&self, server: &str, rows: &[(String, &str)]) -> [usize; 3] {
        let mut complaints = Vec::new();
        let mut counts = [0; 3];
        for (row, home) in rows {
            let (theirs, their_error) = self.psql(row, home);
            let (ours, our_error) = self.ours(row, home);
            counts[theirs as usize] += 1;
            if ours != theirs {
                complaints.push(format!(
                    "{row} ({home})\n  psql: {theirs:?} {their_error}  ours: {ours:?} {our_error}"
                ));
            }
        }
        assert!(complaints.is_empty(), "{server}:\n{}", complaints.join("\n"));
        counts
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let data = self.path("data");
        let stop = ["-D", &data, "-w", "-m", "immediate", "stop"];
        if std::fs::exists(&data).unwrap_or(false) && !std::thread::panicking() {
            run(self.binaries.join("pg_ctl"), &stop);
        } else {
            let _ = std::panic::catch_unwind(|| run(self.binaries.join("pg_ctl"), &stop));
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
}

pub(crate) const TLS_IN_USE: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    WithTls,
    WithoutTls,
    Outside,
}

impl Outcome {
    fn of(ssl: &str) -> Self {
        match ssl {
            "t" => Self::WithTls,
            "f" => Self::WithoutTls,
            _ => Self::Outside,
        }
    }
}

pub(crate) async fn ask(client: &Client, sql: &str) -> String {
    let messages = client.simple_query(sql).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(row.columns().first()?.name()),
        _ => None,
    });
    row.unwrap().to_owned()
}

/// Creates a CA, a server certificate for `localhost`, a client certificate, another CA, and a
/// self-signed certificate as `openssl req -x509` makes it.
fn make_certificates(directory: &Path) {
    let script = "set -e; cd \"$0\"; umask 077
req='openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
$req -x509 -days 9 -keyout ca.key -out ca.crt -subj '/CN=private CA' 2>/dev/null
$req -x509 -days 9 -keyout stranger.key -out stranger.crt -subj '/CN=stranger' 2>/dev/null
$req -x509 -days 9 -keyout self.key -out self.crt -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost 2>/dev/null
for name in server client; do
  case $name in server) cn=localhost;; client) cn=cert;; esac
  $req -new -keyout $name.key -out $name.csr -subj /CN=$cn 2>/dev/null
  printf 'subjectAltName=DNS:%s\nbasicConstraints=CA:FALSE\n' $cn > $name.ext
  openssl x509 -req -days 9 -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial \
    -extfile $name.ext -out $name.crt 2>/dev/null
done
$req -new -keyout version1.key -out version1.csr -subj /CN=localhost 2>/dev/null
openssl x509 -req -days 9 -in version1.csr -CA ca.crt -CAkey ca.key -CAcreateserial \
  -out version1.crt 2>/dev/null
chmod 644 *.crt
cp client.key loose.key; chmod 644 loose.key
mkdir home home-with-root home-with-strange-root
mkdir home-with-root/.postgresql home-with-strange-root/.postgresql
cp ca.crt home-with-root/.postgresql/root.crt
cp stranger.crt home-with-strange-root/.postgresql/root.crt
if [ \"$(id -u)\" = 0 ]; then chown postgres server.* self.* version1.*; fi
";
    let output = Command::new("sh").args(["-c", script]).arg(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
