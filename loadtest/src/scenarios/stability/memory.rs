//! Measures a worker's memory: during a long drain, a result of ten million rows, and 100,000
//! notices.

use anyhow::{Context, Result};
use queue::enqueue::{NewTask, TaskOptions, enqueue};

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{Until, close_queue, drain, open_queue, until_empty};
use crate::measure::effects;
use crate::measure::process::peak_bytes;
use crate::measure::rounds::case;
use crate::result::{Better, Case, Check, Scenario, Series};

const ROWS: &str = "SELECT generate_series(1, 10000000)";

const NOTICES: &str =
    "DO $$ BEGIN FOR i IN 1..100000 LOOP RAISE NOTICE 'notice %', i; END LOOP; END $$";

/// Statement with a small result and a notice. It runs before the measurement, so that the worker
/// has allocated its buffers.
const WARM: &str = "DO $$ BEGIN RAISE NOTICE 'warm'; END $$; SELECT generate_series(1, 1000)";

/// Permitted growth of the memory, in MB, between the second and the last fifth of a drain.
const FLAT_MB: f64 = 2.0;

const MB: f64 = 1024.0 * 1024.0;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let tasks = context.tasks(1_000_000, 30_000);
    let database = context.database("memory").await?;
    let mb = |name: &str, goal| Case { goal: Some(goal), ..case(name, "MB", Better::Lower) };
    let mut peak = mb("peak over a drain", 40.0);
    let mut growth = mb("growth from the second to the last fifth of a drain", FLAT_MB);
    let mut rows = mb("added by a result of ten million rows", 10.0);
    let mut notices = mb("added by 100,000 notices", 10.0);
    let mut checks = Vec::new();
    for round in 1..=context.rounds() {
        context.progress.stage(&format!("memory: {tasks} tasks, round {round}"));
        database.empty().await?;
        close_queue(&database).await?;
        database.fill(&context.progress, (1, tasks), EFFECT).await?;
        database.vacuum_and_checkpoint().await?;
        let drained = drain(context, &database, &fleet_spec, Until::Empty, round).await?;
        let check = effects::all(&*database.session, 1, tasks).await?;
        checks.push(Check { what: format!("{}, round {round}", check.what), ..check });
        let curve = drained.series.iter().find(|series| series.name == "worker memory");
        if let Some((highest, grown)) = curve.and_then(shape) {
            peak.rounds.push(highest);
            growth.rounds.push(grown);
        }
        peak.series.extend(drained.series.into_iter().filter(|it| it.name == "worker memory"));
        for (case, statement) in [(&mut rows, ROWS), (&mut notices, NOTICES)] {
            context.progress.stage(&format!("memory: {}, round {round}", case.name));
            case.rounds.push(added(context, &database, statement).await?);
        }
        context.keep(&[&peak, &growth, &rows, &notices].map(Clone::clone));
    }
    context.drop_database(database).await?;
    let notes = vec![format!("{tasks} tasks per round, {}", fleet_spec.describe())];
    Ok(Scenario { cases: vec![peak, growth, rows, notices], checks, notes, ..Scenario::default() })
}

/// Returns the peak and the rise between two fifths; `None` if the curve is too short.
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
    open_queue(database).await?;
    let pid = fleet.pids()[0];
    run_one(context, database, &mut fleet, WARM).await?;
    let before = peak_bytes(pid).context("the worker has ended")?;
    run_one(context, database, &mut fleet, statement).await?;
    let after = peak_bytes(pid).context("the worker has ended")?;
    fleet.stop().await?;
    #[expect(clippy::cast_precision_loss, reason = "a size in MB")]
    Ok(after.saturating_sub(before) as f64 / MB)
}

async fn run_one(
    context: &RunContext,
    database: &Database,
    fleet: &mut Fleet<'_>,
    statement: &str,
) -> Result<()> {
    let task = NewTask { statement: statement.to_owned(), ..NewTask::default() };
    enqueue(&*database.session, &task, &TaskOptions::default(), None).await?;
    until_empty(context, database, fleet).await
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
