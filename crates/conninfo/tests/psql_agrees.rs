//! `psql` and this program connect to the same place with the same connection string.
//!
//! A listener takes the place of the server. It records the start-up packet and the password, and
//! refuses the connection. Each row is given to `psql` and to `conninfo`, and both must send the
//! same data to the same place.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use conninfo::{ConnectError, ConnectionTarget, Environment, open};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// A connection string, or none, and its environment variables. `{p1}` and `{p2}` stand for the
/// ports of two listeners, `{dead}` for a port without a listener, `{dir}` for a directory with a
/// socket, and `{enc}` for the same directory percent-encoded.
type Row = (Option<&'static str>, &'static [(&'static str, &'static str)]);

const HERE: &[(&str, &str)] = &[("PGHOST", "127.0.0.1"), ("PGPORT", "{p2}")];
const SERVICES: (&str, &str) = ("PGSERVICEFILE", "{dir}/services");

/// Connection strings with which psql reaches a listener.
const ARRIVING: &[Row] = &[
    (None, HERE),
    (None, &[("PGHOST", "127.0.0.1"), ("PGPORT", "{p1}"), ("PGUSER", "u"), ("PGDATABASE", "d")]),
    (None, &[("PGHOSTADDR", "127.0.0.1"), ("PGPORT", "{p1}"), ("PGUSER", "u")]),
    (None, &[("PGHOST", "{dir}"), ("PGPORT", "{p1}"), ("PGUSER", "u")]),
    (Some("bare name"), HERE),
    (Some(""), HERE),
    // Key and value.
    (Some("host=127.0.0.1 port={p1} user=alice dbname=sales"), &[]),
    (Some("host = 127.0.0.1   port= {p1} user ='o'dbname=d"), &[]),
    (Some(r"host=127.0.0.1 port={p1} user='o\'neil \\ x' dbname=a\ b"), &[]),
    (Some("host=127.0.0.1 port={p2} port={p1} user=last"), HERE),
    (Some("host=127.0.0.1 port={p1} user=alice"), &[("PGDATABASE", "envdb"), ("PGUSER", "no")]),
    (Some("port={p1} user=alice dbname=''"), HERE),
    (Some("host=localhost hostaddr=127.0.0.1 port={p1} user=h"), &[]),
    (Some("hostaddr=127.0.0.1 port=' {p1} ' user=h"), &[]),
    (Some("host={dir} port={p1} user=socket"), &[]),
    (Some("host=127.0.0.1,127.0.0.1 port={dead},{p1} user=second"), &[]),
    (Some("host=127.0.0.1,{dir} port={dead},{p1} user=second"), &[]),
    (Some("host=a,b hostaddr=127.0.0.1,127.0.0.1 port={dead},{p2} user=second"), &[]),
    (Some("host=no-such-host.invalid,127.0.0.1 port={p1} user=second"), &[]),
    (Some("user=x options='-c geqo=off' application_name='my app'"), HERE),
    (Some("user=x"), &[HERE[0], HERE[1], ("PGOPTIONS", "-c a.b=1"), ("PGAPPNAME", "env app")]),
    (Some("user=x sslmode=disable gssencmode=disable keepalives=0 connect_timeout=3"), HERE),
    (Some("user=x sslmode=prefer channel_binding=disable tcp_user_timeout=0"), HERE),
    // URIs.
    (Some("postgres://alice@127.0.0.1:{p1}/sales"), &[]),
    (Some("postgresql://alice:secret@127.0.0.1:{p1}/sales"), &[]),
    (Some("postgresql://al%69ce:s%40%3A%2Fx@127.0.0.1:{p1}/d%20b%2F"), &[]),
    (Some("postgresql://127.0.0.1:{p1}?user=q&dbname=p&application_name=a%26b"), &[]),
    (Some("postgresql:///sales?host={dir}&port={p1}&user=s"), &[]),
    (Some("postgresql://s@{enc}:{p1}/sales"), &[]),
    (Some("postgresql://"), HERE),
    (Some("postgresql://bob@/sales"), HERE),
    (Some("postgresql://:{p1}/sales"), &[("PGHOST", "127.0.0.1"), ("PGUSER", "u")]),
    (Some("postgresql://m@127.0.0.1:{dead},127.0.0.1:{p2}/sales"), &[]),
    (Some("postgresql://m@127.0.0.1:{p1}/sales?options=-c%20geqo%3Doff&sslmode=disable&"), &[]),
    (Some("postgresql://m:@127.0.0.1:{p1}/"), &[("PGPASSWORD", "from env")]),
    (Some("postgresql://m@[::1]:{dead},127.0.0.1:{p1}/?ssl=true&sslmode=disable"), &[]),
    // The service file.
    (Some("service=one"), &[SERVICES]),
    (None, &[SERVICES, ("PGSERVICE", "one")]),
    (Some("service=one user=string"), &[SERVICES, ("PGUSER", "env"), ("PGDATABASE", "env")]),
    (None, &[SERVICES, ("PGSERVICE", "part"), HERE[0], HERE[1], ("PGUSER", "env")]),
    (Some("postgresql://uri@/?service=one"), &[SERVICES]),
    (Some("service=home"), &[]),
    (Some("service=system"), &[("PGSYSCONFDIR", "{dir}/sys")]),
    (Some("service=system"), &[SERVICES, ("PGSYSCONFDIR", "{dir}/sys")]),
    // Passwords.
    (Some("user=x password=string"), &[HERE[0], HERE[1], ("PGPASSWORD", "env")]),
    (Some("user=x"), &[HERE[0], HERE[1], ("PGPASSWORD", "env")]),
    (Some("user=x password=''"), &[HERE[0], HERE[1], ("PGPASSFILE", "{dir}/passwords")]),
    (Some("user=filed"), &[HERE[0], HERE[1], ("PGPASSFILE", "{dir}/passwords")]),
    (Some("user=filed host=localhost passfile={dir}/passwords"), HERE),
    (Some("user='co:lon' dbname='back\\\\slash' passfile={dir}/passwords"), HERE),
    (Some("user=filed host={dir} port={p1} passfile={dir}/passwords"), &[]),
    (Some("user=filed hostaddr=127.0.0.1 host=alias port={p1} passfile={dir}/passwords"), &[]),
    (Some("user=filed host=127.0.0.1 port={p1} passfile={dir}/readable_passwords"), &[]),
    (Some("user=home host=127.0.0.1 port={p1}"), &[]),
    (
        Some("user=filed host=127.0.0.1,alias hostaddr=127.0.0.1,127.0.0.1 port={dead},{p1}"),
        &[("PGPASSFILE", "{dir}/passwords")],
    ),
];

