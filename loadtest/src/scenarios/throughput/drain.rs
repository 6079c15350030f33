//! Drains a backlog of tasks that each insert one row; afterwards every row must exist exactly
//! once. Measures one commit per task and shared commits, each compared with its ceiling: the same
//! transactions without a queue.

use std::time::Duration;

use anyhow::Result;
use queue::operate::set_shared_commit;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT, QUEUE};
use crate::fleet::FleetSpec;
use crate::measure::ceiling::Ceiling;
use crate::measure::drain::{Drained, Until, close_queue, drain};
use crate::measure::effects;
use crate::measure::fleet_time::TimeCases;
use crate::measure::rounds::{against, alternate, case, rate};
use crate::result::{Better, Check, Scenario};

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
const PER_COMMIT: &str = "SELECT /* loadtest.per_commit */ count(*)::float8 / greatest(count(DISTINCT a.xmin::text), 1) FROM mill.attempts a";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    with_ceilings(context, "drain", EFFECT, [Some(0.85), Some(0.7)]).await
}

/// Measures a backlog of this statement; `goals` are the ratios of one commit per task and of
/// shared commits to their ceilings.
pub(crate) async fn with_ceilings(
    context: &RunContext,
    scenario: &str,
    statement: &'static str,
    goals: [Option<f64>; 2],
) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let tasks = context.tasks(100_000, 20_000);
    let database = context.database(scenario).await?;
    // In this order, so that the last ceiling knows the fleet's tasks per commit from the first
    // round on.
    let mut cases = vec![
        rate(CEILING),
        against(rate(FLEET), CEILING, goals[0]),
        against(rate(SHARED), SHARED_CEILING, goals[1]),
        rate(SHARED_CEILING),
    ];
    let names = [CEILING, FLEET, SHARED, SHARED_CEILING];
    let mut per_commit = case("shared commits: tasks per commit", "tasks", Better::Higher);
    let mut times = [TimeCases::new(FLEET), TimeCases::new(SHARED)];
    let mut checks = Vec::new();
    let mut group = LEAST_GROUP;
    alternate(context, scenario, &mut cases, async |n, round| {
        let ceiling =
            Ceiling { connections: fleet_spec.readers(), group: 1, last: tasks, statement };
        let drained = match n {
            0 => ceiling_round(context, &database, ceiling, round).await?,
            3 => ceiling_round(context, &database, Ceiling { group, ..ceiling }, round).await?,
            _ => {
                let budget = (n == 2).then_some(BUDGET);
                set_shared_commit(&*database.session, QUEUE, budget).await?;
                fleet_round(context, &database, &fleet_spec, (tasks, statement), round).await?
            }
        };
        if let (1 | 2, Some(time)) = (n, drained.time) {
            times[n - 1].record(time, drained.tasks);
        }
        if n == 2 {
            let reached = database.session.query_typed(PER_COMMIT, &[]).await?[0].get(0);
            per_commit.rounds.push(reached);
            group = LEAST_GROUP.max(whole(reached));
        }
        let mut check = succeeded(&drained, tasks);
        if statement == EFFECT && check.passed {
            check = effects::all(&*database.session, 1, tasks).await?;
        }
        checks
            .push(Check { what: format!("{}, {}, round {round}", check.what, names[n]), ..check });
        Ok(drained.into())
    })
    .await?;
    context.drop_database(database).await?;
    cases.push(per_commit);
    cases.extend(times.into_iter().flat_map(TimeCases::into_cases));
    let notes = vec![
        format!("{tasks} tasks per round, {}", fleet_spec.describe()),
        format!(
            "the ceiling of shared commits runs as many tasks per transaction as the fleet, at least \
             {LEAST_GROUP}; in the last round {group}"
        ),
    ];
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number of tasks"
)]
fn whole(tasks: f64) -> usize {
    tasks.round() as usize
}

pub(crate) fn succeeded(drained: &Drained, tasks: i64) -> Check {
    Check {
        what: "every task succeeded".to_owned(),
        passed: drained.tasks == tasks,
        detail: format!("{tasks} tasks, {} succeeded", drained.tasks),
    }
}

/// Fills the queue with `tasks` tasks and runs the fleet.
pub(crate) async fn fleet_round(
    context: &RunContext,
    database: &Database,
    fleet_spec: &FleetSpec,
    (tasks, statement): (i64, &str),
    round: usize,
) -> Result<Drained> {
    database.empty().await?;
    close_queue(database).await?;
    database.fill(&context.progress, (1, tasks), statement).await?;
    database.vacuum_and_checkpoint().await?;
    drain(context, database, fleet_spec, Until::Empty, round).await
}

/// Runs the same tasks without a queue.
async fn ceiling_round(
    context: &RunContext,
    database: &Database,
    ceiling: Ceiling,
    round: usize,
) -> Result<Drained> {
    database.empty().await?;
    database.fill_bare(&context.progress, (1, ceiling.last), ceiling.statement).await?;
    database.vacuum_and_checkpoint().await?;
    ceiling.run(context, database, round).await
}
