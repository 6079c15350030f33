//! Drains a backlog while the oldest worker is killed and replaced every two seconds. The check is
//! that every effect exists exactly once; the rate has no goal.

use std::time::{Duration, Instant};

use anyhow::Result;
use queue::operate::set_shared_commit;
use tokio::time::sleep;

use crate::context::RunContext;
use crate::context::database::{Database, EFFECT, QUEUE};
use crate::fleet::{Fleet, FleetSpec};
use crate::measure::drain::{
    DrainProgress, FLEET, close_queue, done, open_queue, throughput, until_empty,
};
use crate::measure::effects;
use crate::measure::rounds::{Measured, against, alternate, rate};
use crate::measure::sample::Sampler;
use crate::result::{Check, Scenario};
use crate::scenarios::throughput::drain::BUDGET;

const NO_KILLS: &str = "no kills";
const CHAOS: &str = "a kill every 2 s";
const SHARED: &str = "a kill every 2 s, shared commits";
const NAMES: [&str; 3] = [NO_KILLS, CHAOS, SHARED];

const KILL_EVERY: Duration = Duration::from_secs(2);

/// Time after which 99 % of the tasks were finished. The last tasks are left out, because they wait
/// for the reclaim of the last worker that was killed.
const NEARLY_ALL: &str = "SELECT /* loadtest.nearly_all */ extract(epoch FROM percentile_disc(0.99) WITHIN GROUP (ORDER BY a.finished_at) - $1)::float8
FROM mill.attempts a WHERE a.outcome = 'succeeded'";

const LOST: &str =
    "SELECT /* loadtest.lost */ count(*) FROM mill.attempts a WHERE a.outcome = 'lost'";

/// The scenario stops killing workers when about this many tasks are left.
const ENOUGH_LEFT: i64 = 1000;

/// Estimates the number of remaining tasks. Tasks are claimed in the order of their ids, so missing
/// tasks among the last ids show how near the end is. The query reads only one or two pages.
const LEFT: &str = "SELECT /* loadtest.left_behind */ count(*) FROM mill.tasks t WHERE t.id > $1";

const NEWEST: &str =
    "SELECT /* loadtest.newest_in_chaos */ coalesce(max(t.id), 0) FROM mill.tasks t";

pub(crate) async fn run(context: &RunContext) -> Result<Scenario> {
    let run = &context.run;
    let fleet_spec = FleetSpec::new(run.workers.unwrap_or(4), run.readers.unwrap_or(8));
    let tasks = context.tasks(200_000, 30_000);
    let database = context.database("chaos").await?;
    let mut cases = [rate(NO_KILLS), against(rate(CHAOS), NO_KILLS, None), rate(SHARED)];
    let (mut checks, mut kills, mut lost) = (Vec::new(), 0, 0);
    alternate(context, "chaos", &mut cases, async |n, round| {
        let round_ = Round { context, database: &database, fleet_spec: &fleet_spec, tasks, round };
        let budget = if NAMES[n] == SHARED { Some(BUDGET) } else { context.run.shared_commit };
        set_shared_commit(&*database.session, QUEUE, budget).await?;
        let (measured, killed) = round_.run(NAMES[n] != NO_KILLS).await?;
        kills += killed;
        lost += database.session.query_typed(LOST, &[]).await?[0].get::<_, i64>(0);
        let check = effects::all(&*database.session, 1, tasks).await?;
        let what = format!("{}, {}, round {round}", check.what, NAMES[n]);
        checks.push(Check { what, ..check });
        Ok(measured)
    })
    .await?;
    checks.push(Check {
        what: "kills interrupted running tasks".to_owned(),
        passed: kills > 0 && lost > 0,
        detail: format!("{kills} kills, {lost} attempts lost"),
    });
    context.drop_database(database).await?;
    let notes = vec![
        format!("{tasks} tasks per round, {}", fleet_spec.describe()),
        "the rate is that of the first 99 % of the tasks".to_owned(),
    ];
    Ok(Scenario { cases: cases.to_vec(), checks, notes, ..Scenario::default() })
}

struct Round<'a> {
    context: &'a RunContext,
    database: &'a Database,
    fleet_spec: &'a FleetSpec,
    tasks: i64,
    round: usize,
}

impl Round<'_> {
    async fn run(&self, chaos: bool) -> Result<(Measured, usize)> {
        let Self { context, database, fleet_spec, tasks, round } = *self;
        let session = &database.session;
        database.empty().await?;
        close_queue(database).await?;
        database.fill(&context.progress, (1, tasks), EFFECT).await?;
        database.vacuum_and_checkpoint().await?;
        let mut fleet = Fleet::start(context, database, fleet_spec).await?;
        let sampler = Sampler::start(context, database, fleet.pids()).await?;
        let opened_at = open_queue(database).await?;
        let kills = if chaos { self.kill(&mut fleet).await? } else { 0 };
        until_empty(context, database, &mut fleet).await?;
        let mut series = sampler.end(round);
        fleet.stop().await?;
        let drained = done(session, FLEET, opened_at, None).await?;
        series.extend(throughput(session, FLEET, opened_at, &drained, round).await?);
        let seconds: f64 = session.query_one(NEARLY_ALL, &[&opened_at]).await?.get(0);
        #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
        let value = tasks as f64 * 0.99 / seconds;
        Ok((Measured { value, series }, kills))
    }

    /// Kills one worker after another while enough tasks are left.
    async fn kill(&self, fleet: &mut Fleet<'_>) -> Result<usize> {
        let session = &self.database.session;
        let mut gauge = DrainProgress::new(self.context, session).await?;
        let newest: i64 = session.query_typed(NEWEST, &[]).await?[0].get(0);
        let left = session.prepare(LEFT).await?;
        let mut kills = 0;
        let mut last = Instant::now();
        loop {
            sleep(Duration::from_millis(100)).await;
            gauge.refresh().await?;
            let near: i64 = session.query_one(&left, &[&(newest - ENOUGH_LEFT)]).await?.get(0);
            if near < ENOUGH_LEFT {
                return Ok(kills);
            }
            if last.elapsed() >= KILL_EVERY {
                last = Instant::now();
                fleet.kill_oldest().await?;
                fleet.start_one()?;
                kills += 1;
            }
        }
    }
}