/// Connection strings with which psql reaches no listener.
const REFUSED: &[Row] = &[
    (Some("host=127.0.0.1 port={p1} hots=x"), &[]),
    (Some("host=127.0.0.1 port={p1} user='o''x"), &[]),
    (Some("host=127.0.0.1 port={p1} user='x"), &[]),
    (Some("host=127.0.0.1 port={p1} user"), &[]),
    (Some("host=127.0.0.1 port={p1},{p2},1"), &[]),
    (Some("host=127.0.0.1 port=0"), &[]),
    (Some("host=127.0.0.1 port=nonsense"), &[]),
    (Some("host=127.0.0.1 hostaddr=127.0.0.1,127.0.0.1 port={p1}"), &[]),
    (Some("host=127.0.0.1 port={p1} sslmode=maybe"), &[]),
    (Some("host=127.0.0.1 port={p1} sslmode=require"), &[]),
    (Some("host=127.0.0.1 port={p1} connect_timeout=soon"), &[]),
    (Some("host=127.0.0.1 port={p1} channel_binding=sometimes"), &[]),
    (Some("host=127.0.0.1 port={p1} service=missing"), &[SERVICES]),
    (Some("service=nested"), &[SERVICES]),
    (Some("service=spaced"), &[SERVICES]),
    (Some("host=127.0.0.1 port={p1}"), &[("PGSERVICE", "one"), ("PGSERVICEFILE", "{dir}/none")]),
    (Some("host=127.0.0.1 port={p1}"), &[("PGSERVICE", ""), SERVICES]),
    (Some("host=127.0.0.1 port={p1}"), &[("PGTARGETSESSIONATTRS", "leader")]),
    (Some("host=127.0.0.1 port={p1}"), &[("PGSSLMODE", "verify-full")]),
    (Some("postgres://127.0.0.1:{p1}/%zz"), &[]),
    (Some("postgres://127.0.0.1:{p1}/d?user"), &[]),
    (Some("postgres://127.0.0.1:{p1}/d?user=a=b"), &[]),
    (Some("postgres://[::1:{p1}/d"), &[]),
    (Some("postgres://127.0.0.1:{p1}/d?nonsense=1"), &[]),
];

