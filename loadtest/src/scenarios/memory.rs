//! Measures a worker's memory: during a long drain, a result of ten million rows, and 100,000
//! notices.

use anyhow::{Context, Result};
use queue::enqueue::{NewTask, TaskOptions, enqueue};

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{Until, drain};
use crate::measure::effects;
use crate::measure::process::peak_mb;
use crate::measure::rounds::{Measured, alternate, at_most};
use crate::result::{Scenario, Series};

/// Case, goal in MB, and statement.
const ADDED: [(&str, f64, &str); 2] = [
    ("added by a result of ten million rows", 10.0, "SELECT generate_series(1, 10000000)"),
    (
        "added by 100,000 notices",
        10.0,
        "DO $$ BEGIN FOR i IN 1..100000 LOOP RAISE NOTICE 'notice %', i; END LOOP; END $$",
    ),
];

/// Statement with a small result and a notice. It runs before the measurement, so that the worker
/// has allocated its buffers.
const WARM: &str = "DO $$ BEGIN RAISE NOTICE 'warm'; END $$; SELECT generate_series(1, 1000)";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let tasks = context.tasks(1_000_000, 30_000);
    let database = context.database("memory").await?;
    let mut cases = vec![at_most("peak over a drain", "MB", 40.0)];
    cases.extend(ADDED.map(|(name, goal, _)| at_most(name, "MB", goal)));
    let mut scenario = alternate(context, cases, async |n, round| {
        if n > 0 {
            return Ok(Measured::new(added(context, &database, ADDED[n - 1].2).await?));
        }
        database.renew(&context.progress, tasks, EFFECT).await?;
        let drained = drain(context, &database, &fleet_spec, Until::Empty, round).await?;
        let check = effects::all(&*database.session, 1, tasks).await?;
        let mut series = drained.series;
        series.retain(|series| series.name == "worker memory");
        let (highest, grown) =
            series.first().and_then(shape).context("the memory was not measured")?;
        let growth = at_most("growth from the second to the last fifth of a drain", "MB", 2.0);
        let measured = Measured { series, ..Measured::new(highest) };
        Ok(measured.also(growth, grown).check(check))
    })
    .await?;
    scenario.notes = vec![format!("{tasks} tasks per round, {}", fleet_spec.describe())];
    Ok(scenario)
}

/// Returns the peak and the rise between two fifths; `None` if there is no curve.
fn shape(curve: &Series) -> Option<(f64, f64)> {
    let values: Vec<f64> = curve.points.iter().map(|(_, value)| *value).collect();
    let fifth = values.len() / 5;
    let highest = values.iter().copied().max_by(f64::total_cmp)?;
    if fifth == 0 {
        return Some((highest, highest - values[0]));
    }
    #[expect(clippy::cast_precision_loss, reason = "a handful of points")]
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let rise = mean(&values[values.len() - fifth..]) - mean(&values[fifth..2 * fifth]);
    Some((highest, rise))
}

/// Returns by how many MB a statement raises the peak memory of a warmed-up worker.
async fn added(context: &RunContext, database: &Database, statement: &str) -> Result<f64> {
    database.empty().await?;
    let mut fleet = Fleet::start(context, database, &FleetSpec::new(1, 1)).await?;
    database.resume().await?;
    let pid = fleet.pids()[0];
    let mut peaks = [0.0; 2];
    for (peak, statement) in peaks.iter_mut().zip([WARM, statement]) {
        let task = NewTask { statement: statement.to_owned(), ..NewTask::default() };
        enqueue(&*database.session, &task, &TaskOptions::default(), None).await?;
        fleet.until_empty().await?;
        *peak = peak_mb(pid).context("the worker has ended")?;
    }
    fleet.stop().await?;
    Ok((peaks[1] - peaks[0]).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_is_seen_between_the_fifths() {
        let curve = |values: &[f64]| Series {
            points: (0..).map(f64::from).zip(values.iter().copied()).collect(),
            ..Series::default()
        };
        let rising: Vec<f64> = (0..10).map(f64::from).collect();
        assert_eq!(shape(&curve(&rising)), Some((9.0, 6.0)));
        assert_eq!(shape(&curve(&[5.0; 10])), Some((5.0, 0.0)));
        assert_eq!(shape(&curve(&[1.0, 3.0])), Some((3.0, 2.0)));
        assert_eq!(shape(&curve(&[])), None);
    }
}
