//! The same SQL work through other job queues, in turns with pgmill's own workers: a fresh database
//! for each round of each, in one cluster.
//!
//! `catalog` names the peers and their settings, `install` puts them into a scratch folder,
//! `adapter` talks to the small program that each of them has. `backlog`, `pickup` and `submit` are
//! what is measured.

mod adapter;
mod backlog;
mod catalog;
mod install;
mod pickup;
mod submit;

use std::path::PathBuf;

use anyhow::Result;
use clap::builder::PossibleValuesParser;

use crate::args::Run;
use crate::bench::Bench;
use crate::database::Database;
use crate::result::{Case, Scenario};

use adapter::{Adapter, Done, PATIENCE, Place};
use catalog::{PEERS, Variant};

/// Beside the tables of the other scenarios. Times are the server's, and every row gets one, of
/// pgmill's tasks as of the peers'.
const TABLES: &str = "/* loadtest.peer_tables */
ALTER TABLE loadtest.effects ADD at timestamptz NOT NULL DEFAULT clock_timestamp();
CREATE TABLE loadtest.starts (
    task bigint NOT NULL, handler_at timestamptz, statement_at timestamptz NOT NULL)";

/// What every round begins with: nothing dead, statistics fresh, pages on disk.
const SETTLE: [&str; 2] =
    ["/* loadtest.peer_vacuum */ VACUUM (ANALYZE)", "/* loadtest.peer_checkpoint */ CHECKPOINT"];

/// Whom to compare with, and how.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Peers {
    /// Only this one; may be given more than once [default: all]
    #[arg(long, value_name = "NAME",
        value_parser = PossibleValuesParser::new(PEERS.iter().map(|peer| peer.name)))]
    peer: Vec<String>,
    /// Tasks in a round of a backlog; the slowest peers get a part of them
    #[arg(long, alias = "jobs", value_name = "N", default_value_t = 30_000,
        value_parser = clap::value_parser!(u32).range(100..))]
    tasks: u32,
    /// Rounds of each case; the cases take turns [default: 3; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Tasks that pgmill's worker runs at once [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    readers: Option<u32>,
    /// Folder to install peers into [default: .cache/pgmill-loadtest-peers in the home folder]
    #[arg(long, value_name = "DIR", env = "PGMILL_PEERS")]
    scratch: Option<PathBuf>,
    /// Print the results as one JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Small sizes: whether everything works, and roughly how fast
    #[arg(long)]
    quick: bool,
    /// Folder with initdb, pg_ctl and postgres, or with bin/ or native/bin/ that holds them
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
    /// Folder with the program `worker` [default: where this program is]
    #[arg(long, value_name = "DIR", env = "PGMILL_PROGRAMS")]
    programs: Option<PathBuf>,
}

impl Peers {
    /// What the bench has to know of it.
    pub(crate) fn run(&self) -> Run {
        Run {
            readers: self.readers,
            rounds: self.rounds,
            json: self.json,
            quick: self.quick,
            directory: self.directory.clone(),
            programs: self.programs.clone(),
            ..Run::default()
        }
    }

    fn tasks(&self) -> i64 {
        i64::from(if self.quick { (self.tasks / 10).max(100) } else { self.tasks })
    }
}

/// The peers that could be installed, and why the others could not.
struct Field {
    adapters: Vec<Adapter>,
    /// Name with version, reason.
    missing: Vec<(String, String)>,
}

/// Installs the peers and measures all three things.
///
/// # Errors
/// Database trouble, or trouble with pgmill's own worker. That of a peer is part of the result.
pub(crate) async fn measure(bench: &Bench, wanted: &Peers) -> Result<Vec<Scenario>> {
    let field = gather(bench, wanted).await?;
    let mut scenarios = vec![
        backlog::run(bench, &field, wanted.tasks()).await?,
        pickup::run(bench, &field).await?,
        submit::run(bench, &field, wanted.tasks()).await?,
    ];
    for scenario in &mut scenarios {
        for (name, reason) in &field.missing {
            scenario.cases.push(Case { name: format!("{name}: not installed"), ..Case::default() });
            scenario.notes.push(format!("{name} is not installed: {reason}"));
        }
    }
    Ok(scenarios)
}

async fn gather(bench: &Bench, wanted: &Peers) -> Result<Field> {
    let scratch = wanted.scratch.clone().unwrap_or_else(install::default_scratch);
    let scratch = std::path::absolute(scratch)?;
    let mut field = Field { adapters: Vec::new(), missing: Vec::new() };
    for peer in PEERS {
        if !wanted.peer.is_empty() && !wanted.peer.iter().any(|name| name == peer.name) {
            continue;
        }
        let name = format!("{} {}", peer.name, peer.version);
        bench.progress.stage(&format!("installing {name}"));
        match install::install(&scratch, peer).await {
            Ok(adapter) => field.adapters.push(adapter),
            Err(error) => {
                let reason = format!("{error:#}");
                bench.progress.line(&format!("{name} is not installed: {reason}"));
                field.missing.push((name, reason));
            }
        }
    }
    Ok(field)
}

/// Who takes part in a scenario, under what names.
struct Entry<'a> {
    /// `None` is pgmill itself.
    peer: Option<(&'a Adapter, &'static Variant)>,
    /// One for each number that a round gives.
    cases: Vec<Case>,
    /// Why it gave up.
    failed: Option<String>,
}

impl<'a> Entry<'a> {
    fn own(cases: Vec<Case>) -> Self {
        Self { peer: None, cases, failed: None }
    }

    fn peer(adapter: &'a Adapter, variant: &'static Variant, cases: Vec<Case>) -> Self {
        Self { peer: Some((adapter, variant)), cases, failed: None }
    }
}

