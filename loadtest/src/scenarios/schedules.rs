//! Many schedules: what a tick costs that finds nothing due, how long it takes until all have fired
//! that were due at the same instant, and how late a single one fires.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::time::sleep;
use tokio_postgres::types::{ToSql, Type};

use crate::bench::Bench;
use crate::database::Database;
use crate::fleet::{Crew, Fleet};
use crate::latency::Times;
use crate::result::{Better, Case, Check, Scenario};
use crate::rounds::{Measured, against, alternate, case};
use crate::session::Session;
use crate::words::count_words;

mod burst;
mod delay;
mod tick;

/// Once a day each, between two and twenty-two hours from now: none is due while this is measured.
const SET: &str = "/* loadtest.set_schedules */
SELECT count(mill.set_schedule('schedule ' || lpad(n::text, 9, '0'), format('daily(%s)', to_char(
    now() AT TIME ZONE 'UTC' + interval '2 hours' + (n - 1) * interval '20 hours' / $1::float8, 'HH24:MI:SS')),
    'SELECT 1'))
FROM generate_series(1, $1::bigint) AS n";

const PLANNED: &str = "/* loadtest.planned */
SELECT NOT EXISTS (SELECT FROM mill.schedules s WHERE s.next_fire_at IS NULL)";

/// As [`Database::settle`], for what schedules are made of.
const SETTLE: &str = "/* loadtest.vacuum_schedules */
VACUUM (ANALYZE) mill.schedules, mill.schedule_log, mill.jobs, mill.job_tasks, mill.job_edges, mill.runs,
    mill.run_tasks, mill.run_edges, mill.run_events";

/// The others are held against so many.
const FEW: i64 = 100;

/// In milliseconds: a tick of many schedules, and a fire.
const BOUND: f64 = 100.0;

/// Of the time of a tick of few.
const FLAT: f64 = 1.5;

/// Buffers: a level or two of an index.
const DEEPER: f64 = 2.0;

/// The longest that is waited for is that the first instants of many schedules are worked out.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is told beside the cases that take turns, one value per round.
#[derive(Default)]
struct Beside {
    longest_tick: [Vec<f64>; 2],
    in_server: [Vec<f64>; 2],
    buffers: [Vec<f64>; 2],
    ticks: [Option<Times>; 2],
    fires: Vec<f64>,
    longest_delay: Vec<f64>,
    delays: Option<Times>,
    checks: Vec<Check>,
}

