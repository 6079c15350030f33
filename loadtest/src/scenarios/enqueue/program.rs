//! Measures the program `enqueue` from process start to end: one task compared with `psql -c`, and
//! a long list of statements with its memory.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::measure::latency::LatencyHistogram;
use crate::measure::process::{peak_bytes, resident_bytes};
use crate::measure::rounds::{case, rate};
use crate::result::{Better, Case, Check, Scenario, Series};

const ONE: &str = "enqueue program, one task";
const PSQL: &str = "psql -c, one task";

const PSQL_STATEMENT: &str = "SELECT mill.enqueue('SELECT 1')";

/// Permitted growth of the memory, in MB, after the first fifth of a list.
const FLAT_MB: f64 = 2.0;

const MB: f64 = 1024.0 * 1024.0;

const COUNT: &str = "SELECT /* loadtest.submitted */ count(*) FROM mill.tasks";

/// Adds the cases and checks to the scenario.
pub(crate) async fn measure(
    context: &RunContext,
    database: &Database,
    scenario: &mut Scenario,
) -> Result<()> {
    let starts = context.size(100, 30);
    let (mut one, mut psql) = (LatencyHistogram::new()?, LatencyHistogram::new()?);
    let mut one_case = Case { goal: Some(15.0), ..case(ONE, "ms", Better::Lower) };
    let mut psql_case = case(PSQL, "ms", Better::Lower);
    let lines = context.size(1_000_000, 100_000);
    let mut lines_rate = rate("enqueue program, --lines");
    let mut memory = case("enqueue program, --lines: peak memory", "MB", Better::Lower);
    let list = write_list(context, lines)?;
    let psql_program = psql_program(context).await;
    for round in 1..=context.rounds() {
        context.progress.stage(&format!("enqueue: {ONE}, round {round}"));
        let (mut ones, mut psqls) = (LatencyHistogram::new()?, LatencyHistogram::new()?);
        for _ in 0..starts {
            ones.add(start_to_end(enqueue_one(context, database)).await?);
            if let Some(psql) = &psql_program {
                psqls.add(start_to_end(psql_one(psql, database)?).await?);
            }
        }
        one_case.rounds.push(ones.at(50.0));
        psql_case.rounds.push(psqls.at(50.0));
        one.merge(&ones)?;
        psql.merge(&psqls)?;
        context.progress.stage(&format!("enqueue: {lines} lines, round {round}"));
        database.empty().await?;
        let long = submit_list(context, database, &list, round).await?;
        lines_rate.rounds.push(f64::from(lines) / long.seconds);
        memory.rounds.push(long.peak_mb);
        scenario.checks.push(long.flat);
        scenario.checks.push(count(database, lines, round).await?);
        memory.series.push(long.series);
        let measured = [&one_case, &psql_case, &lines_rate, &memory].map(Clone::clone);
        context.keep(&[&scenario.cases[..], &measured].concat());
    }
    one_case.percentiles = Some(one.percentiles());
    scenario.cases.push(one_case);
    if psql_program.is_some() {
        psql_case.percentiles = Some(psql.percentiles());
        scenario.cases.push(psql_case);
    } else {
        scenario
            .notes
            .push("psql not measured: psql was not found, or the URL has no password".to_owned());
    }
    scenario.cases.extend([lines_rate, memory]);
    scenario
        .notes
        .push(format!("programs: {starts} starts per round; --lines: {lines} statements"));
    Ok(())
}

async fn count(database: &Database, lines: u32, round: usize) -> Result<Check> {
    let there: i64 = database.session.query_typed(COUNT, &[]).await?[0].get(0);
    Ok(Check {
        what: format!("every line became a task, round {round}"),
        passed: there == i64::from(lines),
        detail: format!("{lines} lines, {there} tasks"),
    })
}

