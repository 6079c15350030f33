//! Checks whether the size of the backlog affects throughput. The same fleet drains the head of a
//! small backlog and of large backlogs. Each backlog has its own database, which a round first fills
//! to its size.

use std::time::Duration;

use anyhow::Result;

use crate::context::RunContext;
use crate::context::database::EFFECT;
use crate::fleet::FleetSpec;
use crate::measure::drain::{Drained, Until, drain};
use crate::measure::effects;
use crate::measure::rounds::{Measured, against, alternate, rate};
use crate::report::number_format::short_count;
use crate::result::Scenario;

/// Maximum number of times the small backlog is drained and refilled per round, to run about as
/// long as the large ones.
const REFILLS: usize = 5;

const SMALL: i64 = 10_000;

const LIVE: &str = "SELECT /* loadtest.live */ count(*) FROM mill.tasks";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let length = context.duration(Duration::from_secs(20), Duration::from_secs(4));
    let sizes = context.size(vec![SMALL, 1_000_000, 10_000_000], vec![SMALL, 200_000]);
    let name = |size| format!("{} pending", short_count(size));
    let mut cases = Vec::new();
    // With the number of tasks ever inserted: tasks are numbered consecutively.
    let mut backlogs = Vec::new();
    for size in sizes {
        backlogs.push((context.database(&format!("backlog_{size}")).await?, size, 0));
        let case = rate(name(size));
        cases.push(if size == SMALL { case } else { against(case, &name(SMALL), Some(0.9)) });
    }
    let mut scenario = alternate(context, cases, async |n, round| {
        let (database, size, filled) = &mut backlogs[n];
        let until = if *size == SMALL { Until::Empty } else { Until::Passed(length) };
        let mut all = Drained::default();
        for _ in 0..REFILLS {
            let live: i64 = database.session.query_typed(LIVE, &[]).await?[0].get(0);
            let range = (*filled + 1, *filled + *size - live);
            database.refill(&context.progress, range, EFFECT).await?;
            *filled = range.1;
            let drained = drain(context, database, &fleet_spec, until, round).await?;
            all.tasks += drained.tasks;
            all.seconds += drained.seconds;
            all.series.extend(drained.series.into_iter().filter(|_| *size > SMALL));
            if all.seconds >= length.as_secs_f64() {
                break;
            }
        }
        Ok(Measured::from(all).check(effects::of_successes(&*database.session).await?))
    })
    .await?;
    scenario.notes = vec![format!(
        "rounds of {} s at the start of the backlog, {}; {} are drained up to {REFILLS} times per \
         round, and only the time of the drains counts",
        length.as_secs(),
        fleet_spec.describe(),
        name(SMALL)
    )];
    Ok(scenario)
}
