//! Measures many schedules: the cost of a tick that finds no due schedule, the time until all
//! schedules that are due at the same instant have fired, and the delay of a single fire.
//!
//! | measurement | file |
//! |---|---|
//! | first statement of a tick, while no schedule is due | `tick` |
//! | schedules that are all due at the same instant | `burst` |
//! | one schedule that fires every second on an otherwise idle fleet | `delay` |

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::time::sleep;
use tokio_postgres::types::{ToSql, Type};

use crate::context::RunContext;
use crate::context::database::Database;
use crate::context::session::Session;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::latency::LatencyHistogram;
use crate::measure::rounds::{Measured, against, alternate, case};
use crate::report::number_format::short_count;
use crate::result::{Better, Case, Check, Scenario};

mod burst;
mod delay;
mod tick;

/// Creates schedules that fire once a day, between two and twenty-two hours from now, so that none
/// is due during the measurement.
const SET: &str = "SELECT /* loadtest.set_schedules */ count(mill.set_schedule('schedule ' || lpad(n::text, 9, '0'), format('daily(%s)', to_char(
    now() AT TIME ZONE 'UTC' + interval '2 hours' + (n - 1) * interval '20 hours' / $1::float8, 'HH24:MI:SS')),
    'SELECT 1'))
FROM generate_series(1, $1::bigint) AS n";

const PLANNED: &str = "SELECT /* loadtest.planned */ NOT EXISTS (SELECT FROM mill.schedules s WHERE s.next_fire_at IS NULL)";

/// Does the same as [`Database::vacuum_and_checkpoint`] for the tables of schedules.
const SETTLE: &str = "VACUUM /* loadtest.vacuum_schedules */ (ANALYZE) mill.schedules, mill.schedule_log, mill.jobs, mill.job_tasks, mill.job_edges, mill.runs,
    mill.run_tasks, mill.run_edges, mill.run_events";

/// Number of schedules in the reference case.
const FEW: i64 = 100;

/// Maximum duration of a tick with many schedules, and maximum delay of a fire, in milliseconds.
const BOUND: f64 = 100.0;

/// Maximum ratio of the duration of a tick with many schedules to that of a tick with few.
const FLAT: f64 = 1.5;

/// Number of buffers that a tick with many schedules may read in addition: its indexes are one or
/// two levels deeper.
const DEEPER: f64 = 2.0;

/// Time limit for computing the first instants of many schedules.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Numbers in addition to the alternating cases, one value per round.
#[derive(Default)]
struct SecondaryMetrics {
    longest_tick: [Vec<f64>; 2],
    in_server: [Vec<f64>; 2],
    buffers: [Vec<f64>; 2],
    ticks: [Option<LatencyHistogram>; 2],
    fires: Vec<f64>,
    longest_delay: Vec<f64>,
    delays: Option<LatencyHistogram>,
    checks: Vec<Check>,
}

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec =
        FleetSpec::new(context.run.workers.unwrap_or(2), context.run.readers.unwrap_or(8));
    let many = context.tasks(10_000, 1_000);
    let ticked = [
        planned(context, "schedules_few", &fleet_spec, FEW).await?,
        planned(context, "schedules_many", &fleet_spec, many).await?,
    ];
    let fired = planned(context, "schedules_burst", &fleet_spec, many).await?;
    let words = short_count(many);
    let few = format!("a tick, {FEW} schedules");
    let mut cases = vec![
        ms(&few),
        against(ms(&format!("a tick, {words} schedules")), &few, Some(FLAT)),
        case(format!("{words} due at once, until every run has ended"), "s", Better::Lower),
        Case { goal: Some(BOUND), ..ms("delay of a fire") },
    ];
    let mut secondary = SecondaryMetrics::default();
    alternate(context, "schedules", &mut cases, async |n, round| match n {
        0 | 1 => secondary.tick(n, tick::round(context, &ticked[n]).await?),
        2 => {
            let burst = burst::round(context, &fired, &fleet_spec, (many, round)).await?;
            secondary.fires.push(burst.fires);
            secondary.checks.extend(burst.checks);
            Ok(Measured { value: burst.seconds, series: burst.series })
        }
        _ => secondary.delay(delay::round(context, &fleet_spec, round).await?),
    })
    .await?;
    for database in ticked.into_iter().chain([fired]) {
        context.drop_database(database).await?;
    }
    let mut notes = vec![
        format!(
            "{} ticks and {} fires per round, {}",
            tick::ticks(context),
            delay::fires(context),
            fleet_spec.describe()
        ),
        "a schedule is daily(…) at a second of its own, of one task, SELECT 1".to_owned(),
    ];
    if secondary.buffers[0].is_empty() {
        notes
            .push("buffers of a tick (the processing of due schedules) not counted: the server has no pg_stat_statements".to_owned());
    }
    let checks =
        secondary.flat().into_iter().chain(std::mem::take(&mut secondary.checks)).collect();
    let cases = secondary_cases(cases, secondary, &words);
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

