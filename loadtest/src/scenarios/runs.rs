//! Measures task graphs: a wide run, the same tasks as many small runs, and a chain. Checks that
//! the end of a task costs the same in a large run as in a small run, and in the last fifth of a
//! run as in the first.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{
    DrainProgress, Drained, FLEET, close_queue, done, open_queue, throughput,
};
use crate::measure::rounds::{against, alternate, case, rate};
use crate::measure::sample::Sampler;
use crate::report::number_format::short_count;
use crate::result::{Better, Case, Check, Scenario};
use crate::scenarios::throughput::pinned::fifths;

/// One task, $1 tasks that depend on it, and one task that depends on all of these.
const WIDE: &str = "WITH /* loadtest.wide_job */ job AS (INSERT INTO mill.jobs (name) VALUES ('graph') RETURNING name),
middle AS MATERIALIZED (
    SELECT 'middle ' || lpad(n::text, 9, '0') AS name FROM generate_series(1, $1::bigint) AS n
), task AS (
    INSERT INTO mill.job_tasks (job, name, statement)
    SELECT j.name, t.name, 'SELECT 1'
    FROM job j, (VALUES ('first'), ('last') UNION ALL SELECT m.name FROM middle m) AS t (name)
)
INSERT INTO mill.job_edges (job, child, parent)
SELECT j.name, e.child, e.parent
FROM job j, (SELECT m.name, 'first' FROM middle m UNION ALL SELECT 'last', m.name FROM middle m)
    AS e (child, parent)";

/// $1 tasks, each of which depends on the previous one.
const CHAIN: &str = "WITH /* loadtest.chain_job */ job AS (INSERT INTO mill.jobs (name) VALUES ('graph') RETURNING name),
link AS MATERIALIZED (
    SELECT 'link ' || lpad(n::text, 9, '0') AS name, n FROM generate_series(1, $1::bigint) AS n
), task AS (
    INSERT INTO mill.job_tasks (job, name, statement)
    SELECT j.name, l.name, 'SELECT 1' FROM job j, link l
)
INSERT INTO mill.job_edges (job, child, parent)
SELECT j.name, l.name, before.name FROM job j, link l JOIN link before ON before.n = l.n - 1";

const ANALYZE: &str =
    "ANALYZE /* loadtest.analyze_jobs */ mill.jobs, mill.job_tasks, mill.job_edges";

const START: &str =
    "SELECT /* loadtest.start_run */ s.run_id FROM mill.start_run(ARRAY['graph']) AS s";

const LEFT: &str =
    "SELECT /* loadtest.runs_left */ EXISTS (SELECT FROM mill.runs r WHERE r.state = 'running')";

/// Resets the statistics, so that the longest statement is one of this round.
pub(super) const FORGET: &str = "SELECT /* loadtest.forget_statements */ pg_stat_statements_reset(0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), 0)";

/// The longest of the statements that workers send, except the tasks' own; includes statements
/// inside functions.
const LONGEST: &str = r"SELECT /* loadtest.longest */ s.max_exec_time, substring(s.query FROM '/\* ((?:queue|worker)[.]\S+) \*/')
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query ~ '/\* (queue|worker)[.]'
ORDER BY s.max_exec_time DESC LIMIT 1";

/// Median milliseconds from the end of a task to the end of its child.
const STEP: &str =
    "SELECT /* loadtest.step */ percentile_cont(0.5) WITHIN GROUP (ORDER BY s.ms)::float8
FROM (SELECT 1000 * extract(epoch FROM c.finished_at - p.finished_at) AS ms
    FROM mill.run_edges e JOIN mill.attempts p ON p.run_id = e.run_id AND p.node = e.parent
        JOIN mill.attempts c ON c.run_id = e.run_id AND c.node = e.child) AS s";

/// Expected and actual counts, and the children that started before a parent had finished.
const OUTCOME: &str = "SELECT /* loadtest.runs_outcome */ (SELECT count(*) FROM mill.run_status s WHERE s.state = 'succeeded' AND s.succeeded = s.tasks),
    (SELECT count(*) FROM mill.run_tasks), (SELECT count(*) FROM mill.attempts),
    (SELECT count(DISTINCT (a.run_id, a.node)) FROM mill.attempts a
        JOIN mill.run_tasks t ON t.run_id = a.run_id AND t.node = a.node
        WHERE a.outcome = 'succeeded' AND t.state = 'succeeded'),
    (SELECT count(*) FROM mill.run_edges),
    (SELECT count(*) FROM mill.run_edges e JOIN mill.attempts p ON p.run_id = e.run_id AND p.node = e.parent
        JOIN mill.attempts c ON c.run_id = e.run_id AND c.node = e.child
        WHERE c.started_at >= p.finished_at)";

/// Number of tasks in the middle layer of a small run. With the first and the last task, the run
/// has a hundred.
const SMALL: i64 = 98;