/// Writes a file with one statement per line.
fn write_list(context: &RunContext, lines: u32) -> Result<PathBuf> {
    let path = context.directory.join("statements.sql");
    let mut file = BufWriter::new(File::create(&path)?);
    for n in 1..=lines {
        writeln!(file, "{}", EFFECT.replace("%s", &n.to_string()))?;
    }
    file.flush()?;
    Ok(path)
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

fn enqueue_one(context: &RunContext, database: &Database) -> Command {
    let mut command = Command::new(context.program("enqueue"));
    command.arg("SELECT 1").env("DATABASE_URL", database.url());
    quiet(command)
}

/// Returns the psql of the private cluster's server, or else the one in PATH.
async fn psql_program(context: &RunContext) -> Option<PathBuf> {
    let cluster = context.cluster()?;
    let same_directory = {
        let cluster = cluster.lock();
        cluster.binaries().directory().join("psql")
    };
    let program = if same_directory.is_file() { same_directory } else { PathBuf::from("psql") };
    let mut version = Command::new(&program);
    version.arg("--version");
    start_to_end(quiet(version)).await.is_ok().then_some(program)
}

/// Builds the psql command; the password is passed through the environment, the rest as arguments.
fn psql_one(program: &PathBuf, database: &Database) -> Result<Command> {
    let (before, rest) =
        database.url().split_once("//").context("the connection string is not a URL")?;
    let (credentials, place) = rest.split_once('@').context("the URL has no user")?;
    let (user, password) = credentials.split_once(':').context("the URL has no password")?;
    let mut command = Command::new(program);
    command
        .args(["--no-psqlrc", "--quiet", "--no-password", "--command", PSQL_STATEMENT])
        .args(["--dbname", &format!("{before}//{user}@{place}")])
        .env("PGPASSWORD", password);
    Ok(quiet(command))
}

/// Returns the milliseconds from the start of a program to its end.
async fn start_to_end(mut command: Command) -> Result<f64> {
    let begun = Instant::now();
    let output = command.spawn().context("could not run a program")?.wait_with_output().await?;
    let took = begun.elapsed();
    let reported = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "a program ended with {}: {reported}", output.status);
    Ok(took.as_secs_f64() * 1000.0)
}

/// Result of submitting a long list.
struct Long {
    seconds: f64,
    peak_mb: f64,
    flat: Check,
    series: Series,
}

async fn submit_list(
    context: &RunContext,
    database: &Database,
    list: &PathBuf,
    round: usize,
) -> Result<Long> {
    let mut command = Command::new(context.program("enqueue"));
    command.arg("--lines").arg("--file").arg(list).env("DATABASE_URL", database.url());
    let begun = Instant::now();
    let mut child = quiet(command).spawn()?;
    let pid = child.id().context("the program has no pid")?;
    let mut points = Vec::new();
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak = peak_bytes(pid).unwrap_or(peak);
        if let Some(bytes) = resident_bytes(pid) {
            points.push((begun.elapsed().as_secs_f64(), mb(bytes)));
        }
        sleep(Duration::from_millis(20)).await;
    };
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(status.success(), "enqueue --lines ended with {status}");
    let peak_of = |points: &[(f64, f64)]| points.iter().map(|(_, mb)| *mb).fold(0.0, f64::max);
    // The program keeps the ids until the commit and prints them afterwards, so some growth is
    // expected.
    let fifth = (points.len() / 5).max(1).min(points.len());
    let (early, late) = (peak_of(&points[..fifth]), peak_of(&points[fifth..]));
    let flat = Check {
        what: format!("the memory of enqueue --lines is flat, round {round}"),
        passed: late - early <= FLAT_MB,
        detail: format!("at most {early:.1} MB in the first fifth, {late:.1} MB after it"),
    };
    let series = Series { name: "enqueue memory".to_owned(), unit: "MB".to_owned(), round, points };
    Ok(Long { seconds, peak_mb: mb(peak), flat, series })
}

#[expect(clippy::cast_precision_loss, reason = "a size in MB")]
fn mb(bytes: u64) -> f64 {
    bytes as f64 / MB
}