const SERVICE_FILE: &str = "\
# comment
[other]
host=nowhere
[one]
host=127.0.0.1
port={p1}
user=service user
dbname=service db
dbname=never
application_name='quoted'
[part]
dbname=part
[nested]
host=127.0.0.1
port={p1}
service=one
[spaced]
host = 127.0.0.1
port = {p1}
";

const PASSWORD_FILE: &str = "\
# *:*:*:*:comment
127.0.0.1:{p1}:*:filed:one
127.0.0.1:*:*:filed:an\\:y\\\\x
localhost:*:*:filed:local
{dir}:*:*:filed:socket
alias:{p1}:filed:filed:alias
*:*:back\\\\slash:co\\:lon:escaped
*:*:*:x:for x
";

/// The data that a client sent, and the place to which it sent them.
#[derive(Debug, PartialEq, Eq)]
struct Arrival {
    place: &'static str,
    parameters: BTreeMap<String, String>,
    password: Option<String>,
}

enum Event {
    Arrival(Arrival),
    /// All earlier connections to a listener have been served.
    Flushed,
}

const SSL_REQUEST: u32 = 80_877_103;
const GSSENC_REQUEST: u32 = 80_877_104;
const FLUSH: u32 = 80_877_102;

fn read_u32(stream: &mut impl Read) -> Option<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).ok()?;
    Some(u32::from_be_bytes(bytes))
}

fn read_body(stream: &mut impl Read, length: u32, read: u32) -> Option<Vec<u8>> {
    let mut body = vec![0; usize::try_from(length - read).ok()?];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

/// Serves one client: refuses encryption, asks for a clear-text password, then refuses the
/// connection.
fn serve(stream: &mut (impl Read + Write), place: &'static str) -> Option<Event> {
    let body = loop {
        let length = read_u32(stream)?;
        match read_u32(stream)? {
            SSL_REQUEST | GSSENC_REQUEST => stream.write_all(b"N").ok()?,
            FLUSH => return Some(Event::Flushed),
            _ => break read_body(stream, length, 8)?,
        }
    };
    let text = String::from_utf8(body).unwrap();
    let mut words = text.split('\0');
    let mut parameters = BTreeMap::new();
    while let Some(name) = words.next().filter(|name| !name.is_empty()) {
        if matches!(name, "user" | "database" | "options" | "application_name") {
            parameters.insert(name.to_owned(), words.next().unwrap().to_owned());
        } else {
            words.next();
        }
    }
    stream.write_all(b"R\0\0\0\x08\0\0\0\x03").ok()?;
    let password = password(stream);
    Some(Event::Arrival(Arrival { place, parameters, password }))
}

fn password(stream: &mut impl Read) -> Option<String> {
    stream.read_exact(&mut [0]).ok()?;
    let length = read_u32(stream)?;
    let body = read_body(stream, length, 4)?;
    Some(String::from_utf8(body).unwrap().trim_end_matches('\0').to_owned())
}

fn refuse(stream: &mut impl Write) {
    let fields = b"SFATAL\0VFATAL\0C3D000\0Mnobody may enter\0\0";
    let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
    // The client may be gone already.
    let _ = stream.write_all(&[b"R\0\0\0\x08\0\0\0\0E", &length[..], fields].concat());
}

fn listen<S: Read + Write + Send + 'static>(
    incoming: impl Fn() -> S + Send + 'static,
    place: &'static str,
    events: Sender<Event>,
) {
    thread::spawn(move || {
        loop {
            let mut stream = incoming();
            if let Some(event) = serve(&mut stream, place)
                && events.send(event).is_err()
            {
                return;
            }
            refuse(&mut stream);
        }
    });
}

struct Stage {
    directory: PathBuf,
    ports: [u16; 2],
    dead_port: u16,
    events: Receiver<Event>,
    os_user: String,
}