/// Maximum time of any fleet statement in milliseconds, for runs of any size.
const BOUND: f64 = 1000.0;

/// Minimum ratio of the rate of the last fifth to that of the first, and of the rate of a wide run
/// to that of small runs.
const FLAT: f64 = 0.8;

/// A rate measured over a shorter time is not significant. A fifth of a quick run is shorter.
const MIN_SIGNIFICANT_TIME: Duration = Duration::from_secs(2);
/// A rate of fewer tasks is not significant, even if they take long: then the machine is busy with
/// other work.
const MIN_SIGNIFICANT_TASKS: i64 = 10_000;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// One job and its number of runs.
struct Shape {
    name: String,
    /// [`WIDE`] or [`CHAIN`].
    job: &'static str,
    /// Tasks in the middle layer, or in the chain.
    size: i64,
    runs: i64,
    /// Total number of tasks.
    tasks: i64,
    edges: i64,
}

impl Shape {
    fn wide(name: String, middle: i64, runs: i64) -> Self {
        let (tasks, edges) = ((middle + 2) * runs, 2 * middle * runs);
        Self { name, job: WIDE, size: middle, runs, tasks, edges }
    }

    fn chain(size: i64) -> Self {
        let name = format!("a chain of {}", short_count(size));
        Self { name, job: CHAIN, size, runs: 1, tasks: size, edges: size - 1 }
    }
}

/// Results of a round in addition to its rate.
struct Round {
    drained: Drained,
    /// Median time to start a run, in milliseconds.
    start: f64,
    /// Longest fleet statement; `None` if the server does not count statements.
    longest: Option<(f64, String)>,
    /// Rates of the first and the last fifth.
    fifths: (f64, f64),
    /// Median step in milliseconds.
    step: f64,
    checks: Vec<Check>,
}

/// Numbers in addition to the rates, one per round, indexed by case.
#[derive(Default)]
struct SecondaryMetrics {
    start: Vec<f64>,
    longest: Vec<f64>,
    first_fifth: Vec<f64>,
    last_fifth: Vec<f64>,
    step: Vec<f64>,
}

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let tasks = context.tasks(100_000, 5_000);
    let small = (tasks / 100).max(1);
    let shapes = [
        Shape::wide(format!("{} runs of 100", short_count(small)), SMALL, small),
        Shape::wide(format!("one run, {} side by side", short_count(tasks)), tasks, 1),
        Shape::chain((tasks / 10).max(2)),
    ];
    let [small, wide, chain] = &shapes;
    let mut cases = vec![
        rate(&small.name),
        against(rate(&wide.name), &small.name, Some(FLAT)),
        rate(&chain.name),
    ];
    let mut secondary = shapes.each_ref().map(|_| SecondaryMetrics::default());
    let mut checks = Vec::new();
    alternate(context, "runs", &mut cases, async |n, number| {
        let round = one(context, &fleet_spec, &shapes[n], number).await?;
        checks.extend(round.checks.into_iter().map(|check| {
            let what = format!("{}, {}, round {number}", check.what, shapes[n].name);
            Check { what, ..check }
        }));
        let secondary = &mut secondary[n];
        secondary.start.push(round.start);
        secondary.longest.extend(round.longest.map(|(ms, _)| ms));
        secondary.first_fifth.push(round.fifths.0);
        secondary.last_fifth.push(round.fifths.1);
        secondary.step.push(round.step);
        Ok(round.drained.into())
    })
    .await?;
    let mut notes = vec![
        format!(
            "{tasks} parallel tasks between one parent and one child; {}",
            fleet_spec.describe()
        ),
        "every round in a database of its own; a task is SELECT 1".to_owned(),
    ];
    if secondary[0].longest.is_empty() {
        notes.push(
            "longest statement not measured: the server has no pg_stat_statements".to_owned(),
        );
    }
    cases.extend(secondary_cases(&shapes, secondary));
    checks.extend(flat(&cases, tasks));
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// Returns the cases in addition to the rates.
fn secondary_cases(
    [small, wide, chain]: &[Shape; 3],
    [few, many, steps]: [SecondaryMetrics; 3],
) -> Vec<Case> {
    let ms = |name: String, rounds| Case { rounds, ..case(name, "ms", Better::Lower) };
    let first = format!("{}: first fifth", wide.name);
    let last = against(rate(format!("{}: last fifth", wide.name)), &first, Some(FLAT));
    let mut cases = vec![
        Case { rounds: many.first_fifth, ..rate(first) },
        Case { rounds: many.last_fifth, ..last },
        ms(format!("{}: start", wide.name), many.start),
        ms(format!("{}: start of one", small.name), few.start),
        ms(format!("{}: a step", chain.name), steps.step),
    ];
    for (shape, longest) in [(wide, many.longest), (small, few.longest), (chain, steps.longest)] {
        if !longest.is_empty() {
            let longest = ms(format!("{}: longest statement", shape.name), longest);
            cases.push(Case { goal: Some(BOUND), ..longest });
        }
    }
    cases
}

