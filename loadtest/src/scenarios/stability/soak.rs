//! Runs a mixed load at a steady rate for the configured time. At the end, rates, memory and table
//! sizes must be those of the beginning, within a tolerance.

use std::time::{Duration, Instant};

use anyhow::Result;
use queue::enqueue::{Due, NewTask, TaskOptions, enqueue_many, notify};
use queue::{Backoff, Mode};
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::context::session::Session;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{FLEET, done, open_queue, throughput};
use crate::measure::effects;
use crate::measure::rounds::{against, case, rate};
use crate::measure::sample::Sampler;
use crate::result::{Better, Case, Check, Scenario, Series};

/// Tasks per second; far below a fleet's capacity, so that any growth is not caused by the load.
const RATE: f64 = 400.0;

const TICK: Duration = Duration::from_millis(50);

/// Minimum duration of a run whose sizes are significant: autovacuum checks a database only once a
/// minute.
const SIZES_FROM: Duration = Duration::from_secs(5 * 60);

const OUTCOMES: &str = "/* loadtest.outcomes */
SELECT count(*) FILTER (WHERE a.final AND a.outcome = 'succeeded'),
    count(*) FILTER (WHERE a.final AND a.outcome = 'failed'),
    count(*) FILTER (WHERE NOT a.final), (SELECT count(*) FROM mill.tasks)
FROM mill.attempts a";

const TIMEOUT: Duration = Duration::from_secs(60);

/// Numbers of submitted tasks.
#[derive(Debug, Default)]
struct Sent {
    all: i64,
    effects: i64,
    doomed: i64,
}

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let run = &context.run;
    let fleet_spec = FleetSpec::new(run.workers.unwrap_or(2), run.readers.unwrap_or(8));
    let length = context.duration(Duration::from_secs(600), Duration::from_secs(20));
    let database = context.database("soak").await?;
    context.progress.stage(&format!("soak: {} s", length.as_secs()));
    database.vacuum_and_checkpoint().await?;
    let mut fleet = Fleet::start(context, &database, &fleet_spec).await?;
    let sampler = Sampler::start(context, &database, fleet.pids()).await?;
    let opened_at = open_queue(&database).await?;
    let sent = submit(context, &database, &mut fleet, length).await?;
    let mut series = sampler.end(1);
    until_finished(&database, &mut fleet, sent.all).await?;
    fleet.stop().await?;
    let finished = done(&database.session, FLEET, opened_at, Some(length)).await?;
    series.extend(throughput(&database.session, FLEET, opened_at, &finished, 1).await?);
    let checks = vec![
        effects::all(&*database.session, 1, sent.effects).await?,
        outcomes(&database.session, &sent).await?,
    ];
    context.drop_database(database).await?;
    let mut notes = vec![format!(
        "{} s, one round, {:.0} tasks/s, {}: of 20 tasks 15 insert a row, 1 of them in autocommit \
         mode and 1 due two seconds later, 3 return 1,000 rows, 1 raises notices, 1 fails twice",
        length.as_secs(),
        RATE,
        fleet_spec.describe()
    )];
    let sizes = length >= SIZES_FROM;
    if !sizes {
        notes.push("table sizes not checked: the run is too short".to_owned());
    }
    let cases = cases(&finished.rate(), series, sizes);
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

/// Compares the second and the last quarter of each curve.
fn cases(rate_: &f64, series: Vec<Series>, sizes: bool) -> Vec<Case> {
    let criteria: &[(&str, Better, f64)] = &[
        ("throughput", Better::Higher, 0.95),
        ("worker memory", Better::Lower, 1.1),
        ("table size", Better::Lower, 1.25),
        ("index size", Better::Lower, 1.25),
    ];
    let mut cases = vec![Case { rounds: vec![*rate_], ..rate("succeeded") }];
    for (name, better, goal) in criteria {
        let Some(curve) = series.iter().find(|series| series.name == *name) else { continue };
        let quarter = curve.points.len() / 4;
        if quarter == 0 || (name.ends_with("size") && !sizes) {
            continue;
        }
        let early = &curve.points[quarter..2 * quarter];
        let late = &curve.points[curve.points.len() - quarter..];
        let first = format!("{name}, second quarter");
        let of = |name: String, points: &[(f64, f64)]| Case {
            rounds: vec![mean(points)],
            ..case(name, &curve.unit, *better)
        };
        cases.push(of(first.clone(), early));
        cases.push(against(of(format!("{name}, last quarter"), late), &first, Some(*goal)));
    }
    cases[0].series = series;
    cases
}

#[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
fn mean(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|(_, value)| *value).sum::<f64>() / points.len() as f64
}