impl Stage {
    fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("psql-agrees-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("sys")).unwrap();
        let (sender, events) = channel();
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, two, dead) = (bind(), bind(), bind());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let (ports, dead_port) = ([port(&one), port(&two)], port(&dead));
        let socket = UnixListener::bind(directory.join(format!(".s.PGSQL.{}", ports[0]))).unwrap();
        listen(move || one.accept().unwrap().0, "port one", sender.clone());
        listen(move || two.accept().unwrap().0, "port two", sender.clone());
        listen(move || socket.accept().unwrap().0, "socket", sender);
        let id = Command::new("id").arg("-un").output().unwrap();
        let os_user = String::from_utf8(id.stdout).unwrap().trim().to_owned();
        let stage = Self { directory, ports, dead_port, events, os_user };
        stage.write("services", SERVICE_FILE, 0o600);
        stage.write("passwords", PASSWORD_FILE, 0o600);
        stage.write("readable_passwords", PASSWORD_FILE, 0o644);
        stage.write(".pgpass", "*:*:*:home:from home\n", 0o600);
        let service = "host=127.0.0.1\nport={p2}\nuser=filed\n";
        stage.write(".pg_service.conf", &format!("[home]\n{service}"), 0o644);
        stage.write("sys/pg_service.conf", &format!("[system]\n{service}"), 0o644);
        stage
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        let path = self.directory.join(name);
        std::fs::write(&path, self.fill(text)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn fill(&self, text: &str) -> String {
        let directory = self.directory.display().to_string();
        text.replace("{p1}", &self.ports[0].to_string())
            .replace("{p2}", &self.ports[1].to_string())
            .replace("{dead}", &self.dead_port.to_string())
            .replace("{enc}", &directory.replace('/', "%2F"))
            .replace("{dir}", &directory)
    }

    fn variables(&self, row: &Row) -> Vec<(String, String)> {
        let home = ("HOME".to_owned(), self.directory.display().to_string());
        let given = row.1.iter().map(|(name, value)| ((*name).to_owned(), self.fill(value)));
        given.chain([home]).collect()
    }

    /// Returns the arrivals that were recorded since the last call.
    fn arrivals(&self) -> Vec<Arrival> {
        let flush = [8_u32.to_be_bytes(), FLUSH.to_be_bytes()].concat();
        for port in self.ports {
            TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(&flush).unwrap();
        }
        let socket = self.directory.join(format!(".s.PGSQL.{}", self.ports[0]));
        UnixStream::connect(socket).unwrap().write_all(&flush).unwrap();
        let mut arrivals = Vec::new();
        let mut flushed = 0;
        while flushed < 3 {
            match self.events.recv().unwrap() {
                Event::Arrival(arrival) => arrivals.push(arrival),
                Event::Flushed => flushed += 1,
            }
        }
        arrivals
    }

    fn psql(&self, psql: &Path, row: &Row) -> (Vec<Arrival>, String) {
        let output = Command::new(psql)
            .args(["-X", "-w", "-c", ""])
            .args(row.0.map(|text| self.fill(text)))
            .env_clear()
            .envs(self.variables(row))
            .output()
            .unwrap();
        (self.arrivals(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn ours(&self, row: &Row) -> (Vec<Arrival>, String) {
        let env = Environment::from_variables(self.variables(row), Some(&self.os_user));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let text = row.0.map(|text| self.fill(text));
        let error = match ConnectionTarget::resolve(text.as_deref(), &env) {
            Err(error) => error.to_string(),
            Ok(target) => {
                // Without a name of the user, psql sends its own name.
                let target = match target.application_name() {
                    Some(_) => target,
                    None => target.with_application_name("psql"),
                };
                match runtime.block_on(open(&target)) {
                    Ok(_) => "unexpectedly accepted".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
        };
        (self.arrivals(), error)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn psql() -> Option<PathBuf> {
    let found = Command::new("sh").args(["-c", "command -v psql"]).output().unwrap();
    let path = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    if path.is_empty() {
        println!("skipped: no psql on PATH");
    }
    (!path.is_empty()).then(|| path.into())
}

#[test]
fn psql_and_this_program_reach_the_same_place() {
    let Some(psql) = psql() else { return };
    let stage = Stage::new();
    let mut complaints = Vec::new();
    for (rows, arriving) in [(ARRIVING, true), (REFUSED, false)] {
        for row in rows {
            let (theirs, their_error) = stage.psql(&psql, row);
            let (ours, our_error) = stage.ours(row);
            if theirs != ours || theirs.is_empty() == arriving {
                complaints.push(format!(
                    "{row:?}\n  psql: {theirs:?} {their_error}\n  ours: {ours:?} {our_error}"
                ));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_silent_server_times_out() {
    // The kernel completes the TCP handshake, but no process accepts the connection.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text =
        format!("host=127.0.0.1 port={} connect_timeout=1", silent.local_addr().unwrap().port());
    let env = Environment::from_variables([("PGUSER", "u")], None);
    let target = ConnectionTarget::resolve(Some(&text), &env).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(open(&target)).err().unwrap();
    assert!(matches!(error, ConnectError::TimedOut { seconds: 1, .. }), "{error}");
}
