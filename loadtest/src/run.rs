//! Executes one run: every requested scenario, or the comparison with other queues, in sequence.
//!
//! A run may take hours. A scenario that fails is therefore part of the results, with a failed
//! check and its completed rounds, and the remaining scenarios still run. A signal ends the run and
//! prints the results so far.

use anyhow::{Context, Result};
use cli::exit;
use cluster::{Signals, signal_exit_code};
use queue::enqueue::database_now;
use rustix::process::Signal;
use terminal::print_stderr;
use tokio::task::spawn_blocking;

use crate::args::{Peers, Run};
use crate::context::RunContext;
use crate::measure::machine;
use crate::peers::{backlog, install, latency};
use crate::report::compare::{Comparison, compare};
use crate::report::page;
use crate::report::table;
use crate::result::{Check, FORMAT, Results, Scenario};

/// Measures, prints the results, and returns the exit code.
///
/// # Errors
/// Returns an error if nothing can be measured: a program is missing, no server is available, or
/// the results to compare with cannot be read.
pub(crate) fn measure(run: Run, peers: Option<&Peers>) -> Result<u8> {
    // Fail before hours of work, not after.
    let before = run.common.compare.as_deref().map(page::read).transpose()?;
    let runtime = cli::many_threads()?;
    runtime.block_on(async {
        // Install the handlers before the server starts: from then on, no signal ends this process
        // without clean-up.
        let mut signals = Signals::new()?;
        let mut opening = spawn_blocking(|| RunContext::open(run));
        let context = tokio::select! {
            biased;
            signal = signals.next() => {
                // Let the start finish; dropping the context then removes the cluster.
                let _ = opening.await;
                return Ok(signal_exit_code(signal.as_raw()));
            }
            opened = &mut opening => opened??,
        };
        let mut results = Results::default();
        // Dropping a measurement kills its workers.
        let ended = tokio::select! {
            signal = signals.next() => Ok(Some(signal)),
            ended = all(&context, peers, &mut results) => ended.map(|()| None),
        };
        context.progress.clear();
        // A private cluster is removed as a whole, so only the databases of another server need
        // clean-up.
        if context.cluster().is_none() {
            context.clean_up().await;
        }
        let signal = ended?;
        if let Some(signal) = signal {
            interrupted(&context, &mut results, signal);
        }
        let code = show(&context, &results, before.as_ref())?;
        Ok(signal.map_or(code, |signal| signal_exit_code(signal.as_raw())))
    })
}

/// Measures all scenarios, and adds each to the results when it ends.
async fn all(context: &RunContext, peers: Option<&Peers>, results: &mut Results) -> Result<()> {
    context.progress.stage("inspecting the server");
    // A separate database: measuring a commit needs a table.
    let database = context.database("place").await?;
    *results = Results {
        format: FORMAT,
        started_at: database_now(&*database.session).await?.to_string(),
        command: command(std::env::args().skip(1)),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: machine::machine(),
        server: machine::server(&database.session).await?,
        scenarios: Vec::new(),
    };
    context.drop_database(database).await?;
    let Some(peers) = peers else {
        for spec in context.run.scenarios() {
            part(context, results, (spec.name, spec.title), (spec.run)(context)).await;
        }
        return Ok(());
    };
    let participants = install::gather(context, &peers.peer, peers.scratch.as_deref()).await?;
    let backlog = ("peers", "a backlog, each task one INSERT, through other job queues");
    let run = backlog::run(context, &participants, peers.tasks());
    part(context, results, backlog, run).await;
    let pickup = "pick-up latency of an idle worker: from enqueue commit to statement start";
    let run = latency::run(context, &participants);
    part(context, results, ("peers-latency", pickup), run).await;
    Ok(())
}

/// Measures one scenario, and drops its databases. A failed scenario is part of the results too.
async fn part(
    context: &RunContext,
    results: &mut Results,
    (name, title): (&str, &str),
    run: impl Future<Output = Result<Scenario>>,
) {
    let (name, title) = (name.to_owned(), title.to_owned());
    context.keep(&Scenario { name, title, ..Scenario::default() });
    let scenario = match run.await {
        Ok(scenario) => scenario,
        Err(error) => {
            let scenario = context.so_far();
            context.progress.line(&format!("{} failed: {error:#}", scenario.name));
            broken_off(scenario, format!("{error:#}"))
        }
    };
    context.clean_up().await;
    results.scenarios.push(noted(context, scenario));
}