pub(crate) async fn run(bench: &Bench) -> Result<Scenario> {
    let crew = Crew::of(bench.run.workers.unwrap_or(2), bench.run.readers.unwrap_or(8));
    let many = bench.tasks(10_000, 1_000);
    let ticked = [
        planned(bench, "schedules_few", &crew, FEW).await?,
        planned(bench, "schedules_many", &crew, many).await?,
    ];
    let fired = planned(bench, "schedules_burst", &crew, many).await?;
    let words = count_words(many);
    let few = format!("a tick, {FEW} schedules");
    let mut cases = vec![
        ms(&few),
        against(ms(&format!("a tick, {words} schedules")), &few, Some(FLAT)),
        case(format!("{words} due at once, until every run has ended"), "s", Better::Lower),
        Case { goal: Some(BOUND), ..ms("delay of a fire") },
    ];
    let mut beside = Beside::default();
    alternate(bench, "schedules", &mut cases, async |n, round| match n {
        0 | 1 => beside.tick(n, tick::round(bench, &ticked[n]).await?),
        2 => {
            let burst = burst::round(bench, &fired, &crew, (many, round)).await?;
            beside.fires.push(burst.fires);
            beside.checks.extend(burst.checks);
            Ok(Measured { value: burst.seconds, series: burst.series })
        }
        _ => beside.delay(delay::round(bench, &crew, round).await?),
    })
    .await?;
    for database in ticked.into_iter().chain([fired]) {
        bench.drop_database(database).await?;
    }
    let mut notes = vec![
        format!(
            "{} ticks and {} fires a round, {}",
            tick::ticks(bench),
            delay::fires(bench),
            crew.words()
        ),
        "a schedule is daily(…) at a second of its own, of one task, SELECT 1".to_owned(),
    ];
    if beside.buffers[0].is_empty() {
        notes.push("no buffers of a tick: the server has no pg_stat_statements".to_owned());
    }
    let checks = beside.flat().into_iter().chain(std::mem::take(&mut beside.checks)).collect();
    let cases = further(cases, beside, &words);
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

impl Beside {
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

    /// Whether a tick reads no more pages of many schedules than of few, in each round.
    fn flat(&self) -> Option<Check> {
        let [few, many] = &self.buffers;
        let deeper = few.iter().zip(many).map(|(few, many)| many - few).fold(f64::NAN, f64::max);
        (!few.is_empty()).then(|| Check {
            what: format!(
                "a tick of many schedules reads at most {DEEPER} buffers more than one of {FEW}"
            ),
            passed: deeper <= DEEPER,
            detail: format!("{deeper:.2} more"),
        })
    }
}

fn gather(all: &mut Option<Times>, times: Times) -> Result<()> {
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

/// The cases with what is read beside them.
fn further(mut cases: Vec<Case>, beside: Beside, words: &str) -> Vec<Case> {
    let sizes = [FEW.to_string(), words.to_owned()];
    let [.., delay] = &mut cases[..] else { return cases };
    delay.percentiles = beside.delays.as_ref().map(Times::percentiles);
    let name = format!("{words} due at once, fires");
    let fires = Case { rounds: beside.fires, ..case(name, "fires/s", Better::Higher) };
    let longest_delay = Case { rounds: beside.longest_delay, ..ms("delay of a fire, the longest") };
    for (case, times) in cases.iter_mut().zip(&beside.ticks) {
        case.percentiles = times.as_ref().map(Times::percentiles);
    }
    for (size, rounds) in sizes.iter().zip(beside.longest_tick) {
        let goal = (size == words).then_some(BOUND);
        cases.push(Case { rounds, goal, ..ms(&format!("a tick, {size} schedules, the longest")) });
    }
    for (size, rounds) in sizes.iter().zip(beside.in_server) {
        cases.push(Case { rounds, ..ms(&format!("a tick, {size} schedules, in the server")) });
    }
    for (size, rounds) in sizes.iter().zip(beside.buffers) {
        let name = format!("a tick, {size} schedules, buffers");
        cases.push(Case { rounds, ..case(name, "buffers", Better::Lower) });
    }
    cases.extend([fires, longest_delay]);
    cases.retain(|case| !case.rounds.is_empty());
    cases
}

/// A database with so many schedules, whose first instants the fleet has worked out.
async fn planned(bench: &Bench, label: &str, crew: &Crew, schedules: i64) -> Result<Database> {
    bench.progress.stage(&format!("schedules: setting {schedules}"));
    let database = bench.database(label).await?;
    database.session.query_typed(SET, &[(&schedules, Type::INT8)]).await?;
    let mut fleet = Fleet::start(bench, &database, crew).await?;
    until(&database.session, &mut fleet, PLANNED, &[]).await?;
    fleet.stop().await?;
    settle(&database).await?;
    Ok(database)
}

async fn settle(database: &Database) -> Result<()> {
    database.session.batch_execute(SETTLE).await?;
    database.settle().await
}

/// Returns once the question is answered with yes.
async fn until(
    session: &Session,
    fleet: &mut Fleet<'_>,
    question: &str,
    values: &[(&(dyn ToSql + Sync), Type)],
) -> Result<()> {
    let begun = Instant::now();
    while !session.query_typed(question, values).await?[0].get::<_, bool>(0) {
        fleet.check()?;
        ensure!(begun.elapsed() < PATIENCE, "not after {PATIENCE:?}: {question}{}", fleet.tails());
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