impl SecondaryMetrics {
    fn tick(&mut self, n: usize, round: tick::Round) -> Result<Measured> {
        let value = round.times.at(50.0);
        self.longest_tick[n].push(round.times.at(100.0));
        if let Some(cost) = round.cost {
            self.in_server[n].push(cost.ms);
            self.buffers[n].push(cost.buffers);
        }
        gather(&mut self.ticks[n], round.times)?;
        Ok(Measured { value, ..Measured::default() })
    }

    fn delay(&mut self, round: delay::Round) -> Result<Measured> {
        let value = round.times.at(50.0);
        self.longest_delay.push(round.times.at(100.0));
        self.checks.push(round.check);
        gather(&mut self.delays, round.times)?;
        Ok(Measured { value, ..Measured::default() })
    }

    /// Checks that in every round a tick reads no more pages with many schedules than with few.
    fn flat(&self) -> Option<Check> {
        let [few, many] = &self.buffers;
        let deeper = few.iter().zip(many).map(|(few, many)| many - few).fold(f64::NAN, f64::max);
        (!few.is_empty()).then(|| Check {
            what: format!(
                "a tick with many schedules reads at most {DEEPER} buffers more than one with {FEW}"
            ),
            passed: deeper <= DEEPER,
            detail: format!("{deeper:.2} more"),
        })
    }
}

fn gather(all: &mut Option<LatencyHistogram>, times: LatencyHistogram) -> Result<()> {
    match all {
        Some(all) => all.merge(&times),
        None => {
            *all = Some(times);
            Ok(())
        }
    }
}

fn ms(name: &str) -> Case {
    case(name, "ms", Better::Lower)
}

/// Returns the cases together with their secondary numbers.
fn secondary_cases(mut cases: Vec<Case>, secondary: SecondaryMetrics, words: &str) -> Vec<Case> {
    let sizes = [FEW.to_string(), words.to_owned()];
    let [.., delay] = &mut cases[..] else { return cases };
    delay.percentiles = secondary.delays.as_ref().map(LatencyHistogram::percentiles);
    let name = format!("{words} due at once, fires");
    let fires = Case { rounds: secondary.fires, ..case(name, "fires/s", Better::Higher) };
    let longest_delay =
        Case { rounds: secondary.longest_delay, ..ms("delay of a fire, the longest") };
    for (case, times) in cases.iter_mut().zip(&secondary.ticks) {
        case.percentiles = times.as_ref().map(LatencyHistogram::percentiles);
    }
    for (size, rounds) in sizes.iter().zip(secondary.longest_tick) {
        let goal = (size == words).then_some(BOUND);
        cases.push(Case { rounds, goal, ..ms(&format!("a tick, {size} schedules, the longest")) });
    }
    for (size, rounds) in sizes.iter().zip(secondary.in_server) {
        cases.push(Case { rounds, ..ms(&format!("a tick, {size} schedules, in the server")) });
    }
    for (size, rounds) in sizes.iter().zip(secondary.buffers) {
        let name = format!("a tick, {size} schedules, buffers");
        cases.push(Case { rounds, ..case(name, "buffers", Better::Lower) });
    }
    cases.extend([fires, longest_delay]);
    cases.retain(|case| !case.rounds.is_empty());
    cases
}

/// Returns a database with `schedules` schedules whose first instants the fleet has computed.
async fn planned(
    context: &RunContext,
    label: &str,
    fleet_spec: &FleetSpec,
    schedules: i64,
) -> Result<Database> {
    context.progress.stage(&format!("schedules: creating {schedules}"));
    let database = context.database(label).await?;
    database.session.query_typed(SET, &[(&schedules, Type::INT8)]).await?;
    let mut fleet = Fleet::start(context, &database, fleet_spec).await?;
    until(&database.session, &mut fleet, PLANNED, &[]).await?;
    fleet.stop().await?;
    vacuum_and_checkpoint(&database).await?;
    Ok(database)
}

async fn vacuum_and_checkpoint(database: &Database) -> Result<()> {
    database.session.batch_execute(SETTLE).await?;
    database.vacuum_and_checkpoint().await
}

/// Returns once the query returns true.
async fn until(
    session: &Session,
    fleet: &mut Fleet<'_>,
    question: &str,
    values: &[(&(dyn ToSql + Sync), Type)],
) -> Result<()> {
    let begun = Instant::now();
    while !session.query_typed(question, values).await?[0].get::<_, bool>(0) {
        fleet.check()?;
        ensure!(
            begun.elapsed() < TIMEOUT,
            "condition not met after {TIMEOUT:?}: {question}{}",
            fleet.tails()
        );
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