/// Submits at the steady rate for the configured time.
async fn submit(
    context: &RunContext,
    database: &Database,
    fleet: &mut Fleet<'_>,
    length: Duration,
) -> Result<Sent> {
    let session = context.connect(database.url()).await?;
    let mut sent = Sent::default();
    let begun = Instant::now();
    while begun.elapsed() < length {
        #[expect(clippy::cast_possible_truncation, reason = "a rate times a time, in tasks")]
        let due = (begun.elapsed().as_secs_f64() * RATE) as i64;
        for (options, tasks) in mix(&mut sent, due) {
            if !tasks.is_empty() {
                enqueue_many(&*session, &tasks, &options).await?;
            }
        }
        notify(&*session).await?;
        fleet.check()?;
        context.progress.state(&format!("{} s, {} tasks", begun.elapsed().as_secs(), sent.all));
        sleep(TICK).await;
    }
    Ok(sent)
}

/// Returns the tasks up to this number, grouped by the options that they need.
fn mix(sent: &mut Sent, due: i64) -> [(TaskOptions, Vec<NewTask>); 4] {
    let plain = TaskOptions::default();
    let later = TaskOptions { due: Due::In(Duration::from_secs(2)), ..plain.clone() };
    let autocommit = TaskOptions { mode: Some(Mode::Autocommit), ..plain.clone() };
    let doomed = TaskOptions {
        max_attempts: Some(2),
        retry_interval: Some(Duration::from_secs(1)),
        backoff: Some(Backoff::Fixed),
        ..plain.clone()
    };
    let mut batches =
        [plain, later, autocommit, doomed].map(|options| (options, Vec::<NewTask>::new()));
    for n in sent.all..due {
        let (batch, statement) = match n % 20 {
            0..=2 => (0, "SELECT generate_series(1, 1000)".to_owned()),
            3 => (0, "DO $$ BEGIN RAISE NOTICE 'one'; RAISE NOTICE 'two'; END $$".to_owned()),
            4 => (3, "DO $$ BEGIN RAISE EXCEPTION 'as planned'; END $$".to_owned()),
            other => {
                sent.effects += 1;
                let batch = match other {
                    5 => 1,
                    6 => 2,
                    _ => 0,
                };
                (batch, EFFECT.replace("%s", &sent.effects.to_string()))
            }
        };
        sent.doomed += i64::from(batch == 3);
        batches[batch].1.push(NewTask { statement, ..NewTask::default() });
    }
    sent.all = sent.all.max(due);
    batches
}

/// Waits for the last tasks; retries and scheduled tasks need some more seconds.
async fn until_finished(database: &Database, fleet: &mut Fleet<'_>, all: i64) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        let row = database.session.query_typed(OUTCOMES, &[]).await?;
        if row[0].get::<_, i64>(0) + row[0].get::<_, i64>(1) >= all {
            break;
        }
        fleet.check()?;
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

async fn outcomes(session: &Session, sent: &Sent) -> Result<Check> {
    let row = session.query_typed(OUTCOMES, &[]).await?;
    let [succeeded, failed, retried, left]: [i64; 4] = [0, 1, 2, 3].map(|n| row[0].get(n));
    Ok(Check {
        what: "every task ended as expected".to_owned(),
        passed: (succeeded, failed, left) == (sent.all - sent.doomed, sent.doomed, 0)
            && retried >= sent.doomed,
        detail: format!(
            "{} tasks, {} of them must fail: {succeeded} succeeded, {failed} failed, {retried} \
             attempts before the last, {left} left",
            sent.all, sent.doomed
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_what_the_note_says() {
        let mut sent = Sent::default();
        let first: usize = mix(&mut sent, 7).iter().map(|(_, tasks)| tasks.len()).sum();
        let batches = mix(&mut sent, 40);
        let rest: usize = batches.iter().map(|(_, tasks)| tasks.len()).sum();
        assert_eq!((first, rest, sent.all), (7, 33, 40));
        assert_eq!((sent.effects, sent.doomed), (30, 2));
    }

    #[test]
    fn a_curve_is_judged_by_its_quarters() {
        let points = (0..8_u32).map(|n| (f64::from(n), if n < 4 { 10.0 } else { 20.0 })).collect();
        let series = Series { name: "worker memory".into(), points, ..Series::default() };
        let scenario = Scenario { cases: cases(&1.0, vec![series], false), ..Scenario::default() };
        let last = &scenario.cases[2];
        assert_eq!((scenario.ratio(last), scenario.goal_met(last)), (Some(2.0), Some(false)));
    }
}
