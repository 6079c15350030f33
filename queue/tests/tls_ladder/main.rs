//! Each `sslmode` gets in, with or without TLS, exactly where `psql` does.
//!
//! A private cluster with a private certificate authority; every row goes through `psql` and through
//! `queue::connect`, and both must end the same way: in a session with TLS, in one without, or
//! outside.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use deadpool_postgres::{Pool, RecyclingMethod, Runtime};
use queue::connect::{ConnectError, Connection, Environment, Target};
use queue::connect::{cancel, open, pool_error, pool_manager};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

const HBA: &str = "\
local all all trust
hostssl all cert all cert
hostssl all secure all trust
hostnossl all plain all trust
host all password all scram-sha-256
host all any all trust
";

/// Runs a program to its end; as root, as the user `postgres`, since a server refuses root.
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

/// The directory of the server's binaries, the newest if there are several.
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

struct Cluster {
    binaries: PathBuf,
    directory: PathBuf,
    port: u16,
}

impl Cluster {
    fn start(name: &str) -> Option<Self> {
        let binaries = server_binaries()?;
        let name = format!("tls-ladder-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
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
            self.port,
            self.directory.display(),
            d = self.directory.display(),
        );
        let (data, log) = (self.path("data"), self.path("log"));
        run(
            self.binaries.join("pg_ctl"),
            &["-D", &data, "-l", &log, "-w", "-m", "fast", "-o", &options, verb],
        );
    }

    /// Serves with other files from now on.
    fn restart(&self, setting: &str) {
        self.pg_ctl("restart", setting);
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// `{dir}` and the port filled in.
    fn fill(&self, text: &str) -> String {
        let text = text.replace("{dir}", &self.directory.display().to_string());
        format!("port={} dbname=postgres {text}", self.port)
    }

    /// A home directory, with a root certificate in libpq's default place or without.
    fn home(&self, home: &str) -> String {
        self.path(home)
    }

    fn target(&self, text: &str, home: &str) -> Result<Target, ConnectError> {
        let env = Environment::from_variables([("HOME", self.home(home))], Some("any"));
        Target::resolve(Some(&self.fill(text)), &env)
    }

    fn session(&self, text: &str) -> Result<(Client, Connection), ConnectError> {
        let target = self.target(&format!("host=localhost {text}"), "home")?;
        self.block_on(open(&target))
    }

    fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        RUNTIME.with(|runtime| runtime.block_on(work))
    }

    /// Lets the connection run for as long as `work` takes.
    fn drive<T>(&self, connection: Connection, work: impl Future<Output = T>) -> T {
        self.block_on(async {
            tokio::select! {
                done = work => done,
                ended = connection => panic!("the connection ended first: {ended:?}"),
            }
        })
    }

    fn ours(&self, row: &str, home: &str) -> (Outcome, String) {
        let opened = self.target(row, home).and_then(|target| self.block_on(open(&target)));
        match opened {
            Err(error) => (Outcome::Outside, error.to_string()),
            Ok((client, connection)) => {
                let ssl = self.drive(connection, async { ask(&client, TLS_IN_USE).await });
                (Outcome::of(&ssl), String::new())
            }
        }
    }

