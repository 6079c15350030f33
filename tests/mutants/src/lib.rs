//! Plants bugs in the product, and counts those that the tests find.
//!
//! A mutant is a version of the product with one bug: a text of one file is replaced. `catalog` reads
//! the mutants. `suite` runs tests against a mutant; a test that fails *kills* it. The tests install
//! the mutated schema instead of the product's own, so mutants of `schema/` need no build. `scratch`
//! builds the worker with a mutant of Rust code, in a copy of the sources. `trial` runs the mutants,
//! `outcome` is the result of one, `report` prints all of them, `session` is a connection to the
//! server of the tests.

mod catalog;
mod outcome;
mod report;
mod scratch;
mod session;
mod suite;
mod trial;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use cli::exit;
use cluster::{Binaries, Cluster, Options, until_signal};
use serde_json::json;

use catalog::Mutant;
use outcome::Outcome;
use suite::{Replacement, Suite};
use trial::Plan;

/// Plants bugs in the product and counts those that the tests find
#[derive(Parser)]
#[command(name = "mutants", version, max_term_width = 100, after_help = AFTER_HELP)]
struct Args {
    /// Run only a few mutants of the schema
    #[arg(long)]
    short: bool,
    /// Run only mutants whose line in --list contains one of these texts
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    only: Vec<String>,
    /// Print the mutants without running them
    #[arg(long)]
    list: bool,
    /// Run all tests against a mutant that its expected tests do not find
    #[arg(long)]
    full: bool,
    /// Do not run the tests without a mutant first; for a run that repeats parts of an earlier one
    #[arg(long)]
    no_control: bool,
    /// Write the results into this page, between its two markers; the page keeps the results of
    /// other mutants
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    write: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Time limit for the expected tests of one mutant
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = cli::duration::parse)]
    time_limit: Duration,
    /// Number of mutants that are tested at once
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Folder of cargo for builds
    #[arg(long, value_name = "DIR", env = "CARGO_TARGET_DIR")]
    target: Option<PathBuf>,
    /// Folder with the server's programs
    #[arg(long = "pg", value_name = "DIR", env = "PGMILL_PG_BIN")]
    directory: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  mutants
  mutants --short
  mutants --only reclaim permit --full
  mutants --write tests/mutants/results.txt

Exit codes: 0 the tests find every mutant that is not harmless; 1 a mutant survives, or an error; 2
usage; 128 + n ended by signal n";

/// Time limit for all tests.
const FULL_LIMIT: Duration = Duration::from_secs(1800);

/// Runs the program: parses the command line, tests the mutants, reports the outcomes.
#[must_use]
pub fn main() -> ExitCode {
    cli::main(|| run(&Args::try_parse()?))
}

fn run(args: &Args) -> Result<u8> {
    let mut mutants = catalog::mutants()?;
    let wanted = |mutant: &Mutant| args.only.iter().any(|text| line(mutant).contains(text));
    mutants.retain(|mutant| mutant.short || !args.short);
    mutants.retain(|mutant| args.only.is_empty() || wanted(mutant));
    ensure!(!mutants.is_empty(), "no mutant matches \"{}\"", args.only.join("\" or \""));
    if args.list {
        cli::print(|out| mutants.iter().try_for_each(|mutant| writeln!(out, "{}", line(mutant))))?;
        return Ok(exit::OK);
    }
    let binaries = Binaries::find_or_install(args.directory.as_deref())?;
    cli::many_threads()?.block_on(until_signal("mutants", run_mutants(args, &mutants, binaries)))
}

fn line(mutant: &Mutant) -> String {
    format!("{}, {}: {}", mutant.name, mutant.file, mutant.breaks)
}

async fn run_mutants(args: &Args, mutants: &[Mutant], binaries: Binaries) -> Result<u8> {
    let begun = Instant::now();
    let repository = catalog::repository().canonicalize()?;
    let plan = Plan {
        folder: trial::folder(&repository, args.target.clone()),
        repository,
        limit: args.time_limit,
        full: args.full.then_some(FULL_LIMIT),
        control: !args.no_control,
        jobs: usize::from(args.jobs),
    };
    let cluster = Cluster::start(Options { fsync: false, ..Options::new(binaries) })?;
    eprintln!("mutants: building the tests");
    std::fs::create_dir_all(&plan.folder)?;
    let suite = &Suite::build(&plan.repository, &plan.folder.join("tests"), cluster).await?;
    let done = parking_lot::Mutex::new(0);
    let report = |outcome: &Outcome| {
        let mut done = done.lock();
        *done += 1;
        let seconds = begun.elapsed().as_secs();
        eprintln!("[{}/{}, {seconds} s] {outcome}", *done, mutants.len());
    };
    let (schema, worker): (Vec<Mutant>, Vec<Mutant>) =
        mutants.iter().cloned().partition(Mutant::in_schema);
    if !schema.is_empty() {
        trial::control(suite, &schema, &plan, &Replacement::default()).await?;
    }
    let mut outcomes = trial::schema_mutants(suite, &schema, &plan, &report).await?;
    outcomes.extend(trial::worker_mutants(suite, &worker, &plan, &report).await?);
    let place = |outcome: &Outcome| mutants.iter().position(|m| m.name == outcome.mutant.name);
    outcomes.sort_by_key(place);
    finish(args, &outcomes)
}

fn finish(args: &Args, outcomes: &[Outcome]) -> Result<u8> {
    if let Some(page) = &args.write {
        report::write(page, outcomes, &catalog::mutants()?)?;
    }
    if args.json {
        let mutants: Vec<_> = outcomes.iter().map(Outcome::json).collect();
        let killed = outcomes.iter().filter(|outcome| outcome.killed()).count();
        let document = json!({"mutants": mutants, "killed": killed, "total": outcomes.len()});
        cli::print(|out| writeln!(out, "{document:#}"))?;
    } else {
        cli::print(|out| writeln!(out, "{}", report::totals(outcomes)))?;
    }
    Ok(if outcomes.iter().all(Outcome::passed) { exit::OK } else { exit::FAILURE })
}
