//! Runs a mixed load at a steady rate for the configured time. At the end, rates, memory, table
//! sizes, sessions and open files must be those of the beginning, within a tolerance. In the
//! middle, the primary is lost and its standby is promoted. Old history is dropped meanwhile.
//!
//! | step | file |
//! |---|---|
//! | old history before the load, and the check that retention drops it | `retention` |
//! | mix of tasks, submitted at a steady rate | `load` |
//! | a standby of the private server, and the failover to it | `failover` |

mod failover;
mod load;
mod retention;

use std::time::{Duration, Instant};

use anyhow::Result;

use self::failover::Pair;
use self::load::{RATE, Sent};
use crate::context::RunContext;
use crate::context::session::Session;
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{FLEET, done};
use crate::measure::effects;
use crate::measure::rounds::{against, case, rate};
use crate::measure::sample::Sampler;
use crate::result::{Better, Case, Check, Scenario, Series};

/// Minimum duration of a run whose sizes are significant: autovacuum checks a database only once a
/// minute.
const SIZES_FROM: Duration = Duration::from_secs(5 * 60);

const OUTCOMES: &str =
    "SELECT /* loadtest.outcomes */ count(*) FILTER (WHERE a.final AND a.outcome = 'succeeded'),
    count(*) FILTER (WHERE a.final AND a.outcome = 'failed'),
    count(*) FILTER (WHERE NOT a.final), (SELECT count(*) FROM mill.tasks)
FROM mill.attempts a WHERE a.task_id > 0";

/// Minimum duration of a run in which the history is maintained: workers do so about once an hour.
const MAINTAINED_FROM: Duration = Duration::from_secs(65 * 60);

/// Maximum number of points of a curve in the results.
const POINTS: usize = 720;

/// Tests whether $1 tasks have ended.
const ALL_ENDED: &str = "SELECT /* loadtest.all_ended */ count(*) >= $1 FROM mill.attempts a WHERE a.final AND a.task_id > 0";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let run = &context.run;
    let fleet_spec = FleetSpec::new(run.workers.unwrap_or(2), run.common.readers.unwrap_or(8));
    let length = context.duration(Duration::from_secs(600), Duration::from_secs(20));
    let mut database = context.database("soak").await?;
    context.progress.stage(&format!("soak: {} s", length.as_secs()));
    retention::lay(&database).await?;
    database.vacuum_and_checkpoint().await?;
    let mut pair = None;
    if let Some(primary) = context.cluster() {
        let (started, reached) = Pair::start(context, primary, &database).await?;
        (pair, database) = (Some(started), reached);
    }
    let mut fleet = Fleet::start(context, &database, &fleet_spec).await?;
    let sampler = Sampler::start(context, &database, fleet.pids()).await?;
    let resumed_at = database.resume().await?;
    let (begun, mut sent) = (Instant::now(), Sent::default());
    sent.submit(context, &database, &mut fleet, (begun, length / 2)).await?;
    let promoted = match &mut pair {
        Some(pair) => {
            context.progress.line("soak: the primary is lost, its standby is promoted");
            Some(pair.fail_over(context, &database).await?)
        }
        None => None,
    };
    let current = promoted.as_ref().unwrap_or(&database);
    sent.submit(context, current, &mut fleet, (begun, length)).await?;
    let mut series = sampler.end(1);
    // Retries and scheduled tasks need some more seconds. The checks report tasks that have not ended.
    let _ = fleet.until(ALL_ENDED, &[&sent.all]).await;
    fleet.stop().await?;
    let mut finished = done(&current.session, FLEET, (resumed_at, Some(length)), 1).await?;
    series.append(&mut finished.series);
    let (history, days) = retention::check(current).await?;
    let mut checks = vec![
        effects::all(&*current.session, 1, sent.effects).await?,
        outcomes(&current.session, &sent).await?,
    ];
    if let Some(pair) = &pair {
        checks.push(pair.check(current).await?);
    }
    if length >= MAINTAINED_FROM {
        checks.push(history);
    }
    let cases = cases(&finished.rate(), series, length >= SIZES_FROM);
    let notes = notes(length, &fleet_spec, pair.is_some(), days);
    Ok(Scenario { cases, checks, notes, ..context.so_far() })
}

/// Describes the load, and what was not checked. `days`: days on which tasks have ended.
fn notes(length: Duration, fleet_spec: &FleetSpec, failover: bool, days: i64) -> Vec<String> {
    let mut notes = vec![
        format!(
            "{} s, one round, {:.0} tasks/s, {}: of 20 tasks 14 insert a row, 1 of them due two \
             seconds later, 4 return 1,000 rows, 1 of them in autocommit mode, 1 raises notices, 1 \
             fails twice",
            length.as_secs(),
            RATE,
            fleet_spec.describe()
        ),
        match failover {
            true => "failover to a synchronous standby in the middle".to_owned(),
            false => "no failover: a server given by --database-url is not stopped".to_owned(),
        },
        format!(
            "days (UTC) on which tasks ended, each with its own partition of the history: {days}"
        ),
    ];
    if length < MAINTAINED_FROM {
        notes.push("retention not checked: workers maintain the history about once an hour".into());
    }
    if length < SIZES_FROM {
        notes.push("table sizes not checked: the run is too short".to_owned());
    }
    notes
}

/// Compares the second and the last quarter of each curve.
fn cases(rate_: &f64, series: Vec<Series>, sizes: bool) -> Vec<Case> {
    let criteria: &[(&str, Better, f64)] = &[
        ("throughput", Better::Higher, 0.95),
        ("worker memory", Better::Lower, 1.1),
        ("table size", Better::Lower, 1.25),
        ("index size", Better::Lower, 1.25),
        ("sessions", Better::Lower, 1.1),
        ("open files", Better::Lower, 1.1),
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
    cases[0].series = series.into_iter().map(thinned).collect();
    cases
}

/// Averages neighbouring points, so that the curve of a long run has at most [`POINTS`] points.
fn thinned(series: Series) -> Series {
    let of_point = series.points.len().div_ceil(POINTS).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a number of points")]
    let average = |points: &[(f64, f64)]| {
        let at = points.iter().map(|(at, _)| *at).sum::<f64>() / points.len() as f64;
        (at, mean(points))
    };
    let points = series.points.chunks(of_point).map(average).collect();
    Series { points, ..series }
}

#[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
fn mean(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|(_, value)| *value).sum::<f64>() / points.len() as f64
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
    fn a_curve_is_judged_by_its_quarters() {
        let points = (0..8_u32).map(|n| (f64::from(n), if n < 4 { 10.0 } else { 20.0 })).collect();
        let series = Series { name: "worker memory".into(), points, ..Series::default() };
        let scenario = Scenario { cases: cases(&1.0, vec![series], false), ..Scenario::default() };
        let last = &scenario.cases[2];
        assert_eq!((scenario.ratio(last), scenario.goal_met(last)), (Some(2.0), Some(false)));
    }

    #[test]
    fn a_long_curve_is_thinned() {
        let points = (0..2000_u32).map(|n| (f64::from(n), 1.0)).collect();
        let series = thinned(Series { points, ..Series::default() });
        assert_eq!((series.points.len(), series.points[0]), (667, (1.0, 1.0)));
        let short = Series { points: vec![(0.5, 2.0)], ..Series::default() };
        assert_eq!(thinned(short.clone()), short);
    }
}