/// Each entry once per round, forth in odd rounds and back in even ones. A peer that fails is out,
/// and its cases say so; pgmill must not fail.
async fn take_turns(
    bench: &Bench,
    scenario: &str,
    entries: &mut [Entry<'_>],
    mut measure: impl AsyncFnMut(usize, usize, Option<(&Adapter, &'static Variant)>) -> Result<Vec<f64>>,
) -> Result<()> {
    let rounds = bench.rounds();
    for (round, n) in turns(rounds, entries.len()) {
        let entry = &mut entries[n];
        if entry.failed.is_some() {
            continue;
        }
        let name = entry.cases[0].name.clone();
        let stage = format!("{scenario}: {name}, round {round} of {rounds}");
        bench.progress.stage(&stage);
        match measure(n, round, entry.peer).await {
            Ok(values) => {
                for (case, value) in entry.cases.iter_mut().zip(values) {
                    bench.progress.line(&format!("{stage}: {value:.2} {}", case.unit));
                    case.rounds.push(value);
                }
            }
            Err(error) if entry.peer.is_none() => return Err(error),
            Err(error) => {
                let reason = format!("{name} failed in round {round}: {error:#}");
                bench.progress.line(&reason);
                entry.failed = Some(reason);
                for case in &mut entry.cases {
                    case.name += ": failed";
                    case.rounds.clear();
                    case.percentiles = None;
                }
            }
        }
    }
    Ok(())
}

/// Rounds from 1, and places.
fn turns(rounds: usize, entries: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..=rounds).flat_map(move |round| {
        (0..entries).map(move |n| (round, if round % 2 == 1 { n } else { entries - 1 - n }))
    })
}

/// The entries' cases and what there is to say about them; `place` of pgmill's cases get the best
/// peer's for their reference, with this goal.
fn conclude(mut entries: Vec<Entry<'_>>, goals: &[(usize, Option<f64>)]) -> Scenario {
    for &(place, goal) in goals {
        let best = best_peer(&entries, place);
        for entry in entries.iter_mut().filter(|entry| entry.peer.is_none()) {
            let case = &mut entry.cases[place];
            (case.reference, case.goal) = (best.clone(), goal.filter(|_| best.is_some()));
        }
    }
    let mut scenario = Scenario::default();
    for entry in entries {
        scenario.notes.extend(entry.failed);
        if let Some((adapter, variant)) = entry.peer {
            let settings: Vec<&str> = variant.settings.split_whitespace().collect();
            let name = adapter.peer.case(variant);
            scenario.notes.push(format!(
                "{name}: {}; {}",
                settings.join(" "),
                adapter.peer.promise
            ));
        }
        scenario.cases.extend(entry.cases);
    }
    scenario
}

fn best_peer(entries: &[Entry<'_>], place: usize) -> Option<String> {
    let peers = entries.iter().filter(|entry| entry.peer.is_some() && entry.failed.is_none());
    let best = peers.map(|entry| &entry.cases[place]).reduce(|best, case| {
        let (Some(a), Some(b)) = (case.median(), best.median()) else { return best };
        let better = match case.better {
            crate::result::Better::Higher => a > b,
            crate::result::Better::Lower => a < b,
        };
        if better { case } else { best }
    });
    best.map(|case| case.name.clone())
}

/// A database of its own, for one round.
async fn fresh_database(bench: &Bench, n: usize, round: usize) -> Result<Database> {
    let database = bench.database(&format!("peers_{n}_{round}")).await?;
    database.session.batch_execute(TABLES).await?;
    Ok(database)
}

/// The same with the peer's own schema in it.
async fn set_up(database: &Database, adapter: &Adapter, variant: &Variant) -> Result<()> {
    let place = Place { url: database.url(), settings: variant.settings };
    let Done {} = adapter.step(place, "setup", PATIENCE).await?;
    Ok(())
}

async fn settle(database: &Database) -> Result<()> {
    for sql in SETTLE {
        database.session.batch_execute(sql).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::rate;

    fn entry(adapter: Option<&Adapter>, name: &str, rounds: &[f64]) -> Entry<'static> {
        let cases = vec![Case { rounds: rounds.to_vec(), ..rate(name) }];
        match adapter {
            None => Entry::own(cases),
            Some(_) => {
                let adapter = Box::leak(Box::new(Adapter::new(PEERS[0], "true".into(), None)));
                Entry::peer(adapter, &PEERS[0].backlog[0], cases)
            }
        }
    }

    #[test]
    fn odd_rounds_go_forth_and_even_ones_back() {
        let all: Vec<_> = turns(2, 3).collect();
        assert_eq!(all, [(1, 0), (1, 1), (1, 2), (2, 2), (2, 1), (2, 0)]);
    }

    #[test]
    fn pgmill_is_held_against_the_best_peer_that_did_not_fail() {
        let adapter = Adapter::new(PEERS[0], "true".into(), None);
        let failed = Entry {
            failed: Some("it broke".to_owned()),
            ..entry(Some(&adapter), "failed", &[900.0])
        };
        let entries = vec![
            entry(None, "pgmill", &[500.0]),
            entry(Some(&adapter), "slow", &[100.0]),
            entry(Some(&adapter), "fast", &[200.0]),
            failed,
        ];
        let scenario = conclude(entries, &[(0, Some(2.5))]);
        assert_eq!(scenario.cases[0].reference.as_deref(), Some("fast"));
        assert_eq!(scenario.met(&scenario.cases[0]), Some(true));
        assert!(scenario.notes.iter().any(|note| note == "it broke"));
        let alone = conclude(vec![entry(None, "pgmill", &[500.0])], &[(0, Some(2.5))]);
        assert_eq!((alone.cases[0].reference.clone(), alone.cases[0].goal), (None, None));
    }
}