    fn psql(&self, row: &str, home: &str) -> (Outcome, String) {
        let output = Command::new(self.binaries.join("psql"))
            .args(["-X", "-w", "-A", "-t", "-c", TLS_IN_USE, &self.fill(row)])
            .env_clear()
            .env("HOME", self.home(home))
            .output()
            .unwrap();
        let answer = String::from_utf8(output.stdout).unwrap();
        (Outcome::of(answer.trim()), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs the rows through both; returns how often each outcome was met.
    fn compare(&self, server: &str, rows: &[(String, &str)]) -> [usize; 3] {
        let mut complaints = Vec::new();
        let mut met = [0; 3];
        for (row, home) in rows {
            let (theirs, their_error) = self.psql(row, home);
            let (ours, our_error) = self.ours(row, home);
            met[theirs as usize] += 1;
            if ours != theirs {
                complaints.push(format!(
                    "{row} ({home})\n  psql: {theirs:?} {their_error}  ours: {ours:?} {our_error}"
                ));
            }
        }
        assert!(complaints.is_empty(), "{server}:\n{}", complaints.join("\n"));
        met
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

const TLS_IN_USE: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
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

async fn ask(client: &Client, sql: &str) -> String {
    let messages = client.simple_query(sql).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    row.unwrap().to_owned()
}

/// A CA, a server certificate for `localhost`, a client certificate, a stranger's CA, and a
/// self-signed certificate as `openssl req -x509` makes it.
fn make_certificates(directory: &Path) {
    let script = "set -e; cd \"$0\"; umask 077
req='openssl req -newkey rsa:2048 -nodes'
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

const MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];
const ROOTS: [&str; 4] = [
    "",
    "sslrootcert={dir}/ca.crt",
    "sslrootcert={dir}/stranger.crt",
    "sslrootcert={dir}/missing.crt",
];

fn product(users: &[&str], roots: &[&str]) -> Vec<(String, &'static str)> {
    let mut rows = Vec::new();
    for mode in MODES {
        for host in ["localhost", "127.0.0.1"] {
            for user in users {
                for root in roots {
                    rows.push((format!("host={host} user={user} sslmode={mode} {root}"), "home"));
                }
            }
        }
    }
    rows
}

/// What the table of modes, hosts, users and roots does not reach.
const SINGLE_ROWS: &[(&str, &str)] = &[
    // The default mode, and roots in the default place.
    ("host=localhost user=any", "home"),
    ("host=localhost user=any", "home-with-root"),
    ("host=localhost user=any", "home-with-strange-root"),
    ("host=localhost user=secure", "home-with-strange-root"),
    ("host=localhost user=any sslmode=require", "home-with-root"),
    ("host=localhost user=any sslmode=require", "home-with-strange-root"),
    ("host=localhost user=any sslmode=verify-full", "home-with-root"),
    // The name that is verified is the host's, whatever address is dialled.
    ("host=localhost hostaddr=127.0.0.1 user=any sslmode=verify-full", "home-with-root"),
    ("host=elsewhere hostaddr=127.0.0.1 user=any sslmode=verify-full", "home-with-root"),
    ("host=elsewhere hostaddr=127.0.0.1 user=any sslmode=verify-ca", "home-with-root"),
    ("hostaddr=127.0.0.1 user=any sslmode=verify-full", "home-with-root"),
    ("hostaddr=127.0.0.1 user=any sslmode=require", "home"),
    // Sockets have no TLS.
    ("host={dir} user=any sslmode=require", "home"),
    ("host={dir} user=any", "home"),
    // Passwords and channel binding.
    ("host=localhost user=password password='open sesame'", "home"),
    ("host=localhost user=password password=wrong", "home"),
    ("host=localhost user=password", "home"),
    ("host=localhost user=password password='open sesame' channel_binding=require", "home"),
    ("host=localhost user=password password='open sesame' channel_binding=disable", "home"),
    (
        "host=localhost user=password password='open sesame' channel_binding=require \
         sslmode=verify-full sslrootcert={dir}/ca.crt",
        "home",
    ),
    (
        "host=localhost user=password password='open sesame' channel_binding=require \
         sslmode=disable",
        "home",
    ),
    ("host=localhost user=any channel_binding=require", "home"),
    // Client certificates.
    ("host=localhost user=cert", "home"),
    ("host=localhost user=cert sslcert={dir}/client.crt sslkey={dir}/client.key", "home"),
    (
        "host=localhost user=cert sslmode=verify-full sslrootcert={dir}/ca.crt \
         sslcert={dir}/client.crt sslkey={dir}/client.key",
        "home",
    ),
    ("host=localhost user=secure sslcert={dir}/client.crt sslkey={dir}/client.key", "home"),
    (
        "host=localhost user=cert sslmode=require sslcert={dir}/client.crt sslkey={dir}/loose.key",
        "home",
    ),
    ("host=localhost user=any sslmode=require sslcert={dir}/client.crt", "home"),
    ("host=localhost user=any sslmode=require sslcert={dir}/missing.crt", "home"),
    (
        "host=localhost user=cert sslmode=require sslcert={dir}/server.crt sslkey={dir}/server.key",
        "home",
    ),
    // Versions.
    ("host=localhost user=any ssl_min_protocol_version=TLSv1.3", "home"),
    ("host=localhost user=any sslmode=require ssl_max_protocol_version=TLSv1.2", "home"),
    (
        "host=localhost user=password password='open sesame' channel_binding=require \
         ssl_max_protocol_version=TLSv1.2",
        "home",
    ),
    // Unknown role, unknown database.
    ("host=localhost user=nobody", "home"),
    ("host=localhost user=any dbname=nothing", "home"),
    // Kinds of servers: this one is a primary and takes writes.
    ("host=localhost user=any target_session_attrs=read-write", "home"),
    ("host=localhost user=any target_session_attrs=read-only", "home"),
    ("host=localhost user=any target_session_attrs=primary", "home"),
    ("host=localhost user=any target_session_attrs=standby", "home"),
    ("host=localhost user=any target_session_attrs=prefer-standby", "home"),
    (
        "host=localhost user=any target_session_attrs=read-only \
         options='-c default_transaction_read_only=on'",
        "home",
    ),
    (
        "host=localhost user=any target_session_attrs=read-write \
         options='-c default_transaction_read_only=on'",
        "home",
    ),
];

#[test]
fn every_sslmode_ends_as_in_psql() {
    let Some(cluster) = Cluster::start("modes") else { return };
    let mut rows = product(&["any", "secure", "plain"], &ROOTS);
    rows.extend(SINGLE_ROWS.iter().map(|(row, home)| ((*row).to_owned(), *home)));
    let met = cluster.compare("a server with TLS", &rows);
    assert!(met.iter().all(|times| *times > 10), "the table is lopsided: {met:?}");

    cluster.restart("ssl=off");
    cluster.compare("a server without TLS", &product(&["any", "secure"], &ROOTS[..2]));

    let own = cluster.path("self");
    cluster.restart(&format!("ssl=on -c ssl_cert_file={own}.crt -c ssl_key_file={own}.key"));
    cluster.compare(
        "a server with a self-signed certificate",
        &product(&["any"], &["", "sslrootcert={dir}/self.crt", "sslrootcert={dir}/ca.crt"]),
    );
    let pinned = "host=localhost user=any sslmode=verify-full sslrootcert={dir}/self.crt";
    assert_eq!(cluster.psql(pinned, "home").0, Outcome::WithTls);

    // Older releases of openssl make version 1 here. Verifying it is beyond us; using it is not.
    let own = cluster.path("version1");
    cluster.restart(&format!("ssl=on -c ssl_cert_file={own}.crt -c ssl_key_file={own}.key"));
    let mut rows = product(&["any"], &[""]);
    let bound = "host=localhost user=password password='open sesame' channel_binding=require";
    rows.push((bound.to_owned(), "home"));
    let met = cluster.compare("a server with a certificate of version 1", &rows);
    assert_eq!(met[Outcome::WithTls as usize], 5, "prefer and require at two names, and the last");
}

#[test]
fn errors_carry_the_servers_words_and_no_password() {
    let Some(cluster) = Cluster::start("errors") else { return };
    let error = |text: &str| cluster.session(text).err().unwrap();

    let wrong = error("user=password password=hunter2");
    assert_eq!(wrong.sqlstate(), Some(&SqlState::INVALID_PASSWORD));
    assert!(wrong.to_string().contains("password authentication failed"), "{wrong}");
    assert!(!wrong.is_usage() && !format!("{wrong:?}").contains("hunter2"));

    let none = error("user=password");
    assert!(none.to_string().contains("none was given"), "{none}");
    let stranger = error("user=any sslmode=verify-full sslrootcert={dir}/stranger.crt");
    assert!(stranger.hint().unwrap().contains("sslrootcert"), "{stranger}");
    let missing = error("user=any sslmode=verify-ca sslrootcert={dir}/missing.crt");
    assert!(missing.is_usage(), "{missing}");
    let system = error("user=any sslrootcert=system");
    assert!(!matches!(system, ConnectError::Refused { .. }), "{system}");
}

#[test]
fn options_and_application_name_hold_from_the_start() {
    let Some(cluster) = Cluster::start("options") else { return };
    let target = cluster.target("host=localhost user=any options='-c geqo=off'", "home").unwrap();
    let target = target.with_option("search_path", r#"pg_catalog, "a b\c""#);
    let target = target.with_application_name("the name");
    let (client, connection) = cluster.block_on(open(&target)).unwrap();
    cluster.drive(connection, async {
        client.batch_execute("SET search_path = other; RESET ALL").await.unwrap();
        assert_eq!(ask(&client, "SHOW search_path").await, r#"pg_catalog, "a b\c""#);
        assert_eq!(ask(&client, "SHOW geqo").await, "off");
        assert_eq!(ask(&client, "SHOW application_name").await, "the name");
    });
}

#[test]
fn a_cancel_request_arrives_under_each_mode() {
    let Some(cluster) = Cluster::start("cancel") else { return };
    for row in ["sslmode=disable", "sslmode=prefer", "sslmode=verify-full"] {
        let row = format!("host=localhost user=any {row} sslrootcert={{dir}}/ca.crt");
        let target = cluster.target(&row, "home").unwrap();
        let (client, connection) = cluster.block_on(open(&target)).unwrap();
        let (watcher, watched) = cluster.session("user=any").unwrap();
        let token = client.cancel_token();
        let watch = async {
            let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
            while ask(&watcher, sleeping).await == "0" {}
            cancel(&token, &target).await.unwrap();
        };
        cluster.drive(connection, async {
            let watch = async {
                tokio::select! { () = watch => {}, ended = watched => panic!("{ended:?}") }
            };
            let (slept, ()) = tokio::join!(client.batch_execute("SELECT pg_sleep(3600)"), watch);
            assert_eq!(slept.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
        });
    }
}

#[test]
fn a_pool_follows_the_same_rules() {
    let Some(cluster) = Cluster::start("pool") else { return };
    let pool = |text: &str| {
        let target = cluster.target(&format!("host=localhost {text}"), "home").unwrap();
        Pool::builder(pool_manager(&target, RecyclingMethod::Fast))
            .runtime(Runtime::Tokio1)
            .build()
            .unwrap()
    };
    cluster.block_on(async {
        let good = pool("user=secure sslmode=verify-full sslrootcert={dir}/ca.crt");
        assert_eq!(ask(&good.get().await.unwrap(), TLS_IN_USE).await, "t");

        let refused = pool_error(pool("user=password password=x").get().await.unwrap_err());
        assert_eq!(refused.sqlstate(), Some(&SqlState::INVALID_PASSWORD));
        let untrusted = pool("user=any sslmode=verify-ca sslrootcert={dir}/stranger.crt");
        let untrusted = pool_error(untrusted.get().await.unwrap_err());
        assert!(matches!(untrusted, ConnectError::Tls { .. }), "{untrusted:?}");
    });
}