fn noted(context: &RunContext, mut scenario: Scenario) -> Scenario {
    keep_numbers(&mut scenario);
    scenario.notes.push(context.settings_note());
    if cfg!(debug_assertions) {
        scenario.notes.push("debug build: these figures are not representative".to_owned());
    }
    scenario
}

/// Returns the scenario with its completed rounds and the reason why it ended early.
fn broken_off(mut scenario: Scenario, reason: String) -> Scenario {
    let what = format!("{} completed", scenario.name);
    scenario.checks.push(Check { what, passed: false, detail: reason });
    scenario
}

/// Adds the scenario in progress to the results.
fn interrupted(context: &RunContext, results: &mut Results, signal: Signal) {
    let scenario = context.so_far();
    if scenario.name.is_empty() || results.scenarios.iter().any(|known| known.name == scenario.name)
    {
        return;
    }
    let reason = format!("interrupted by signal {}", signal.as_raw());
    results.scenarios.push(noted(context, broken_off(scenario, reason)));
}

/// Removes cases with a non-finite round: JSON cannot represent infinity, and a median would be
/// meaningless.
fn keep_numbers(scenario: &mut Scenario) {
    let mut without = Vec::new();
    for case in &mut scenario.cases {
        if case.rounds.iter().any(|value| !value.is_finite()) {
            case.rounds.clear();
            without.push(case.name.clone());
        }
        for series in &mut case.series {
            series.points.retain(|(at, value)| at.is_finite() && value.is_finite());
        }
    }
    if !without.is_empty() {
        scenario.checks.push(Check {
            what: "every round produced a number".to_owned(),
            passed: false,
            detail: format!("exceptions: {}", without.join(", ")),
        });
    }
}

/// Returns the arguments without the connection string, which may contain a password.
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

/// Prints the results and the comparison with an earlier run; the exit code reports failed checks
/// and regressions.
fn show(context: &RunContext, results: &Results, before: Option<&Results>) -> Result<u8> {
    if results.scenarios.is_empty() {
        return Ok(exit::FAILURE);
    }
    let comparison = before.map(|before| compare(before, results));
    let compared = comparison.as_ref().map(Comparison::text).unwrap_or_default();
    let text = match context.run.common.json {
        true => serde_json::to_string(results)?,
        false => format!("{}\n\n{compared}", table::text(results)),
    };
    cli::print(|out| writeln!(out, "{}", text.trim_end()))
        .context("could not print the results")?;
    if context.run.common.json && comparison.is_some() {
        print_stderr(format_args!("{compared}"));
    }
    let failed = results.checks().any(|check| !check.passed)
        || comparison.is_some_and(|comparison| comparison.regressions > 0);
    Ok(if failed { exit::FAILURE } else { exit::OK })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Case, Series};

    #[test]
    fn no_password_gets_into_the_results() {
        let shown = |arguments: &[&str]| command(arguments.iter().map(|&it| it.to_owned()));
        assert_eq!(
            shown(&["run", "drain", "--database-url", "postgres://u:p@h", "--json"]),
            "loadtest run drain --json"
        );
        assert_eq!(shown(&["run", "--database-url=postgres://u:p@h", "noop"]), "loadtest run noop");
    }

    #[test]
    fn an_invalid_number_is_reported_and_left_out() {
        let points = vec![(0.0, 1.0), (1.0, f64::NAN)];
        let case = Case {
            name: "divided by nothing".into(),
            rounds: vec![1.0, f64::INFINITY],
            series: vec![Series { points, ..Series::default() }],
            ..Case::default()
        };
        let good = Case { rounds: vec![2.0], ..Case::default() };
        let mut scenario = Scenario { cases: vec![case, good], ..Scenario::default() };
        keep_numbers(&mut scenario);
        assert_eq!(scenario.cases[0].rounds, [0.0; 0]);
        assert_eq!(scenario.cases[0].series[0].points, [(0.0, 1.0)]);
        assert_eq!(scenario.cases[1].rounds, [2.0]);
        assert!(!scenario.checks[0].passed && scenario.checks.len() == 1);
        let text = serde_json::to_string(&scenario).unwrap();
        assert_eq!(serde_json::from_str::<Scenario>(&text).unwrap(), scenario);
    }
}