/// Checks that the cost of ending a task stays constant. Skips measurements that are too short to
/// tell.
fn flat(cases: &[Case], tasks: i64) -> Vec<Check> {
    let scenario = Scenario { cases: cases.to_vec(), ..Scenario::default() };
    #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
    let fifth = tasks as f64 / 5.0;
    let mut checks = Vec::new();
    for case in cases.iter().filter(|case| case.reference.is_some()) {
        let (Some(rate), Some(ratio)) = (case.median(), scenario.ratio(case)) else { continue };
        if tasks >= MIN_SIGNIFICANT_TASKS && fifth / rate >= MIN_SIGNIFICANT_TIME.as_secs_f64() {
            let reference = case.reference.as_deref().unwrap_or_default();
            checks.push(Check {
                what: format!("{} at {FLAT} of {reference}", case.name),
                passed: ratio >= FLAT,
                detail: format!("{ratio:.2}"),
            });
        }
    }
    checks
}

/// Runs one round: starts the runs while the queue is paused, resumes the queue and starts the
/// clock.
async fn one(
    context: &RunContext,
    fleet_spec: &FleetSpec,
    shape: &Shape,
    number: usize,
) -> Result<Round> {
    let database = context.database("runs").await?;
    let session = &database.session;
    session.execute(shape.job, &[&shape.size]).await?;
    session.batch_execute(ANALYZE).await?;
    database.vacuum_and_checkpoint().await?;
    close_queue(&database).await?;
    let mut fleet = Fleet::start(context, &database, fleet_spec).await?;
    if database.counts_statements {
        session.query_typed(FORGET, &[]).await?;
    }
    let mut starts = Vec::new();
    for _ in 0..shape.runs {
        let begun = Instant::now();
        session.query_typed(START, &[]).await?;
        starts.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    let sampler = Sampler::start(context, &database, fleet.pids()).await?;
    let opened_at = open_queue(&database).await?;
    until_ended(context, &database, &mut fleet).await?;
    let mut series = sampler.end(number);
    fleet.stop().await?;
    let longest = longest(&database).await?;
    let drained = done(session, FLEET, opened_at, None).await?;
    series.extend(throughput(session, FLEET, opened_at, &drained, number).await?);
    let mut checks = outcome(&database, shape).await?;
    checks.extend(longest.as_ref().map(within));
    let round = Round {
        drained: Drained { series, ..drained },
        start: Case { rounds: starts, ..Case::default() }.median().unwrap_or_default(),
        longest,
        fifths: fifths(session, shape.tasks).await?,
        step: session.query_typed(STEP, &[]).await?[0].get(0),
        checks,
    };
    context.drop_database(database).await?;
    Ok(round)
}

async fn until_ended(
    context: &RunContext,
    database: &Database,
    fleet: &mut Fleet<'_>,
) -> Result<()> {
    let session = &database.session;
    let mut gauge = DrainProgress::new(context, session).await?;
    let left = session.prepare(LEFT).await?;
    while session.query_one(&left, &[]).await?.get(0) {
        fleet.check()?;
        gauge.refresh().await.map_err(|error| error.context(fleet.tails()))?;
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn longest(database: &Database) -> Result<Option<(f64, String)>> {
    if !database.counts_statements {
        return Ok(None);
    }
    let rows = database.session.query_typed(LONGEST, &[]).await?;
    Ok(rows.first().map(|row| (row.get(0), row.get(1))))
}

fn within((ms, statement): &(f64, String)) -> Check {
    Check {
        what: format!("no statement of the fleet above {BOUND} ms"),
        passed: *ms <= BOUND,
        detail: format!("{statement}: {ms:.0} ms"),
    }
}

async fn outcome(database: &Database, shape: &Shape) -> Result<Vec<Check>> {
    let row = &database.session.query_typed(OUTCOME, &[]).await?[0];
    let [runs, tasks, attempts, succeeded, edges, kept] = [0, 1, 2, 3, 4, 5].map(|n| row.get(n));
    let wanted = (shape.runs, shape.tasks, shape.tasks, shape.tasks);
    let once = Check {
        what: "every run succeeded and every task ran once".to_owned(),
        passed: (runs, tasks, attempts, succeeded) == wanted,
        detail: format!("{runs} runs, {tasks} tasks, {attempts} attempts, {succeeded} succeeded"),
    };
    let order = Check {
        what: "every task started after its dependencies".to_owned(),
        passed: (edges, kept) == (shape.edges, shape.edges),
        detail: format!("{edges} edges, {kept} respected"),
    };
    Ok(vec![once, order])
}
