//! A real pgbouncer between clients and the server.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use cluster::Port;

use super::{Database, eventually};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A pgbouncer process, killed on drop.
pub(crate) struct Pooler {
    child: Child,
    folder: PathBuf,
    port: Port,
}

impl Pooler {
    /// Starts a pooler for the database's server with this pool mode and additional lines of
    /// configuration. The lines of `for_database` follow the server's address. Prints a message and
    /// returns `None` if pgbouncer is not installed.
    pub(crate) async fn start(
        database: &Database,
        mode: &str,
        settings: &str,
        for_database: &str,
    ) -> Option<Self> {
        let configuration = |server: &str, port: u16, users: &Path| {
            format!(
                "[databases]\n* = {server} {for_database}\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = trust\nauth_file = {}\npool_mode = {mode}\n{settings}\n",
                users.display()
            )
        };
        Self::launch(database, configuration).await
    }

    /// Starts a pooler with a complete configuration file in which only the server, the port and
    /// the user list are replaced. The database may have any name.
    pub(crate) async fn start_as_in(database: &Database, file: &str) -> Option<Self> {
        let configuration = |server: &str, port: u16, users: &Path| {
            let placed = |line: &str| match line.split_once(" = ").unwrap_or((line, "")).0 {
                "app" => format!("* = {server}"),
                "listen_port" => format!("listen_port = {port}"),
                "unix_socket_dir" => "unix_socket_dir =".to_owned(),
                "auth_file" => format!("auth_file = {}", users.display()),
                _ => line.to_owned(),
            };
            file.lines().flat_map(|line| [placed(line), "\n".to_owned()]).collect()
        };
        Self::launch(database, configuration).await
    }

    async fn launch(
        database: &Database,
        configuration: impl FnOnce(&str, u16, &Path) -> String,
    ) -> Option<Self> {
        let places = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];
        let Some(program) = places.into_iter().find(|place| Path::new(place).exists()) else {
            println!("skipped: pgbouncer is not installed");
            return None;
        };
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("pgmill-pooler-{}-{n}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let port = Port::reserve().unwrap();
        let url = database.url();
        let (login, place) = url.split_once("://").unwrap().1.rsplit_once('@').unwrap();
        let (user, password) = login.split_once(':').unwrap();
        let (host, server_port) = place.split_once('/').unwrap().0.split_once(':').unwrap();
        let users = folder.join("users");
        fs::write(&users, format!("\"{user}\" \"{password}\"\n")).unwrap();
        let server = format!("host={host} port={server_port}");
        let text = configuration(&server, port.number(), &users);
        let configuration = folder.join("pgbouncer.ini");
        fs::write(&configuration, text).unwrap();
        // pgbouncer refuses to run as root. The user that it switches to must be able to read these
        // files.
        for (path, mode) in [(&folder, 0o755), (&users, 0o644), (&configuration, 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let mut command = Command::new(program);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        let log = File::create(folder.join("log")).unwrap();
        let child = command.arg(&configuration).stdin(Stdio::null()).stdout(Stdio::null());
        let child = child.stderr(log).spawn().unwrap();
        let number = port.number();
        let pooler = Self { child, folder, port };
        eventually("the pooler listens", async || {
            TcpStream::connect(("127.0.0.1", number)).is_ok()
        })
        .await;
        Some(pooler)
    }

    /// Returns the first reply to a client with this startup parameter: `R` (authentication) or `E`
    /// (error).
    pub(crate) fn answers_a_start_with(&self, parameter: &str, value: &str) -> char {
        let words = ["user", "postgres", "database", "postgres", parameter, value, ""];
        let words: Vec<u8> =
            words.iter().flat_map(|word| [word.as_bytes(), &[0]].concat()).collect();
        let length = u32::try_from(words.len() + 8).unwrap();
        let version: u32 = 3 << 16;
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number())).unwrap();
        stream
            .write_all(&[&length.to_be_bytes(), &version.to_be_bytes(), &words[..]].concat())
            .unwrap();
        let mut kind = [0];
        stream.read_exact(&mut kind).unwrap();
        char::from(kind[0])
    }

    /// Returns the database's URL through the pooler.
    pub(crate) fn url(&self, database: &Database) -> String {
        let url = database.url();
        let (login, place) = url.rsplit_once('@').unwrap();
        format!("{login}@127.0.0.1:{}/{}", self.port.number(), place.split_once('/').unwrap().1)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            eprintln!("--- log of the pooler\n{log}");
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
