//! Drains a backlog of tasks that each insert one row; afterwards every row must exist exactly
//! once. Measures one commit per task and shared commits, each compared with its ceiling: the same
//! transactions without a queue.

use std::time::Duration;

use anyhow::Result;
use queue::operate::set_shared_commit;

use crate::context::RunContext;
use crate::context::database::{EFFECT, QUEUE};
use crate::fleet::FleetSpec;
use crate::measure::ceiling::Ceiling;
use crate::measure::drain::{Until, drain};
use crate::measure::effects;
use crate::measure::rounds::{against, alternate, case, rate};
use crate::result::{Better, Scenario};

/// Time budget of a shared commit.
pub(crate) const BUDGET: Duration = Duration::from_millis(50);

const CEILING: &str = "ceiling, one commit per task";
const FLEET: &str = "one commit per task";
const SHARED: &str = "shared commits, 50 ms";
const SHARED_CEILING: &str = "ceiling, shared commits";

/// Minimum number of tasks per transaction of the ceiling for shared commits. The ceiling uses the
/// fleet's number if it is greater. With the fleet's number alone, a fleet that puts few tasks into
/// a transaction would be compared with a lower ceiling.
const LEAST_GROUP: usize = 32;

/// Average number of tasks per transaction in the last round, from the transaction ids (xmin) of
/// their history rows.
const PER_COMMIT: &str = "SELECT /* loadtest.per_commit */ count(*) / greatest(count(DISTINCT a.xmin::text), 1) FROM mill.attempts a";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let tasks = context.tasks(100_000, 20_000);
    let database = context.database("drain").await?;
    // In this order, so that the last ceiling knows the fleet's tasks per commit from the first
    // round on.
    let cases = vec![
        rate(CEILING),
        against(rate(FLEET), CEILING, Some(0.85)),
        against(rate(SHARED), SHARED_CEILING, Some(0.7)),
        rate(SHARED_CEILING),
    ];
    let mut reached = 0;
    let group = |reached: i64| usize::try_from(reached).map_or(1, |it| it.max(LEAST_GROUP));
    let mut scenario = alternate(context, cases, async |n, round| {
        let connections = fleet_spec.readers();
        let mut measured = match n {
            0 => Ceiling { connections, group: 1, tasks }
                .run(context, &database, round)
                .await?
                .into(),
            3 => {
                let ceiling = Ceiling { connections, group: group(reached), tasks };
                ceiling.run(context, &database, round).await?.into()
            }
            _ => {
                set_shared_commit(&*database.session, QUEUE, (n == 2).then_some(BUDGET)).await?;
                database.renew(&context.progress, tasks, EFFECT).await?;
                let drained = drain(context, &database, &fleet_spec, Until::Empty, round).await?;
                drained.with_processor_time(if n == 1 { FLEET } else { SHARED })
            }
        };
        if n == 2 {
            reached = database.session.query_typed(PER_COMMIT, &[]).await?[0].get(0);
            let per_commit = case("shared commits: tasks per commit", "tasks", Better::Higher);
            measured = measured.also(per_commit, f64::from(i32::try_from(reached)?));
        }
        Ok(measured.check(effects::all(&*database.session, 1, tasks).await?))
    })
    .await?;
    scenario.notes = vec![
        format!("{tasks} tasks per round, {}", fleet_spec.describe()),
        format!(
            "the ceiling of shared commits runs as many tasks per transaction as the fleet, at least \
             {LEAST_GROUP}; in the last round {}",
            group(reached)
        ),
    ];
    Ok(scenario)
}
