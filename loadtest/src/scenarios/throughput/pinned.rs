//! Drains a long backlog while a transaction with an old snapshot stays open, so that no dead row
//! can be removed. Compares the rate of the first tasks with that of the last tasks.

use anyhow::Result;

use crate::context::RunContext;
use crate::context::database::EFFECT;
use crate::context::session::Session;
use crate::fleet::FleetSpec;
use crate::measure::drain::{Until, drain};
use crate::measure::effects;
use crate::measure::rounds::{Measured, against, alternate, rate};
use crate::result::Scenario;

const UNPINNED: &str = "no old snapshot";
const PINNED: &str = "old snapshot open";

/// Begins the transaction. Its first statement takes the snapshot.
const SNAPSHOT: &str = "BEGIN /* loadtest.snapshot */ ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM loadtest.effects";

/// Seconds after the first task until a fifth, four fifths and all of the tasks were finished.
const FIFTHS: &str = "SELECT /* loadtest.fifths */ array(SELECT extract(epoch FROM at - f.first)::float8 FROM unnest(f.at) AS at)
FROM (SELECT min(a.started_at) AS first,
        percentile_disc(ARRAY[0.2, 0.8, 1.0]) WITHIN GROUP (ORDER BY a.finished_at) AS at
    FROM mill.attempts a WHERE a.outcome = 'succeeded') AS f";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let tasks = context.tasks(1_000_000, 30_000);
    let database = context.database("pinned").await?;
    let cases = vec![rate(UNPINNED), against(rate(PINNED), UNPINNED, Some(0.85))];
    let mut scenario = alternate(context, cases, async |n, round| {
        database.renew(&context.progress, tasks, EFFECT).await?;
        let holder = context.connect(database.url()).await?;
        if n == 1 {
            holder.batch_execute(SNAPSHOT).await?;
        }
        let drained = drain(context, &database, &fleet_spec, Until::Empty, round).await?;
        drop(holder);
        let (what, goal) = [(UNPINNED, None), (PINNED, Some(0.9))][n];
        let measured = with_fifths(drained.into(), &database.session, what, (tasks, goal)).await?;
        Ok(measured.check(effects::all(&*database.session, 1, tasks).await?))
    })
    .await?;
    scenario.notes = vec![format!("{tasks} tasks per round, {}", fleet_spec.describe())];
    Ok(scenario)
}

/// Adds the rates of the first and the last fifth of the succeeded tasks of a case, with the goal
/// for their ratio.
pub(crate) async fn with_fifths(
    measured: Measured,
    session: &Session,
    case: &str,
    (tasks, goal): (i64, Option<f64>),
) -> Result<Measured> {
    let at: Vec<f64> = session.query_typed(FIFTHS, &[]).await?[0].get(0);
    #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
    let fifth = tasks as f64 / 5.0;
    let first = format!("{case}: first fifth");
    let last = against(rate(format!("{case}: last fifth")), &first, goal);
    Ok(measured.also(rate(first), fifth / at[0]).also(last, fifth / (at[2] - at[1])))
}
