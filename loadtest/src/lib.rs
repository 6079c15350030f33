//! How fast a fleet of real worker processes runs tasks, beside the same SQL without a queue.
//!
//! The way through the files: `args` says what is wanted, `bench` has a server and the programs,
//! `scenarios` has a file for each thing that is measured. They use `database` (tables, fills),
//! `fleet` (worker processes), `drain` (a timed round of the fleet), `ceiling` (the same round
//! without a queue), `rounds` (cases take turns), `sample` (what is looked at once a second),
//! `effects` (exactly once?). What comes of it is a value of `result`. METHODOLOGY.md says what each
//! number means.

mod args;
mod bench;
mod ceiling;
mod database;
mod drain;
mod effects;
mod fleet;
mod latency;
mod peers;
mod plain;
mod process;
mod progress;
pub mod result;
mod rounds;
mod sample;
mod scenarios;
mod session;
mod words;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use cluster::{Signals, by_signal};
use queue::enqueue::database_now;
use queue::exit;
use tokio::task::spawn_blocking;

use crate::args::{Args, Command, Run};
use crate::bench::Bench;
use crate::peers::Peers;
use crate::result::{FORMAT, Results, Scenario};
use crate::scenarios::Kind;

/// The program: reads the command line, measures, says what it saw.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Nothing is left to do if not even the message can be written.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::OK });
        }
    };
    let done = match args.command {
        Command::Run(run) => measure(run, None),
        Command::List => list(),
        Command::Peers(peers) => measure(peers.run(), Some(&peers)),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("loadtest: {error:#}");
            ExitCode::from(exit::FAILURE)
        }
    }
}

fn list() -> Result<u8> {
    let lines: String = Kind::value_variants()
        .iter()
        .map(|kind| format!("{:<10} {}\n", kind.name(), kind.title()))
        .collect();
    std::io::stdout().write_all(lines.as_bytes())?;
    Ok(exit::OK)
}

/// The named scenarios, or the comparison with peers.
fn measure(run: Run, peers: Option<&Peers>) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before the start: from here on, a signal no longer ends this process without clean-up.
        let mut signals = Signals::new()?;
        let mut opening = spawn_blocking(|| Bench::open(run));
        let bench = tokio::select! {
            biased;
            signal = signals.next() => {
                // What it has begun, it has to end: then the cluster is dropped and gone.
                let _ = opening.await;
                return Ok(by_signal(signal.as_raw()));
            }
            opened = &mut opening => opened??,
        };
        // A measurement that is dropped kills its workers.
        let ended = tokio::select! {
            signal = signals.next() => Ok(by_signal(signal.as_raw())),
            ended = all(&bench, peers) => ended.and_then(|results| tell(&bench, &results)),
        };
        bench.progress.clear();
        bench.clean_up().await;
        ended
    })
}

/// Everything that was asked for, with what there is to know about all of it.
async fn all(bench: &Bench, peers: Option<&Peers>) -> Result<Results> {
    let admin = bench.admin().await?;
    let started_at = database_now(&*admin).await?;
    drop(admin);
    let mut results = Results {
        format: FORMAT,
        started_at: started_at.to_string(),
        command: command(std::env::args().skip(1)),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Results::default()
    };
    results.scenarios = match peers {
        Some(peers) => peers::measure(bench, peers).await?,
        None => named(bench).await?,
    };
    for scenario in &mut results.scenarios {
        scenario.notes.push(bench.settings_note());
        if cfg!(debug_assertions) {
            scenario.notes.push("debug build: these figures say nothing about speed".to_owned());
        }
    }
    Ok(results)
}

/// Every scenario that was named, one after the other.
async fn named(bench: &Bench) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for kind in bench.run.kinds() {
        let scenario = kind.run(bench).await;
        scenarios.push(scenario.with_context(|| format!("scenario {}", kind.name()))?);
    }
    Ok(scenarios)
}

/// The arguments, without the one that may hold a password.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut shown = vec!["loadtest".to_owned()];
    let mut hidden = false;
    for argument in arguments {
        if std::mem::take(&mut hidden) {
            continue;
        }
        hidden = argument == "--database-url";
        if !argument.starts_with("--database-url") {
            shown.push(argument);
        }
    }
    shown.join(" ")
}

/// Prints the results; the exit code says whether every check passed.
fn tell(bench: &Bench, results: &Results) -> Result<u8> {
    bench.progress.clear();
    let mut text = match bench.run.json {
        true => serde_json::to_string_pretty(results)?,
        false => plain::table(results),
    };
    text.push('\n');
    std::io::stdout().write_all(text.as_bytes()).context("could not print the results")?;
    let passed = results.scenarios.iter().flat_map(|it| &it.checks).all(|check| check.passed);
    Ok(if passed { exit::OK } else { exit::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_gets_into_the_results() {
        let shown = |arguments: &[&str]| command(arguments.iter().map(|&it| it.to_owned()));
        assert_eq!(
            shown(&["run", "drain", "--database-url", "postgres://u:p@h", "--json"]),
            "loadtest run drain --json"
        );
        assert_eq!(shown(&["run", "--database-url=postgres://u:p@h", "noop"]), "loadtest run noop");
    }
}
