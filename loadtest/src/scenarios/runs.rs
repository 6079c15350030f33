//! Measures task graphs: a wide run, and the same tasks as many small runs. Checks that the end of a
//! task costs the same in a large run as in a small run, and in the last fifth of a run as in the
//! first.

use std::time::Duration;

use anyhow::Result;

use crate::context::RunContext;
use crate::context::database::Database;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{Drained, FLEET, done};
use crate::measure::rounds::{Measured, against, alternate, at_most, rate};
use crate::measure::sample::Sampler;
use crate::report::number_format::short_count;
use crate::result::{Check, Scenario};
use crate::scenarios::throughput::pinned::with_fifths;

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

const START: &str =
    "SELECT /* loadtest.start_run */ s.run_id FROM mill.start_run(ARRAY['graph']) AS s";

const ENDED: &str = "SELECT /* loadtest.runs_ended */ NOT EXISTS (SELECT FROM mill.runs r WHERE r.state = 'running')";

/// Resets the statistics, so that the longest statement is one of this round.
pub(super) const FORGET: &str = "SELECT /* loadtest.forget_statements */ pg_stat_statements_reset(0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), 0)";

/// The longest of the statements that workers send, except the tasks' own; includes statements
/// inside functions.
const LONGEST: &str = r"SELECT /* loadtest.longest */ s.max_exec_time, substring(s.query FROM '/\* ((?:queue|worker)[.]\S+) \*/')
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query ~ '/\* (queue|worker)[.]'
ORDER BY s.max_exec_time DESC LIMIT 1";

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

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let tasks = context.tasks(100_000, 5_000);
    let few = (tasks / 100).max(1);
    let small = format!("{} runs of 100", short_count(few));
    let wide = format!("one run, {} side by side", short_count(tasks));
    // Name, tasks in the middle layer, and number of runs.
    let shapes = [(&small, SMALL, few), (&wide, tasks, 1)];
    let cases = vec![rate(&small), against(rate(&wide), &small, Some(FLAT))];
    let mut scenario = alternate(context, cases, async |n, round| {
        let database = context.database("runs").await?;
        let (name, middle, runs) = shapes[n];
        let session = &database.session;
        let mut measured: Measured =
            one(context, &database, &fleet_spec, (middle, runs, round)).await?.into();
        if n == 1 {
            measured =
                with_fifths(measured, session, name, ((middle + 2) * runs, Some(FLAT))).await?;
        }
        if database.counts_statements
            && let Some(row) = session.query_typed(LONGEST, &[]).await?.first()
        {
            let longest = at_most(format!("{name}: longest statement"), "ms", BOUND);
            let (ms, statement): (f64, String) = (row.get(0), row.get(1));
            measured = measured.also(longest, ms).check(Check {
                what: format!("no statement of the fleet above {BOUND} ms"),
                passed: ms <= BOUND,
                detail: format!("{statement}: {ms:.0} ms"),
            });
        }
        measured = measured.check(outcome(&database, middle, runs).await?);
        context.drop_database(database).await?;
        Ok(measured)
    })
    .await?;
    scenario.notes = vec![
        format!(
            "{tasks} parallel tasks between one parent and one child; {}",
            fleet_spec.describe()
        ),
        "every round in a database of its own; a task is SELECT 1".to_owned(),
    ];
    let flat = flat(&scenario, tasks);
    scenario.checks.extend(flat);
    Ok(scenario)
}

/// Checks that the cost of ending a task stays constant. Skips measurements that are too short to
/// tell.
fn flat(scenario: &Scenario, tasks: i64) -> Vec<Check> {
    #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
    let fifth = tasks as f64 / 5.0;
    let mut checks = Vec::new();
    for case in scenario.cases.iter().filter(|_| tasks >= MIN_SIGNIFICANT_TASKS) {
        let (Some(rate), Some(ratio)) = (case.median(), scenario.ratio(case)) else { continue };
        if fifth / rate >= MIN_SIGNIFICANT_TIME.as_secs_f64() {
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
    database: &Database,
    fleet_spec: &FleetSpec,
    (middle, runs, round): (i64, i64, usize),
) -> Result<Drained> {
    let session = &database.session;
    session.execute(WIDE, &[&middle]).await?;
    database.vacuum_and_checkpoint().await?;
    database.pause().await?;
    let mut fleet = Fleet::start(context, database, fleet_spec).await?;
    if database.counts_statements {
        session.query_typed(FORGET, &[]).await?;
    }
    for _ in 0..runs {
        session.query_typed(START, &[]).await?;
    }
    let sampler = Sampler::start(context, database, fleet.pids()).await?;
    let resumed_at = database.resume().await?;
    fleet.until(ENDED, &[]).await?;
    let series = sampler.end(round);
    fleet.stop().await?;
    let mut drained = done(session, FLEET, (resumed_at, None), round).await?;
    drained.series.extend(series);
    Ok(drained)
}

async fn outcome(database: &Database, middle: i64, runs: i64) -> Result<Check> {
    let row = &database.session.query_typed(OUTCOME, &[]).await?[0];
    let counts @ [succeeded, tasks, attempts, ran, edges, kept]: [i64; 6] =
        [0, 1, 2, 3, 4, 5].map(|n| row.get(n));
    let (all, wanted) = ((middle + 2) * runs, 2 * middle * runs);
    Ok(Check {
        what: "every run succeeded and every task ran once, after its dependencies".to_owned(),
        passed: counts == [runs, all, all, all, wanted, wanted],
        detail: format!(
            "{succeeded} runs, {tasks} tasks, {attempts} attempts, {ran} succeeded; {edges} edges, \
             {kept} respected"
        ),
    })
}
