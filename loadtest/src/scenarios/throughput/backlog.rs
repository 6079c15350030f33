//! Checks whether the size of the backlog affects throughput. The same fleet drains the head of a
//! small backlog and of large backlogs. Each backlog has its own database, which is filled once. A
//! round drains tasks from the head; afterwards the same number of tasks is appended.

use std::time::Duration;

use anyhow::Result;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT};
use crate::fleet::FleetSpec;
use crate::measure::drain::{Drained, Until, close_queue, drain};
use crate::measure::effects;
use crate::measure::rounds::{against, alternate, rate};
use crate::report::number_format::short_count;
use crate::result::{Case, Check, Scenario};

/// Maximum number of times the small backlog is drained and refilled per round, to run about as
/// long as the large ones.
const REFILLS: usize = 5;

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let fleet_spec = FleetSpec::from_options(context);
    let length = context.duration(Duration::from_secs(20), Duration::from_secs(4));
    let small = 10_000;
    let sizes = context.size(vec![small, 1_000_000, 10_000_000], vec![small, 200_000]);
    let reference = name(small);
    let mut cases: Vec<Case> = Vec::new();
    let mut backlogs = Vec::new();
    for size in sizes {
        context.progress.stage(&format!("backlog: filling {}", short_count(size)));
        let database = context.database(&format!("backlog_{size}")).await?;
        close_queue(&database).await?;
        backlogs.push(Backlog { database, size, filled: 0 });
        let case = rate(name(size));
        let goal = Some(0.9);
        cases.push(if size == small { case } else { against(case, &reference, goal) });
    }
    for backlog in backlogs.iter_mut().filter(|backlog| backlog.size > small) {
        backlog.top_up(context, backlog.size).await?;
    }
    alternate(context, "backlog", &mut cases, async |n, round| {
        let backlog = &mut backlogs[n];
        if backlog.size == small {
            return Ok(backlog.repeat(context, &fleet_spec, length, round).await?.into());
        }
        let drained = backlog.head(context, &fleet_spec, Until::Passed(length), round).await?;
        let gone = backlog.gone().await?;
        backlog.top_up(context, gone).await?;
        Ok(drained.into())
    })
    .await?;
    let mut checks = Vec::new();
    for Backlog { database, size, .. } in backlogs {
        let check = effects::of_successes(&*database.session).await?;
        checks.push(Check { what: format!("{}, {}", check.what, name(size)), ..check });
        context.drop_database(database).await?;
    }
    let notes = vec![format!(
        "rounds of {} s at the start of the backlog, {}; {} are drained up to {REFILLS} times per \
         round, and only the time of the drains counts",
        length.as_secs(),
        fleet_spec.describe(),
        name(small)
    )];
    Ok(Scenario { cases, checks, notes, ..Scenario::default() })
}

fn name(size: i64) -> String {
    format!("{} pending", short_count(size))
}

struct Backlog {
    database: Database,
    size: i64,
    /// Number of tasks ever inserted; tasks are numbered consecutively.
    filled: i64,
}

impl Backlog {
    async fn top_up(&mut self, context: &RunContext, tasks: i64) -> Result<()> {
        let range = (self.filled + 1, self.filled + tasks);
        self.database.fill(&context.progress, range, EFFECT).await?;
        self.filled += tasks;
        Ok(())
    }

    /// Returns the number of tasks missing from the full size.
    async fn gone(&self) -> Result<i64> {
        const LIVE: &str = "SELECT /* loadtest.live */ count(*) FROM mill.tasks";
        let live: i64 = self.database.session.query_typed(LIVE, &[]).await?[0].get(0);
        Ok(self.size - live)
    }

    async fn head(
        &self,
        context: &RunContext,
        fleet_spec: &FleetSpec,
        until: Until,
        round: usize,
    ) -> Result<Drained> {
        self.database.vacuum_and_checkpoint().await?;
        let drained = drain(context, &self.database, fleet_spec, until, round).await?;
        close_queue(&self.database).await?;
        Ok(drained)
    }

    async fn repeat(
        &mut self,
        context: &RunContext,
        fleet_spec: &FleetSpec,
        length: Duration,
        round: usize,
    ) -> Result<Drained> {
        let mut all = Drained { tasks: 0, seconds: 0.0, series: Vec::new(), time: None };
        for _ in 0..REFILLS {
            self.top_up(context, self.size).await?;
            let drained = self.head(context, fleet_spec, Until::Empty, round).await?;
            all.tasks += drained.tasks;
            all.seconds += drained.seconds;
            if all.series.is_empty() {
                all.series = drained.series;
            }
            if all.seconds >= length.as_secs_f64() {
                break;
            }
        }
        Ok(all)
    }
}
