//! Checks that the real pgbouncer starts with pgbouncer.ini. `tests/attempts/pooler.rs` tests that client
//! programs work through the pooler.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster::Port;

use crate::{Check, Tools, root};

const SUBJECT: &str = "pgbouncer";
const STARTS: &str = "pgbouncer.ini: the pooler starts, listens, and logs no warning";
const TOOL: &str = "pgbouncer";

/// Number of attempts to connect, 50 ms apart.
const MAX_POLLS: usize = 100;

/// Log levels of rejected settings and of fatal errors.
const LOG_LEVELS: [&str; 4] = ["WARNING", "ERROR", "FATAL", "CRIT"];

pub(crate) fn run(tools: &Tools) -> Result<Vec<Check>> {
    let Some(version) = tools.run(tools.command(TOOL).arg("--version"), "")? else {
        return Ok(vec![Check::skipped(SUBJECT, STARTS, TOOL, "apt-get install pgbouncer")]);
    };
    let version = version.out.lines().next().unwrap_or(TOOL).to_owned();
    let folder = std::env::temp_dir().join(format!("pgmill-pgbouncer-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let objections = start(tools, &folder);
    fs::remove_dir_all(&folder)?;
    Ok(vec![Check::found(SUBJECT, STARTS, &version, &objections?)])
}

/// Starts the pooler on a free port with the shipped files, and returns its complaints.
fn start(tools: &Tools, folder: &Path) -> Result<Vec<String>> {
    let reserved = Port::reserve()?;
    let port = reserved.number();
    let users = folder.join("userlist.txt");
    fs::copy(root().join("deploy/pgbouncer/userlist.example.txt"), &users)?;
    let shipped = fs::read_to_string(root().join("deploy/pgbouncer/pgbouncer.ini"))?;
    let placed = |line: &str| match line.split_once(" = ").map_or(line, |(name, _)| name) {
        "listen_port" => format!("listen_port = {port}\n"),
        "unix_socket_dir" => "unix_socket_dir =\n".to_owned(),
        "auth_file" => format!("auth_file = {}\n", users.display()),
        _ => format!("{line}\n"),
    };
    let file = folder.join("pgbouncer.ini");
    fs::write(&file, shipped.lines().map(placed).collect::<String>())?;
    let log = folder.join("log");
    let mut command = tools.command(TOOL);
    if rustix::process::geteuid().is_root() {
        // pgbouncer refuses to run as root; the other user must be able to read these files, which
        // contain no secrets.
        command.args(["-u", "nobody"]);
        use std::os::unix::fs::PermissionsExt;
        for (path, mode) in [(folder, 0o755), (&users, 0o644), (&file, 0o644)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
    }
    let child = command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child =
        child.stderr(File::create(&log)?).spawn().context("pgbouncer does not start")?;
    let listens = until_listening(&mut child, port);
    let _ = child.kill();
    child.wait()?;
    let output = fs::read_to_string(&log)?;
    let objects = |line: &&str| LOG_LEVELS.iter().any(|word| line.contains(word));
    let mut found: Vec<String> = output.lines().filter(objects).map(str::to_owned).collect();
    if !listens {
        found.push(format!(
            "pgbouncer does not listen: {}",
            output.lines().last().unwrap_or("no output")
        ));
    }
    Ok(found)
}

fn until_listening(child: &mut Child, port: u16) -> bool {
    (0..MAX_POLLS).any(|_| {
        sleep(Duration::from_millis(50));
        TcpStream::connect(("127.0.0.1", port)).is_ok() || !matches!(child.try_wait(), Ok(None))
    }) && matches!(child.try_wait(), Ok(None))
}
